"""W7: a review without the credentials of an API server is counted, and refused where that is required."""

import ssl

import aiohttp
import pytest
import trustme
from structlog.testing import capture_logs

from reconciler.core.model.vocabulary import AuthMode
from tests.webhooks.test_server import Served, a_review
from webhooks.callers import Callers
from webhooks.certificates import Certificates
from webhooks.server import Server

TOKENS = {
    "valid": "Bearer second",
    "wrong": "Bearer third",
    "prefix": "Bearer secon",
    "none": "",
    "basic": "Basic second",
}


class Guarded(Served):
    """A server that asks its callers for a client certificate of `clients` or a token."""

    def __init__(self, directory, mode, names=()):
        super().__init__(directory)
        self.clients, self.strangers = trustme.CA(), 0
        self.ca, self.tokens = directory / "client-ca.pem", directory / "tokens"
        self.clients.cert_pem.write_to_path(str(self.ca))
        self.tokens.write_text("first\nsecond\n")
        self.server = Server(
            {"/admit/machines": self},
            Certificates(self.certificate, self.key, client_ca=self.ca, on_error=self.errors.append),
            ready=lambda: self.ready,
            on_answer=lambda path, outcome: self.answers.append(outcome),
            callers=Callers(
                mode,
                client_ca=self.ca,
                names=names,
                token_file=self.tokens,
                on_stranger=self.count,
                on_error=self.errors.append,
            ),
        )

    def count(self):
        self.strangers += 1

    def present(self, authority, name):
        """A client context with a certificate of this common name."""
        trust = ssl.create_default_context()
        self.authority.configure_trust(trust)
        authority.issue_cert("api.example", common_name=name).configure_cert(trust)
        return trust

    async def called(self, **more):
        """(status, body) of a review with these credentials."""
        found = self.strangers, list(self.answers)
        status, body = await self.post(a_review(), **more)
        self.asked = self.strangers - found[0]
        return status, body


@pytest.fixture
async def guarded(tmp_path):
    made = []

    async def start(mode, **more):
        made.append(await Guarded(tmp_path, mode, **more).start())
        return made[-1]

    yield start
    for served in made:
        await served.stop()


@pytest.mark.parametrize("given", TOKENS)
@pytest.mark.parametrize("mode", [AuthMode.REPORT, AuthMode.REQUIRE])
async def test_w7_a_bearer_token(guarded, mode, given):
    served = await guarded(mode)
    status, body = await served.called(headers={"Authorization": TOKENS[given]} if TOKENS[given] else {})
    known = given == "valid"
    assert served.strangers == (not known)
    if mode is AuthMode.REPORT or known:
        assert status == 200 and body["response"]["allowed"] is True
    else:
        assert (status, body, served.answers) == (401, "", []), "no word, and nothing was judged"


@pytest.mark.parametrize(
    ("name", "names", "known"), [("api", (), True), ("api", ("api",), True), ("tenant", ("api",), False)]
)
async def test_w7_a_client_certificate_of_an_accepted_name(guarded, name, names, known):
    served = await guarded(AuthMode.REQUIRE, names=names)
    status, _ = await served.called(ssl=served.present(served.clients, name))
    assert (status, served.strangers) == ((200, 0) if known else (401, 1))


async def test_w7_a_certificate_of_another_authority_fails_the_handshake(guarded):
    served = await guarded(AuthMode.REQUIRE)
    with pytest.raises(aiohttp.ClientError):
        await served.called(ssl=served.present(trustme.CA(), "api"))
    assert served.answers == []


async def test_w7_without_a_client_ca_a_certificate_proves_nothing(tmp_path):
    served = Served(tmp_path)
    served.server = Server(
        {"/admit/machines": served},
        Certificates(served.certificate, served.key, on_error=served.errors.append),
        ready=lambda: True,
        callers=Callers(AuthMode.REQUIRE, token_file=tmp_path / "none", on_error=served.errors.append),
    )
    await served.start()
    trust = ssl.create_default_context()
    served.authority.configure_trust(trust)
    trustme.CA().issue_cert("api.example", common_name="api").configure_cert(trust)
    assert (await served.post(a_review(), ssl=trust))[0] == 401
    assert "none cannot be read" in served.errors[-1]
    await served.stop()


async def test_w7_tokens_and_authorities_are_reloaded(guarded):
    """W7: both files change while the server runs; one that vanishes or is emptied leaves the last in use."""
    served = await guarded(AuthMode.REQUIRE)
    callers, certificates = served.server._callers, served.server._certificates
    served.tokens.write_text("third")
    callers.reload()
    assert (await served.called(headers={"Authorization": "Bearer third"}))[0] == 200
    assert (await served.called(headers={"Authorization": "Bearer second"}))[0] == 401
    served.tokens.write_text("\n")
    callers.reload()
    assert "holds no token" in served.errors[-1]
    assert (await served.called(headers={"Authorization": "Bearer third"}))[0] == 200
    other = trustme.CA()
    other.cert_pem.write_to_path(str(served.ca))
    assert certificates.reload()
    assert (await served.called(ssl=served.present(other, "api")))[0] == 200
    with pytest.raises(aiohttp.ClientError):
        await served.called(ssl=served.present(served.clients, "api"))


async def test_w7_strangers_are_logged_once_each_and_probes_are_not_asked(guarded):
    served = await guarded(AuthMode.REPORT)
    with capture_logs() as lines:
        for _ in range(3):
            await served.called()
    assert [line["address"] for line in lines if line["event"] == "caller is not authenticated"] == ["127.0.0.1"]
    async with served.client.get("/healthz") as answer:
        assert answer.status == 200
    assert served.strangers == 3


async def test_w7_by_default_nobody_is_asked(served_by_default):
    status, _ = await served_by_default.post(a_review())
    assert status == 200


@pytest.fixture
async def served_by_default(tmp_path):
    served = await Served(tmp_path).start()
    yield served
    await served.stop()
