"""C45, W5: the serving certificate is read again when its files change, and only a whole pair is taken."""

import asyncio
import shutil
import socket
import ssl

import pytest
import trustme

from tests.webhooks.test_server import Served, a_review, issue
from webhooks.certificates import Certificates


@pytest.fixture
def mounted(tmp_path):
    """A mounted secret as a kubelet lays it out: `tls.crt -> ..data/tls.crt`, `..data -> ..first`."""
    (tmp_path / "..first").mkdir()
    (tmp_path / "..data").symlink_to("..first")
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    return tmp_path


def swap(mounted, name):
    (mounted / "..new").symlink_to(name)
    (mounted / "..new").rename(mounted / "..data")


async def serial(served):
    """Serial number of the certificate a new handshake gets."""
    _, writer = await asyncio.open_connection("127.0.0.1", served.port, ssl=served.trust)
    found = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    await writer.wait_closed()
    return found


class Polls:
    """A sleep that ends when the test says so; `passed` waits until the files have been looked at again."""

    def __init__(self):
        self._turn = asyncio.Event()
        self._waiting = asyncio.Event()

    async def sleep(self, seconds):
        self._waiting.set()
        await self._turn.wait()
        self._turn.clear()

    async def passed(self):
        await self._waiting.wait()
        self._waiting.clear()
        self._turn.set()
        await self._waiting.wait()


@pytest.fixture
async def served(mounted):
    served = Served(mounted)
    polls = Polls()
    await served.start(certificate_poll_seconds=5.0, sleep=polls.sleep)
    served.polls = polls
    yield served
    await served.stop()


async def test_c45_a_good_new_pair_serves_new_handshakes_and_open_connections_live_on(served, mounted):
    before = await serial(served)
    assert (await served.post(a_review()))[0] == 200
    (mounted / "..second").mkdir()
    issue(served.authority, mounted / "..second/tls.crt", mounted / "..second/tls.key")
    swap(mounted, "..second")
    await served.polls.passed()
    assert await serial(served) != before
    assert (await served.post(a_review()))[0] == 200
    assert served.errors == []


async def test_c45_a_connection_opened_before_the_swap_is_used_after_it(served, mounted):
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port, ssl=served.trust)
    (mounted / "..second").mkdir()
    issue(served.authority, mounted / "..second/tls.crt", mounted / "..second/tls.key")
    swap(mounted, "..second")
    await served.polls.passed()
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_c45_a_new_certificate_with_the_old_key_waits_for_its_key(served, mounted):
    before = await serial(served)
    (mounted / "..second").mkdir()
    issue(served.authority, mounted / "..second/tls.crt", mounted / "..second/late.key")
    shutil.copy(mounted / "..first/tls.key", mounted / "..second/tls.key")
    swap(mounted, "..second")
    await served.polls.passed()
    assert await serial(served) == before
    assert len(served.errors) >= 1
    assert "the pair before them stays in use" in served.errors[0]
    shutil.copy(mounted / "..second/late.key", mounted / "..second/tls.key")
    await served.polls.passed()
    assert await serial(served) != before


@pytest.mark.parametrize("content", [b"", b"not a certificate", None])
async def test_c45_an_empty_cut_or_missing_file_leaves_the_old_pair(served, mounted, content):
    before = await serial(served)
    if content is None:
        (mounted / "..first/tls.crt").unlink()
    else:
        (mounted / "..first/tls.crt").write_bytes(content)
    await served.polls.passed()
    assert await serial(served) == before
    assert served.errors
    assert served.server.ready


async def test_w6_without_a_certificate_the_server_is_not_ready_and_starts_when_it_comes(mounted):
    served = Served(mounted)
    kept = (served.certificate.read_bytes(), served.key.read_bytes())
    served.certificate.write_bytes(b"")
    polls = Polls()
    await served.start(sleep=polls.sleep)
    assert not served.server.ready
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await serial(served)
    served.certificate.write_bytes(kept[0])
    await polls.passed()
    assert served.server.ready
    assert (await served.post(a_review()))[0] == 200
    await served.stop()


async def test_w5_a_client_without_server_name_gets_the_newest_certificate_too(served, mounted):
    """An API server that calls a webhook by an address sends no server name."""
    (mounted / "..second").mkdir()
    issue(served.authority, mounted / "..second/tls.crt", mounted / "..second/tls.key")
    before = await serial(served)
    swap(mounted, "..second")
    await served.polls.passed()

    def handshake():
        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        served.authority.configure_trust(trust)
        trust.check_hostname = False
        with (
            socket.create_connection(("127.0.0.1", served.port), timeout=5) as plain,
            trust.wrap_socket(plain) as secure,
        ):
            return secure.getpeercert()["serialNumber"]

    assert await asyncio.to_thread(handshake) != before


def test_n4_the_end_of_validity_is_told(tmp_path):
    authority = trustme.CA()
    issue(authority, tmp_path / "c", tmp_path / "k")
    certificates = Certificates(tmp_path / "c", tmp_path / "k", on_error=pytest.fail)
    assert certificates.expires_at is None
    assert certificates.reload() is True
    assert certificates.reload() is False
    assert certificates.expires_at > 1_700_000_000_000


def test_c45_an_encrypted_key_is_an_error_and_no_question_on_a_terminal(tmp_path):
    from cryptography.hazmat.primitives import serialization

    authority = trustme.CA()
    issue(authority, tmp_path / "c", tmp_path / "k")
    key = serialization.load_pem_private_key((tmp_path / "k").read_bytes(), None)
    (tmp_path / "k").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    errors = []
    certificates = Certificates(tmp_path / "c", tmp_path / "k", on_error=errors.append)
    assert certificates.reload() is False
    assert "encrypted" in errors[0]
