"""A small client for the real-server tests: JSON over HTTPS, any user by impersonation, refusals as text."""

import json
import ssl
import tempfile
import time
import urllib.error
import urllib.request
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

PLURALS = {
    "Namespace": ("v1", "namespaces", False),
    "Node": ("v1", "nodes", False),
    "Pod": ("v1", "pods", True),
    "ConfigMap": ("v1", "configmaps", True),
    "Secret": ("v1", "secrets", True),
    "Service": ("v1", "services", True),
    "ServiceAccount": ("v1", "serviceaccounts", True),
    "StatefulSet": ("apps/v1", "statefulsets", True),
    "Job": ("batch/v1", "jobs", True),
    "ClusterRole": ("rbac.authorization.k8s.io/v1", "clusterroles", False),
    "ClusterRoleBinding": ("rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "MutatingWebhookConfiguration": (
        "admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", False,
    ),
    "ValidatingWebhookConfiguration": (
        "admissionregistration.k8s.io/v1", "validatingwebhookconfigurations", False,
    ),
    "ValidatingAdmissionPolicy": (
        "admissionregistration.k8s.io/v1", "validatingadmissionpolicies", False,
    ),
    "CustomResourceDefinition": ("apiextensions.k8s.io/v1", "customresourcedefinitions", False),
    "GPUClass": ("gpu.cozystack.io/v1alpha1", "gpuclasses", False),
    "GPUDevice": ("gpu.cozystack.io/v1alpha1", "gpudevices", True),
    "GPUNode": ("gpu.cozystack.io/v1alpha1", "gpunodes", False),
    "VirtualMachine": ("kubevirt.io/v1", "virtualmachines", True),
    "VirtualMachineInstance": ("kubevirt.io/v1", "virtualmachineinstances", True),
    "KubeVirt": ("kubevirt.io/v1", "kubevirts", True),
    "HelmRelease": ("helm.toolkit.fluxcd.io/v2", "helmreleases", True),
}  # fmt: skip
"""Kind to apiVersion, plural and whether it is namespaced."""


class Refused(Exception):
    """An answer of 400 or more; `code` and the API server's message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Api:
    """Requests with the credentials of a kubeconfig, or as another user with every right or with none."""

    def __init__(self, kubeconfig: Path, *, token: str = "", user: str = "", masters: bool = False) -> None:
        self.kubeconfig = kubeconfig
        config = yaml.safe_load(Path(kubeconfig).read_text())
        cluster, account = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.server = cluster["server"]
        self._context = _tls(cluster, account)
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if bearer := token or account.get("token", ""):
            self._headers["Authorization"] = f"Bearer {bearer}"
        if user:
            self._headers["Impersonate-User"] = user
            self._headers["Impersonate-Group"] = "system:masters" if masters else "system:authenticated"

    def as_user(self, user: str, *, masters: bool = True) -> "Api":
        """The same server as another user; `masters` takes RBAC out of the question."""
        return Api(self.kubeconfig, user=user, masters=masters)

    def with_token(self, token: str) -> "Api":
        return Api(self.kubeconfig, token=token)

    def call(self, method: str, path: str, body: Any = None, *, content: str = "", accept: str = "") -> Any:
        headers = self._headers | ({"Content-Type": content} if content else {})
        headers |= {"Accept": accept} if accept else {}
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.server + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, context=self._context, timeout=60) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise Refused(error.code, _message(error.read())) from None
        return json.loads(text) if text else None

    def create(self, manifest: dict[str, Any], namespace: str = "", *, dry_run: bool = False) -> Any:
        path = self.path(manifest["kind"], namespace or manifest["metadata"].get("namespace", ""))
        body = manifest | {"apiVersion": PLURALS[manifest["kind"]][0]}
        return self.call("POST", path + ("?dryRun=All" if dry_run else ""), body)

    def get(self, kind: str, name: str, namespace: str = "") -> Any:
        return self.call("GET", self.path(kind, namespace, name))

    def list(self, kind: str, namespace: str = "") -> list[Any]:
        return self.call("GET", self.path(kind, namespace))["items"]

    def delete(self, kind: str, name: str, namespace: str = "") -> None:
        self.call("DELETE", self.path(kind, namespace, name))

    def patch(self, kind: str, name: str, body: Any, namespace: str = "", *, sub: str = "") -> Any:
        path = self.path(kind, namespace, name) + (f"/{sub}" if sub else "")
        return self.call("PATCH", path, body, content="application/merge-patch+json")

    def table(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        """One object as `kubectl get` prints it: column name to cell."""
        accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
        table = self.call("GET", self.path(kind, namespace, name), accept=accept)
        columns = [column["name"] for column in table["columnDefinitions"]]
        return dict(zip(columns, table["rows"][0]["cells"], strict=True))

    def exists(self, kind: str, name: str, namespace: str = "") -> bool:
        try:
            self.get(kind, name, namespace)
        except Refused as refused:
            if refused.code == 404:
                return False
            raise
        return True

    def path(self, kind: str, namespace: str = "", name: str = "") -> str:
        version, plural, namespaced = PLURALS[kind]
        root = "/api/v1" if version == "v1" else f"/apis/{version}"
        inside = f"/namespaces/{namespace}" if namespaced and namespace else ""
        return f"{root}{inside}/{plural}" + (f"/{name}" if name else "")


def wait_until(condition: Callable[[], Any], what: str, seconds: float = 30.0) -> Any:
    """The first true value of `condition`; refusals in between count as false."""
    deadline = time.monotonic() + seconds
    last: object = None
    while time.monotonic() < deadline:
        try:
            if found := condition():
                return found
        except Refused as refused:
            last = refused
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} s: {what} ({last})")


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body).get("message", ""))
    except ValueError:
        return body.decode(errors="replace")


def _tls(cluster: dict[str, Any], account: dict[str, Any]) -> ssl.SSLContext:
    if cluster.get("insecure-skip-tls-verify"):
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif "certificate-authority-data" in cluster:
        context = ssl.create_default_context(cadata=b64decode(cluster["certificate-authority-data"]).decode())
    else:
        context = ssl.create_default_context(cafile=cluster.get("certificate-authority"))
    if "client-certificate" in account:
        context.load_cert_chain(account["client-certificate"], account["client-key"])
    elif "client-certificate-data" in account:
        with tempfile.NamedTemporaryFile() as pair:
            pair.write(b64decode(account["client-key-data"]) + b64decode(account["client-certificate-data"]))
            pair.flush()
            context.load_cert_chain(pair.name)
    return context
