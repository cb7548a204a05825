"""`gpu-binder run` as a process of its own against the control plane, to be killed and started again."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp

from tests.realserver.controlplane import ROOT, ControlPlane, free_port

NAMESPACE = "cozy-gpu-binder"
READY_SECONDS = 60


class Binder:
    """One replica. Its ports, certificate and journal stay over restarts."""

    def __init__(self, plane: ControlPlane, directory: Path, name: str = "binder-0", *flags: str) -> None:
        self.plane = plane
        self.directory = directory
        self.name = name
        self.flags = flags
        self.journal = directory / f"{name}.db"
        self.port = free_port()
        self.metrics_port = free_port()
        self.log = directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        certificate = plane.authority.issue_cert("127.0.0.1", "localhost")
        self._certificate, self._key = directory / f"{name}.pem", directory / f"{name}.key"
        certificate.private_key_pem.write_to_path(str(self._key))
        for index, blob in enumerate(certificate.cert_chain_pems):
            blob.write_to_path(str(self._certificate), append=index > 0)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    async def start(self, *, ready: bool = True) -> None:
        """Start the process and wait until it serves."""
        command = [
            sys.executable,
            "-c",
            "from reconciler.main import main; main()",
            "run",
            f"--namespace={NAMESPACE}",
            f"--identity={self.name}",
            f"--journal={self.journal}",
            f"--kubeconfig={self.plane.kubeconfig('binder')}",
            "--listen-host=127.0.0.1",
            f"--listen-port={self.port}",
            "--metrics-host=127.0.0.1",
            f"--metrics-port={self.metrics_port}",
            f"--tls-cert={self._certificate}",
            f"--tls-key={self._key}",
            "--lost-grace-seconds=4",
            "--attach-grace-seconds=17",
            "--settle-seconds=3",
            "--drain-seconds=0",
            "--lease-seconds=4",
            "--renew-seconds=3",
            "--retry-seconds=0.5",
            *self.flags,
        ]
        self._spawn(command)
        if ready:
            await self.until_ready()

    def _spawn(self, command: list[str]) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=environment)

    async def until_ready(self) -> None:
        for _ in range(READY_SECONDS * 10):
            if await self._answers("/readyz"):
                return
            assert self._process is not None
            assert self._process.poll() is None, f"the binder ended:\n{self.log.read_text()[-4000:]}"
            await asyncio.sleep(0.1)
        raise AssertionError(f"the binder did not become ready:\n{self.log.read_text()[-4000:]}")

    async def leads(self) -> bool:
        return "gpu_binder_leader 1.0" in await self.metrics()

    async def metrics(self) -> str:
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return await answer.text()

    async def _answers(self, path: str) -> bool:
        try:
            url = f"http://127.0.0.1:{self.metrics_port}{path}"
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    def kill(self) -> None:
        """SIGKILL: nothing is drained."""
        self._end(signal.SIGKILL)

    async def stop(self) -> int:
        """SIGTERM; the exit code (N1)."""
        return await asyncio.to_thread(self._end, signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(how)
        try:
            code = self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._process = None
        return code
