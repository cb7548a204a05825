"""W5, W6, N1: the HTTPS server around the webhooks; nothing that arrives crashes or hangs it."""

import asyncio
import base64
import json
import ssl

import aiohttp
import pytest
import trustme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from reconciler.core.model.vocabulary import DEVICES_ANNOTATION, DEVICES_LABEL, Reason
from tests.webhooks.fakes import NS, World, vmi_body
from webhooks.certificates import Certificates
from webhooks.review import MAX_REVIEW_BYTES, Answer, Denied, MalformedReview, read_review
from webhooks.server import FAILED_OUTCOME, Server, answer_within


class Served:
    """A server on loopback and a client that trusts it."""

    def __init__(self, tmp_path):
        self.authority = trustme.CA()
        self.certificate, self.key = tmp_path / "tls.crt", tmp_path / "tls.key"
        issue(self.authority, self.certificate, self.key)
        self.ready = True
        self.answers = []
        self.behave = self._allow
        self.errors = []
        self.server = Server(
            {"/admit/machines": self},
            Certificates(self.certificate, self.key, on_error=self.errors.append),
            ready=lambda: self.ready,
            on_answer=lambda path, outcome: self.answers.append(outcome),
        )
        self.trust = ssl.create_default_context()
        self.authority.configure_trust(self.trust)

    async def __call__(self, request, seconds):
        return await self.behave(request, seconds)

    async def _allow(self, request, seconds):
        return Answer(patch=({"op": "add", "path": "/spec/x", "value": 1},), warnings=("look",))

    async def start(self, **more):
        self.port = await self.server.start("127.0.0.1", 0, **more)
        self.client = aiohttp.ClientSession(
            f"https://127.0.0.1:{self.port}", connector=aiohttp.TCPConnector(ssl=self.trust)
        )
        return self

    async def post(self, body, path="/admit/machines", query="?timeout=10s", **more):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.client.post(path + query, data=data, **more) as response:
            text = await response.read()
            return response.status, json.loads(text) if text[:1] == b"{" else text.decode()

    async def stop(self):
        await self.client.close()
        await self.server.drain()


def issue(authority, certificate, key, name="127.0.0.1"):
    pair = authority.issue_cert(name)
    certificate.write_bytes(b"".join(blob.bytes() for blob in pair.cert_chain_pems))
    key.write_bytes(pair.private_key_pem.bytes())


@pytest.fixture
async def served(tmp_path):
    served = await Served(tmp_path).start()
    yield served
    await served.stop()


def a_review(obj=None, **request):
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "unknown": {"field": 1},
        "request": {
            "uid": "u-1",
            "operation": "CREATE",
            "namespace": NS,
            "userInfo": {"username": "alice", "extra": {"a": ["b"]}},
            "object": obj or {},
            "unknown": True,
        }
        | request,
    }


