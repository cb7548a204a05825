"""Target: reviews and catalog requests against the real server over the folded state of a real replica (W5, C1).

Each example meets a cluster of its own, so that a failure needs no history.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import logging
import zlib
from typing import Any, NamedTuple

import jsonpatch
from hypothesis import strategies as st
from structlog.processors import format_exc_info
from structlog.testing import capture_logs

from journal import events
from reconciler.core.model.objects import ACCESS_REVIEW, TOKEN_REVIEW
from reconciler.demo.environment import Environment
from reconciler.runtime.observability.logs import no_strangers_fault
from tests.fuzz.http import Client, Response, request
from tests.fuzz.mutations import bodies
from tests.fuzz.samples import NS, PATHS, opened, samples
from tests.fuzz.targets import Target
from tests.simulation.safety import same_when_counted_anew
from webhooks.catalog import PATH, Catalog
from webhooks.certificates import Certificates
from webhooks.server import FAILED_OUTCOME, Server

REFUSED = {400, 401, 403, 404, 405, 408, 411, 413, 415}
LATE = {503: "NotReady", 504: "BindTimeout"}
"""The answers above 499 that are documented: not ready, and no answer in time."""


class Call(NamedTuple):
    """`path`: one of the webhooks'. `encoding`: what the header says, `coded`: what the body is."""

    path: str
    body: bytes
    encoding: str = ""
    coded: str = ""
    query: str = "?timeout=10s"
    content_type: str = "application/json"

    @property
    def sent(self) -> bytes:
        return {"gzip": gzip.compress, "deflate": zlib.compress}.get(self.coded, bytes)(self.body)


class Page(NamedTuple):
    """A request of the catalog."""

    target: str
    authorization: str


class Served:
    """A replica behind the server, and everything that was logged or ended badly."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.replica = env.replicas[0]
        self.outcomes: list[str] = []
        self.trouble: list[str] = []
        port = env.cluster.as_user("system:serviceaccount:cozy-gpu-binder:gpu-binder")
        env.cluster.answers[TOKEN_REVIEW.name] = _authenticate
        env.cluster.answers[ACCESS_REVIEW.name] = _authorize
        self.client = Client(
            Server(
                self.replica.routes,
                Certificates("/nonexistent", "/nonexistent", on_error=lambda why: None),
                ready=lambda: self.replica.controller.synced,
                pages={PATH: Catalog(self.replica.state, port).handle},
                on_answer=lambda path, outcome: self.outcomes.append(outcome),
            )
        )

    async def ask(self, raw: bytes) -> Response | None:
        """The answer to one request; afterwards the replica runs on with the right indexes."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.trouble.append(str(context)))
        await self.client.open()
        with Heard() as heard, capture_logs(processors=[format_exc_info]) as lines:
            found = await self.env.do(self.client.send(raw))
            await self.env.settle()
        await self.client.close()
        self.trouble += heard.said
        self.trouble += [str(line) for line in lines if line["log_level"] in ("error", "critical")]
        assert not self.trouble, self.trouble
        assert FAILED_OUTCOME not in self.outcomes
        assert self.replica.running, self.replica.failed
        same_when_counted_anew(self.replica.state)
        for entry in self.replica.controller.journal.read():
            assert events.decode(*events.encode(entry.event)) == entry.event
        return found


class Heard(logging.Handler):
    """Collects what Python's own logging says from warnings on."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.addFilter(no_strangers_fault)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(self.format(record))

    def __enter__(self) -> Heard:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)


def _authenticate(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "status": {"authenticated": body["spec"]["token"] == "good", "user": {"username": "alice"}}}


def _authorize(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "status": {"allowed": body["spec"]["resourceAttributes"]["namespace"] == NS}}


def check(call: Call | Page) -> None:
    asyncio.run(_check(call))


async def _check(call: Call | Page) -> None:
    served = Served(await opened())
    if isinstance(call, Page):
        found = await served.ask(request("GET", call.target, {"Authorization": call.authorization}))
        if found is not None:
            assert found.status == 200 or found.status in REFUSED, found
    else:
        headers = {"Content-Type": call.content_type}
        headers |= {"Content-Encoding": call.encoding} if call.encoding else {}
        found = await served.ask(request("POST", call.path + call.query, headers, call.sent))
        assert found is not None, "a review without an answer"
        _check_answer(call, found)
    await served.env.close()


def _check_answer(call: Call, found: Response) -> None:
    """A review with a verdict, or a refusal in words."""
    if found.status != 200:
        assert found.status in REFUSED, found
        assert found.body, "a refusal without a word"
        return
    response = json.loads(found.body)["response"]
    assert response["uid"]
    if not response["allowed"]:
        code, reason = response["status"]["code"], response["status"]["reason"]
        assert code in REFUSED or LATE.get(code) == reason, response
        assert response["status"]["message"].startswith(f"{reason}: ")
    elif "patch" in response:
        patch = json.loads(base64.b64decode(response["patch"]))
        sent = json.loads(call.body.decode(errors="replace"), strict=False)
        jsonpatch.apply_patch(sent["request"]["object"], patch)


def calls() -> st.SearchStrategy[Call]:
    """Mutated reviews, at the path they were sent to."""
    return st.one_of(
        [
            st.builds(
                Call,
                st.just(path),
                bodies(samples().reviews[path]),
                *([st.sampled_from([""] * 9 + ["gzip", "deflate", "br", "zstd", "identity", "x", "gzip, gzip", "é"])]),
                st.sampled_from([""] * 5 + ["gzip", "deflate"]),
                st.sampled_from(["?timeout=10s"] * 6 + ["", "?timeout=", "?timeout=9e9h", "?timeout=1ns&timeout=\x7f"]),
                st.sampled_from(["application/json"] * 6 + ["", "text/plain; charset=utf-99", "application/x-é"]),
            )
            for path in PATHS.values()
        ]
    )


def pages() -> st.SearchStrategy[Page]:
    odd = st.text(st.characters(blacklist_characters="\r\n \x00", codec="utf-8"), max_size=8)
    namespaces = st.sampled_from([NS, "tenant-root", "", ".", "%2e%2e", "a" * 64, "%00", "%ff", "%F0%9F%96%A5", "A"])
    tokens = st.sampled_from(["Bearer good", "Bearer bad", "Bearer", "", "Basic x", "Bearer " + "x" * 9_000])
    targets = (namespaces | odd).map(lambda name: f"/catalog/{name}")
    return st.builds(Page, targets, tokens | odd.map(lambda token: f"Bearer {token}"))


REVIEWS = Target("reviews", st.deferred(calls), check, 60)
CATALOG = Target("catalog", pages(), check, 20)
