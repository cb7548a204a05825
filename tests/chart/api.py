"""The API server for the real-server tests: dicts in and out, any user by impersonation, refusals as text."""

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kubernetes import config
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import DynamicApiError, ResourceNotFoundError


class Refused(Exception):
    """An answer of 400 or more; `code` and the API server's message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Api:
    """Requests with the credentials of a kubeconfig, or as another user with every right or with none. A kind is
    named without its group and taken in the version the API server prefers."""

    def __init__(self, kubeconfig: Path, *, token: str = "", user: str = "", masters: bool = False) -> None:
        self.kubeconfig = kubeconfig
        client = config.new_client_from_config(str(kubeconfig), persist_config=False)
        if token:
            client.configuration.api_key["BearerToken"] = f"Bearer {token}"
            client.configuration.refresh_api_key_hook = None  # It would bring the kubeconfig's token back.
        if user:
            client.set_default_header("Impersonate-User", user)
            client.set_default_header("Impersonate-Group", "system:masters" if masters else "system:authenticated")
        self._client = DynamicClient(client, cache_file=str(kubeconfig.with_suffix(".discovery")))
        self.resource = functools.cache(self._discovered)

    def as_user(self, user: str, *, masters: bool = True) -> "Api":
        """The same server as another user; `masters` takes RBAC out of the question."""
        return Api(self.kubeconfig, user=user, masters=masters)

    def with_token(self, token: str) -> "Api":
        return Api(self.kubeconfig, token=token)

    def call(self, method: str, path: str, body: Any = None, **given: Any) -> Any:
        """`given`: what else `DynamicClient.request` takes. Raises `Refused`."""
        try:
            return self._client.request(method, path, body, serializer=lambda _, answer: answer, **given)
        except DynamicApiError as error:
            raise Refused(error.status, error.summary()) from None

    def create(self, manifest: dict[str, Any], namespace: str = "", *, dry_run: bool = False) -> Any:
        path = self.path(manifest["kind"], namespace or manifest["metadata"].get("namespace", ""))
        body = manifest | {"apiVersion": self.resource(manifest["kind"]).group_version}
        return self.call("POST", path, body, dry_run="All" if dry_run else None)

    def get(self, kind: str, name: str, namespace: str = "") -> Any:
        return self.call("GET", self.path(kind, namespace, name))

    def list(self, kind: str, namespace: str = "", **given: Any) -> list[Any]:
        return self.call("GET", self.path(kind, namespace), **given)["items"]

    def delete(self, kind: str, name: str, namespace: str = "", **given: Any) -> None:
        self.call("DELETE", self.path(kind, namespace, name), **given)

    def patch(self, kind: str, name: str, body: Any, namespace: str = "", *, sub: str = "") -> Any:
        path = self.path(kind, namespace, name) + (f"/{sub}" if sub else "")
        return self.call("PATCH", path, body, content_type="application/merge-patch+json")

    def table(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        """One object as `kubectl get` prints it: column name to cell."""
        accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
        table = self.call("GET", self.path(kind, namespace, name), header_params=accept)
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
        return self.resource(kind).path(name=name or None, namespace=namespace or None)

    def _discovered(self, kind: str) -> Any:
        """What the API server says of a kind. Raises `Refused` while it does not serve it."""
        try:
            return self._client.resources.get(kind=kind, preferred=True)
        except ResourceNotFoundError as missing:
            raise Refused(404, str(missing)) from None


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