async def test_w5_a_yes_with_its_patch_and_unknown_fields_tolerated(served):
    status, body = await served.post(a_review())
    assert status == 200
    assert (body["apiVersion"], body["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response = body["response"]
    assert (response["uid"], response["allowed"], response["patchType"]) == ("u-1", True, "JSONPatch")
    assert json.loads(base64.b64decode(response["patch"])) == [{"op": "add", "path": "/spec/x", "value": 1}]
    assert response["warnings"] == ["look"]
    assert served.answers == ["Allowed"]


async def test_w2_a_no_carries_code_reason_and_sentence(served):
    async def refuse(request, seconds):
        raise Denied(Reason.NO_FREE_UNITS, "2 asked, 1 free")

    served.behave = refuse
    _, body = await served.post(a_review())
    assert body["response"] == {
        "uid": "u-1",
        "allowed": False,
        "status": {
            "status": "Failure",
            "code": 403,
            "reason": "NoFreeUnits",
            "message": "NoFreeUnits: 2 asked, 1 free",
        },
    }
    assert served.answers == [Reason.NO_FREE_UNITS]


async def test_n4_a_no_is_logged_with_whose_it_was_and_why(served):
    """A refusal is found in the log by the object's name; a late one, too."""

    async def no(request, seconds):
        raise Denied(Reason.NO_FREE_UNITS, "2 are asked, 1 is free", 403)

    async def never(request, seconds):
        await asyncio.sleep(3600)

    with capture_logs() as told:
        for served.behave, query in ((no, "?timeout=10s"), (never, "?timeout=50ms")):
            await served.post(a_review(name="vm1"), query=query)
    assert [line["reason"] for line in told] == [str(Reason.NO_FREE_UNITS), str(Reason.BIND_TIMEOUT)]
    for line in told:
        assert (line["event"], line["namespace"], line["name"], line["review"]) == ("denied", NS, "vm1", "u-1")
        assert line["message"]


async def test_w5_a_message_is_bounded(served):
    async def refuse(request, seconds):
        raise Denied(Reason.NO_FREE_UNITS, "x" * 100_000)

    served.behave = refuse
    _, body = await served.post(a_review())
    assert len(body["response"]["status"]["message"]) == 4000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"[]",
        b"null",
        b"{}",
        b'{"request":{}}',
        b'{"request":{"uid":7}}',
        b"[" * 100_000,
        b"\xff",
    ],
)
async def test_w5_what_is_no_review_gets_a_400_with_a_text(served, body):
    status, text = await served.post(body)
    assert status == 400
    assert text
    assert served.answers == [Reason.MALFORMED_REVIEW]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_w5_a_body_in_another_encoding_than_it_says_gets_a_400(served, encoding):
    status, text = await served.post(a_review(), headers={"Content-Encoding": encoding})
    assert status == 400
    assert "encoding" in text
    assert served.answers == [Reason.MALFORMED_REVIEW]


@pytest.mark.parametrize(
    "review",
    [
        {"request": {"uid": "u-1"}},
        a_review() | {"apiVersion": "admission.k8s.io/v1beta1"},
        a_review() | {"kind": "Pod"},
        a_review(operation=7),
        a_review(namespace=[]),
    ],
)
async def test_w5_a_malformed_review_with_a_uid_gets_a_clean_denial(served, review):
    status, body = await served.post(review)
    assert status == 200
    assert body["response"]["uid"] == "u-1"
    assert body["response"]["allowed"] is False
    assert body["response"]["status"]["code"] == 400
    assert body["response"]["status"]["message"].startswith("MalformedReview: ")


async def test_w5_an_oversized_review_gets_413(served):
    assert (await served.post(b" " * (MAX_REVIEW_BYTES + 1)))[0] == 413

    async def chunks():
        for _ in range(5):
            yield b" " * 1024 * 1024

    async with served.client.post("/admit/machines", data=chunks()) as response:
        assert response.status == 413
    assert (await served.post(a_review()))[0] == 200


async def test_w5_a_fault_of_ours_is_a_denial_and_not_a_crash(served):
    async def fail(request, seconds):
        raise KeyError("bug")

    served.behave = fail
    status, body = await served.post(a_review())
    assert status == 200
    assert body["response"]["status"]["code"] == 500
    assert "u-1" in body["response"]["status"]["message"]
    assert "bug" not in body["response"]["status"]["message"]
    assert served.answers == [FAILED_OUTCOME]


async def test_w5_c17_a_webhook_that_hangs_is_answered_before_the_registered_timeout(served):
    ended = asyncio.Event()

    async def hang(request, seconds):
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    served.behave = hang
    _, body = await served.post(a_review(), query="?timeout=100ms")
    assert body["response"]["status"]["code"] == 504
    assert body["response"]["status"]["reason"] == "BindTimeout"
    assert ended.is_set()


async def test_w5_a_body_that_never_ends_is_not_waited_for(served):
    async def drip():
        yield b"{"
        await asyncio.Event().wait()

    async with served.client.post("/admit/machines?timeout=100ms", data=drip()) as response:
        assert response.status == 408


async def test_b3_a_client_that_leaves_cancels_its_webhook(served):
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait(request, seconds):
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    served.behave = wait
    call = asyncio.create_task(served.post(a_review()))
    await begun.wait()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await served.client.close()
    await asyncio.wait_for(ended.wait(), 5)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10s", 9.5),
        ("1m0s", 59.5),
        ("1.5s", 1.0),
        ("500ms", 0.25),
        ("", 9.5),
        ("soon", 9.5),
        ("-3s", 9.5),
        ("0s", 9.5),
        ("9" * 50 + "s", 9.5),
    ],
)
def test_c17_the_deadline_is_the_one_the_api_server_announces(text, seconds):
    assert answer_within(text) == seconds


