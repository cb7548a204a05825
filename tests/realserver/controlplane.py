"""etcd, kube-apiserver, kube-scheduler and kube-controller-manager on loopback, for one pytest session.

Owns the processes it starts and ends no other. Users are known by tokens; RBAC is on.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import trustme
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.realserver.binaries import find

ROOT = Path(__file__).resolve().parents[2]
USERS = {
    "admin": ("admin", "system:masters"),
    "virt-api": ("system:serviceaccount:cozy-kubevirt:kubevirt-apiserver", "system:masters"),
    "virt-controller": ("system:serviceaccount:cozy-kubevirt:kubevirt-controller", "system:masters"),
    "kubelet": ("system:node:players", "system:masters"),
    "tenant": ("alice", "tenants"),
    "binder": ("system:serviceaccount:cozy-gpu-binder:gpu-binder", "system:masters"),
}
"""Name in the tests: (user name, group). virt-controller and the kubelets may do everything, being played."""
READY_SECONDS = 120
END_SECONDS = 3
"""kube-apiserver waits up to a minute for the watches of its clients; the data outlives a kill."""

AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {
            "level": "Metadata",
            "verbs": ["create", "update", "patch", "delete"],
            "resources": [{"group": "gpu.cozystack.io"}],
        },
        {"level": "None"},
    ],
}
"""Every write of ours is told, and nothing else."""


CALLER_TOKEN = "token-of-the-api-server"


class ControlPlane:
    """A whole control plane. `directory` keeps certificates, logs and data."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.authority = trustme.CA()
        self.ca_path = directory / "ca.pem"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._etcd_url = ""

    # Life

    def start(self, definitions: Sequence[Path] = ()) -> None:
        """Start everything; ends it again when something does not come up. `definitions`: of custom kinds that are
        there before the controllers, as the garbage collector looks for new kinds twice a minute only."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._write_secrets()
        try:
            self._start_etcd()
            self.start_apiserver()
            if definitions:
                self.apply(*definitions)
                self.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
            self._start_controllers()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End what this object started, the newest first."""
        for name in reversed(list(self._processes)):
            self._end(name)

    def _start_controllers(self) -> None:
        manager = (
            f"--kubeconfig={self.kubeconfig('admin')}",
            "--leader-elect=false",
            "--secure-port=0",
        )
        self._run("kube-scheduler", *manager)
        self._run(
            "kube-controller-manager",
            *manager,
            f"--service-account-private-key-file={self.directory / 'sa.key'}",
            f"--root-ca-file={self.ca_path}",
            "--use-service-account-credentials=false",
            "--node-monitor-grace-period=3600s",
        )
        self._until(
            lambda: "default" in self._get("/api/v1/namespaces/default/serviceaccounts"),
            "kube-controller-manager",
        )

    def _write_admission(self) -> None:
        """The API server shows `CALLER_TOKEN` to every webhook; those that ask for no credentials ignore it."""
        callers = self.directory / "callers.kubeconfig"
        callers.write_text(
            json.dumps(
                {"apiVersion": "v1", "kind": "Config", "users": [{"name": "*", "user": {"token": CALLER_TOKEN}}]}
            )
        )
        group = "apiserver.config.k8s.io/v1"
        webhooks = {"apiVersion": group, "kind": "WebhookAdmissionConfiguration", "kubeConfigFile": str(callers)}
        names = ("MutatingAdmissionWebhook", "ValidatingAdmissionWebhook")
        plugins = [{"name": name, "configuration": webhooks} for name in names]
        body = {"apiVersion": group, "kind": "AdmissionConfiguration", "plugins": plugins}
        (self.directory / "admission.json").write_text(json.dumps(body))

    def start_apiserver(self) -> None:
        self._run(
            "kube-apiserver",
            f"--etcd-servers={self._etcd_url}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--tls-cert-file={self.directory / 'server.pem'}",
            f"--tls-private-key-file={self.directory / 'server.key'}",
            f"--token-auth-file={self.directory / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.directory / 'sa.pub'}",
            f"--service-account-signing-key-file={self.directory / 'sa.key'}",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--endpoint-reconciler-type=none",
            "--allow-privileged=true",
            f"--audit-policy-file={self.directory / 'audit-policy.json'}",
            f"--audit-log-path={self.directory / 'audit.log'}",
            f"--admission-control-config-file={self.directory / 'admission.json'}",
        )
        self._until(lambda: self._get("/readyz") == "ok", "kube-apiserver")

    def restart_apiserver(self) -> None:
        """As in an upgrade: every watch breaks. The controllers start anew, too: left alone they would look at what
        they knew before for up to half a minute."""
        self._end("kube-apiserver")
        self.start_apiserver()
        self._end("kube-controller-manager")
        self._end("kube-scheduler")
        self._start_controllers()

    def pause(self) -> None:
        """The API server falls silent without closing a connection."""
        self._processes["kube-apiserver"].send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._processes["kube-apiserver"].send_signal(signal.SIGCONT)

    # Use

    def token(self, user: str = "admin") -> str:
        return f"token-{user}"

    def kubeconfig(self, user: str = "admin", token: str = "") -> Path:
        """A kubeconfig of one user, or of any bearer token under the name `user`."""
        path = self.directory / f"{user.replace(':', '_')}.kubeconfig"
        cluster = {"server": self.url, "certificate-authority": str(self.ca_path)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token or self.token(user)}}],
        }
        path.write_text(json.dumps(content))
        return path

    def service_account_token(self, namespace: str, name: str) -> str:
        return self.kubectl("create", "token", name, "-n", namespace, "--duration=2h").stdout.strip()

    def kubectl(
        self, *arguments: str, user: str = "admin", stdin: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """kubectl as one of the users. Raises AssertionError with its words when it fails and `check` is set."""
        return self._tool("kubectl", [f"--kubeconfig={self.kubeconfig(user)}", *arguments], stdin, check)

    def helm(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self._tool("helm", [*arguments, f"--kubeconfig={self.kubeconfig('admin')}"], None, check)

    def apply(self, *documents: dict[str, Any] | str | Path, server_side: bool = True) -> None:
        """Apply manifests: values, text or files."""
        texts = [_text(document) for document in documents]
        extra = ("--server-side", "--force-conflicts") if server_side else ()
        self.kubectl("apply", *extra, "-f", "-", stdin="\n---\n".join(texts))

    def get(self, *arguments: str) -> Any:
        """`kubectl get … -o json`, decoded; None where it is not there."""
        done = self.kubectl("get", *arguments, "-o", "json", check=False)
        if done.returncode:
            assert "NotFound" in done.stderr, done.stderr
            return None
        return json.loads(done.stdout)

    def writes(self, resource: str, namespace: str = "") -> list[dict[str, Any]]:
        """Every write of a resource of ours the API server took, in order: audit events, dry runs left out."""
        found = []
        for line in (self.directory / "audit.log").read_text().splitlines():
            event = json.loads(line)
            object_ref = event.get("objectRef") or {}
            taken = event.get("responseStatus", {}).get("code", 500) < 300
            wanted = object_ref.get("resource") == resource and namespace in ("", object_ref.get("namespace"))
            if wanted and taken and "dryRun" not in event["requestURI"]:
                found.append(event)
        return found

    # Inside

    def _tool(
        self, name: str, arguments: list[str], stdin: str | None, check: bool
    ) -> subprocess.CompletedProcess[str]:
        home = {**os.environ, "HOME": str(self.directory)}
        done = subprocess.run(
            [str(find(name)), *arguments], input=stdin, capture_output=True, text=True, env=home, check=False
        )
        assert not check or done.returncode == 0, f"{name} {' '.join(arguments)}: {done.stderr}{done.stdout}"
        return done

    def _write_secrets(self) -> None:
        self._write_admission()
        certificate = self.authority.issue_cert("127.0.0.1", "localhost", "kubernetes.default.svc")
        self.authority.cert_pem.write_to_path(str(self.ca_path))
        for index, blob in enumerate(certificate.cert_chain_pems):
            blob.write_to_path(str(self.directory / "server.pem"), append=index > 0)
        certificate.private_key_pem.write_to_path(str(self.directory / "server.key"))
        lines = [f'token-{name},{user},{name},"{group}"' for name, (user, group) in USERS.items()]
        (self.directory / "tokens.csv").write_text("\n".join(lines) + "\n")
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (self.directory / "sa.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        (self.directory / "sa.pub").write_bytes(public)
        (self.directory / "audit-policy.json").write_text(json.dumps(AUDIT_POLICY))

    def _start_etcd(self) -> None:
        client, peer = free_port(), free_port()
        self._etcd_url = f"http://127.0.0.1:{client}"
        self._run(
            "etcd",
            f"--data-dir={self.directory / 'etcd'}",
            "--unsafe-no-fsync",
            f"--listen-client-urls={self._etcd_url}",
            f"--advertise-client-urls={self._etcd_url}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=default=http://127.0.0.1:{peer}",
        )

    def _run(self, name: str, *arguments: str) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen([str(find(name)), *arguments], stdout=log, stderr=log)

    def _end(self, name: str) -> None:
        process = self._processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _get(self, path: str) -> str:
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {self.token('admin')}"})
        context = ssl.create_default_context(cafile=str(self.ca_path))
        try:
            with urllib.request.urlopen(request, timeout=5, context=context) as answer:
                return str(answer.read().decode())
        except (OSError, urllib.error.URLError):
            return ""

    def _until(self, done: Any, what: str) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not done():
            ended = [name for name, process in self._processes.items() if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                blamed = ended[0] if ended else what
                log = self.directory / f"{blamed}.log"
                tail = log.read_text(errors="replace")[-3000:] if log.exists() else ""
                raise RuntimeError(f"{blamed} did not come up:\n{tail}")
            time.sleep(0.2)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _text(document: dict[str, Any] | str | Path) -> str:
    if isinstance(document, Path):
        return document.read_text()
    return document if isinstance(document, str) else yaml.safe_dump(document)


@contextlib.contextmanager
def running(directory: Path) -> Iterator[ControlPlane]:
    """A control plane with our CRDs and the foreign ones, for as long as the block runs."""
    plane = ControlPlane(directory)
    ours = (ROOT / "chart" / "files" / "crds").glob("*.yaml")
    foreign = (Path(__file__).parent / "foreign_crds").glob("*.yaml")
    plane.start([*sorted(ours), *sorted(foreign)])
    try:
        yield plane
    finally:
        plane.stop()
        shutil.rmtree(directory / "etcd", ignore_errors=True)
