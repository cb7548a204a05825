"""One replica of the installed chart as a process of this machine, with the arguments the chart gives its pods.

Plays the kubelet for the StatefulSet: fills in what a pod would have (names, volumes, ports), leads the webhook
configurations here, and stops the process when the set is scaled to zero.
"""

import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import yaml

from tests.chart.api import Api, wait_until
from tests.chart.charting import CLUSTER_NAME, NAMESPACE, RELEASE, ROOT
from tests.chart.helm_hooks import token_of

CONFIGURATIONS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
POD = f"{RELEASE}-0"
READY_SECONDS = 60.0


class Replica:
    """A context: ready when entered, drained when left."""

    def __init__(self, server: Api, directory: Path) -> None:
        self._server = server
        self.directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._left = threading.Event()
        self._follower = threading.Thread(target=self._follow, daemon=True)
        self.log = directory / "run.log"
        self.webhook_port, self.metrics_port = _free_port(), _free_port()

    def __enter__(self) -> "Replica":
        command = ["-c", "from reconciler.main import main; main()", *self._arguments()]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=log, stderr=log)
        self._route()
        pod = {"metadata": {"finalizers": ["test.example/runs"]}}
        wait_until(lambda: self._server.patch("Pod", POD, pod, NAMESPACE), "the pod is made")
        self._follower.start()
        self._until_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self.stop()
        self._follower.join(60)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> int:
        """SIGTERM, as a kubelet does; the exit code."""
        assert self._process is not None
        if self.running:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=5) as answer:
            return str(answer.read().decode())

    def _arguments(self) -> list[str]:
        spec = self._server.get("StatefulSet", RELEASE, NAMESPACE)["spec"]["template"]["spec"]
        command, *flags = spec["containers"][0]["args"]
        given = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
        config = yaml.safe_load(self._server.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token_of(self._server, RELEASE)}
        kubeconfig = self.directory / "replica.kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(config))
        given |= {
            "namespace": NAMESPACE,
            "identity": f"{RELEASE}-0",
            "journal": str(self.directory / "journal.db"),
            "listen-host": "127.0.0.1",
            "listen-port": str(self.webhook_port),
            "metrics-host": "127.0.0.1",
            "metrics-port": str(self.metrics_port),
            "tls-cert": str(self.directory / "tls.crt"),
            "tls-key": str(self.directory / "tls.key"),
            "tls-ca": str(self.directory / "ca.crt"),
            "kubeconfig": str(kubeconfig),
        }
        return [command, *(f"--{name}={value}" for name, value in given.items())]

    def _route(self) -> None:
        """The configurations keep calling the Service, which is this machine, on this replica's port; their caBundle
        is the replica's own business, which may write them at the same moment."""

        def routed(kind: str) -> bool:
            found = self._server.get(kind, CLUSTER_NAME)
            for webhook in found["webhooks"]:
                webhook["clientConfig"]["service"]["port"] = self.webhook_port
            version = {"resourceVersion": found["metadata"]["resourceVersion"]}
            self._server.patch(kind, CLUSTER_NAME, {"metadata": version, "webhooks": found["webhooks"]})
            return True

        for kind in CONFIGURATIONS:
            wait_until(lambda kind=kind: routed(kind), "the webhooks are led here")

    def _until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        why: object = "not asked"
        while time.monotonic() < deadline and self.running:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/readyz", timeout=5).close()
                return
            except urllib.error.HTTPError as error:
                why = error.read().decode()
            except OSError as error:
                why = error
            time.sleep(0.2)
        self.__exit__()
        raise AssertionError(f"the replica is not ready: {why}\n{self.log.read_text()[-3000:]}")

    def _follow(self) -> None:
        """As a kubelet: the pod is gone only once its process is."""
        while self.running and not self._left.wait(0.1):
            if "deletionTimestamp" in self._server.get("Pod", POD, NAMESPACE)["metadata"]:
                self.stop()
        if self._server.exists("Pod", POD, NAMESPACE):
            self._server.patch("Pod", POD, {"metadata": {"finalizers": None}}, NAMESPACE)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