async def test_w6_unsynced_caches_answer_nothing_and_say_so(served):
    served.ready = False
    _, body = await served.post(a_review())
    assert body["response"]["status"]["code"] == 503
    assert body["response"]["status"]["reason"] == "NotReady"
    async with served.client.get("/readyz") as response:
        assert (response.status, await response.text()) == (503, "the caches are not synced")
    async with served.client.get("/healthz") as response:
        assert response.status == 200
    served.ready = True
    async with served.client.get("/readyz") as response:
        assert response.status == 200


async def test_n1_draining_ends_readiness_and_lets_a_running_review_finish(served):
    begun, go = asyncio.Event(), asyncio.Event()

    async def wait(request, seconds):
        begun.set()
        await go.wait()
        return Answer()

    served.behave = wait
    call = asyncio.create_task(served.post(a_review()))
    await begun.wait()
    drain = asyncio.create_task(served.server.drain())
    await asyncio.sleep(0)
    assert not served.server.ready
    go.set()
    _, body = await call
    assert body["response"]["allowed"] is True
    await drain
    with pytest.raises(aiohttp.ClientConnectionError):
        await served.post(a_review())


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("metadata", "name", "labels", "annotations", "spec", "domain", "devices", "gpus", "memory"),
                    *("affinity", "values", "resourceQuotas", "className", "count", "tolerations"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
_labels = st.sampled_from(
    [
        {DEVICES_LABEL: "true"},
        {DEVICES_LABEL: "true", "kubevirt.io": "virt-launcher"},
        {"apps.cozystack.io/application.kind": "Tenant"},
    ]
)
_annotations = st.fixed_dictionaries({DEVICES_ANNOTATION: st.text(max_size=8) | _values.map(json.dumps)})
_objects = _values | st.builds(
    lambda labels, annotations, spec: {
        "metadata": {"name": "tenant-x", "labels": labels, "annotations": annotations},
        "spec": spec,
    },
    _labels,
    _annotations,
    _values,
)
_requests = st.fixed_dictionaries(
    {},
    optional={
        "uid": st.text(min_size=1, max_size=3) | st.integers(),
        "operation": st.sampled_from(["CREATE", "UPDATE", "DELETE"]) | st.none(),
        "namespace": st.just(NS) | _values,
        "object": _objects,
        "oldObject": _objects,
        "dryRun": st.booleans() | st.none() | st.integers(),
        "userInfo": _values,
    },
)


class _Route:
    """The four webhooks behind one server, for one event loop."""

    def __init__(self):
        world = World()
        self.outcomes = []
        self.server = Server(
            {
                "/admit/devices": world.devices,
                "/admit/machines": world.machines,
                "/admit/pods": world.pods,
                "/admit/tenants": world.tenants,
            },
            Certificates("/nonexistent", "/nonexistent", on_error=lambda why: None),
            ready=lambda: True,
            on_answer=lambda path, outcome: self.outcomes.append(outcome),
        )


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    path=st.sampled_from(["/admit/devices", "/admit/machines", "/admit/pods", "/admit/tenants"]),
    review=st.builds(lambda request: a_review() | {"request": request}, _requests)
    | st.builds(lambda request: a_review(**request), _requests)
    | _values,
)
def test_w5_no_review_is_answered_by_anything_but_a_review_or_a_4xx(path, review):
    route = _Route()
    body = json.dumps(review).encode()

    async def ask():
        try:
            request = read_review(body)
        except MalformedReview as error:
            assert error.message
            return
        with_answer = json.loads((await route.server._answer(path, request, 9.5)).body)
        assert with_answer["response"]["uid"] == request.uid
        assert isinstance(with_answer["response"]["allowed"], bool)

    asyncio.run(ask())
    assert FAILED_OUTCOME not in route.outcomes


async def test_w2_the_machine_webhook_behind_tls_starts_a_vmi(served):
    world = World()
    world.held("d1")
    served.behave = world.machines
    _, body = await served.post(a_review(vmi_body(references=[{"device": "d1"}])))
    patch = json.loads(base64.b64decode(body["response"]["patch"]))
    assert patch[0]["path"] == "/spec/domain/devices/gpus"
