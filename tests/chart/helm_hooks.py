"""Stands in for the kubelet for the chart's uninstall job: runs its command with its own account's token.

The real Job controller makes the pod and counts it; nothing else of a node is needed for a hook.
"""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import yaml

from tests.chart.api import Api, Refused
from tests.chart.charting import NAMESPACE, ROOT

FINALIZERS = {"GPUDevice": "gpu.cozystack.io/units", "GPUClass": "gpu.cozystack.io/class-in-use"}


class HookPlayer:
    """While entered, every pod of the job is run once. `ran` holds the arguments, `failed` what went wrong."""

    def __init__(self, server: Api, directory: Path) -> None:
        self._server = server
        self._directory = directory
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._play, daemon=True)
        self.ran: list[list[str]] = []
        self.failed: list[str] = []

    def __enter__(self) -> "HookPlayer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _play(self) -> None:
        done: set[str] = set()
        while not self._stop.wait(0.1):
            try:
                pods = self._server.list("Pod", NAMESPACE)
            except Refused:
                continue
            for pod in pods:
                component = pod["metadata"].get("labels", {}).get("app.kubernetes.io/component")
                if component == "uninstall" and pod["metadata"]["uid"] not in done:
                    done.add(pod["metadata"]["uid"])
                    self._run(pod)

    def _run(self, pod: dict[str, Any]) -> None:
        (container,) = pod["spec"]["containers"]
        self.ran.append(container["args"])
        token = token_of(self._server, pod["spec"]["serviceAccountName"])
        try:
            run_command(self._server, container["args"], token, self._directory)
            phase = "Succeeded"
        except Exception as error:
            self.failed.append(str(error))
            phase = "Failed"
        name = pod["metadata"]["name"]
        self._server.patch("Pod", name, {"status": {"phase": phase}}, NAMESPACE, sub="status")


def token_of(server: Api, account: str, bound_to: dict[str, Any] | None = None) -> str:
    """A token of a service account of the release, bound to a pod as the kubelet's are where one is given."""
    spec: dict[str, Any] = {"expirationSeconds": 3600}
    if bound_to:
        spec["boundObjectRef"] = {
            "kind": "Pod",
            "apiVersion": "v1",
            "name": bound_to["metadata"]["name"],
            "uid": bound_to["metadata"]["uid"],
        }
    path = server.path("ServiceAccount", NAMESPACE, account) + "/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    return str(server.call("POST", path, body)["status"]["token"])


def run_command(server: Api, arguments: list[str], token: str, directory: Path) -> None:
    """Run a `gpu-binder` command as that account. Raises with its output when it fails."""
    config = yaml.safe_load(server.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    path = directory / "hook.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    script = "from reconciler.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments, f"--kubeconfig={path}"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
