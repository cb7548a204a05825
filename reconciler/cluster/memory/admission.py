"""The admission chain: calls webhooks in order, applies their patches, and reinvokes them after later changes.

Owns the order, the selection, the AdmissionReview and the handling of responses (B4). The rules are those of
k8s.io/apiserver's mutating dispatcher: a webhook is called again at most once, only if it asks for it
(`reinvocation`) and another webhook changed the object after it, and then with a new review uid. Source:
https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import copy
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import jsonpatch
import jsonpointer
import msgspec

from reconciler.cluster.memory.json_objects import Document, labels_of
from reconciler.cluster.port import Rejected
from reconciler.core.model.objects import Kind

REVIEW_VERSION = "admission.k8s.io/v1"
DEFAULT_TIMEOUT_MS = 10_000
"""The API server's default."""
_OPTIONS = {"CREATE": "CreateOptions", "UPDATE": "PatchOptions", "DELETE": "DeleteOptions"}

Review = dict[str, Any]


class Webhook(msgspec.Struct, frozen=True):
    """One entry of a webhook configuration. `call` takes and returns an AdmissionReview as JSON values.

    `kinds`: kind names; `object_selector`: labels the object (or the old one) must carry; `reinvocation`:
    reinvocationPolicy IfNeeded; `fail_closed`: failurePolicy Fail.
    """

    name: str
    call: Callable[[Review], Awaitable[Review]]
    kinds: tuple[str, ...]
    operations: tuple[str, ...] = ("CREATE",)
    object_selector: Mapping[str, str] = {}
    mutating: bool = False
    reinvocation: bool = False
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    fail_closed: bool = True


class Identity(msgspec.Struct, frozen=True):
    """The authenticated caller."""

    username: str
    groups: tuple[str, ...] = ()


class Attributes(msgspec.Struct, frozen=True):
    """A request's attributes, apart from its object. `name` is "" until the server has generated one."""

    operation: str
    kind: Kind
    namespace: str
    name: str
    identity: Identity
    old: Document | None = None
    dry_run: bool = False


class Admission:
    """The registered webhooks. `new_uid` names reviews."""

    def __init__(self, new_uid: Callable[[], str]) -> None:
        self._new_uid = new_uid
        self._webhooks: dict[str, Webhook] = {}

    def register(self, webhook: Webhook) -> None:
        """Add a webhook, or replace the one of that name."""
        self._webhooks[webhook.name] = webhook

    def unregister(self, name: str) -> None:
        self._webhooks.pop(name, None)

    async def mutate(self, request: Attributes, document: Document) -> Document:
        """The object after the mutating webhooks, called in the order of their names. Raises `Rejected`."""
        chain = self._chain(mutating=True)
        called: list[Webhook] = []
        again: list[Webhook] = []
        for webhook in chain:
            if not _concerns(webhook, request, document):
                continue
            document, changed = await self._mutated(webhook, request, document)
            if changed:
                again.extend(called)
                called.clear()
            if webhook.reinvocation:
                called.append(webhook)
        for webhook in (each for each in chain if each in again):
            if _concerns(webhook, request, document):
                document, _ = await self._mutated(webhook, request, document)
        return document

    async def validate(self, request: Attributes, document: Document | None) -> None:
        """Call the validating webhooks. Raises `Rejected` with the first denial, by name."""
        for webhook in self._chain(mutating=False):
            if _concerns(webhook, request, document):
                await self._answer(webhook, request, document)

    def _chain(self, *, mutating: bool) -> list[Webhook]:
        return [self._webhooks[name] for name in sorted(self._webhooks) if self._webhooks[name].mutating == mutating]

    async def _mutated(self, webhook: Webhook, request: Attributes, document: Document) -> tuple[Document, bool]:
        response = await self._answer(webhook, request, document)
        try:
            patched = _patched(document, response)
        except (ValueError, TypeError, jsonpatch.JsonPatchException, jsonpointer.JsonPointerException) as error:
            _failed(webhook, f"its patch cannot be applied: {error}")
            return document, False
        return patched, patched != document

    async def _answer(self, webhook: Webhook, request: Attributes, document: Document | None) -> dict[str, Any]:
        """The response that allows the request, {} if the webhook failed open. Raises `Rejected`."""
        uid = self._new_uid()
        review = _review(uid, request, document)
        try:
            async with asyncio.timeout(webhook.timeout_ms / 1000):
                answer = await webhook.call(review)
        except TimeoutError:
            _failed(webhook, "failed to call webhook: context deadline exceeded")
            return {}
        except Exception as error:  # whatever a webhook raises is its failure, not the cluster's
            _failed(webhook, f"failed to call webhook: {type(error).__name__}: {error}")
            return {}
        response = answer.get("response") if isinstance(answer, dict) else None
        if not isinstance(response, dict) or response.get("uid") != uid:
            _failed(webhook, f"expected response.uid={uid!r}, got {(response or {}).get('uid', '')!r}")
            return {}
        if not response.get("allowed"):
            raise Rejected(_denial(webhook, response.get("status") or {}))
        return response


def _failed(webhook: Webhook, why: str) -> None:
    """Handle a failed call: refuse the request unless the webhook fails open."""
    if webhook.fail_closed:
        raise Rejected(f'Internal error occurred: failed calling webhook "{webhook.name}": {why}')


def _denial(webhook: Webhook, status: dict[str, Any]) -> str:
    said = f'admission webhook "{webhook.name}" denied the request'
    if why := status.get("message") or status.get("reason"):
        return f"{said}: {why}"
    return f"{said} without explanation"


def _concerns(webhook: Webhook, request: Attributes, document: Document | None) -> bool:
    if request.kind.name not in webhook.kinds or request.operation not in webhook.operations:
        return False
    wanted = webhook.object_selector.items()
    return any(wanted <= labels_of(each).items() for each in (document, request.old) if each is not None)


def _patched(document: Document, response: dict[str, Any]) -> Document:
    if not response.get("patch"):
        return document
    if response.get("patchType") != "JSONPatch":
        raise ValueError(f"patchType {response.get('patchType')!r} is not JSONPatch")
    try:
        operations = msgspec.json.decode(base64.b64decode(response["patch"], validate=True))
    except (binascii.Error, msgspec.DecodeError) as error:
        raise ValueError(str(error)) from error
    patched: Document = jsonpatch.JsonPatch(operations).apply(document)
    return patched


def _review(uid: str, request: Attributes, document: Document | None) -> Review:
    """An AdmissionReview as the API server sends it; empty name and namespace are left out, as it does."""
    kind = {"group": request.kind.group, "version": request.kind.version, "kind": request.kind.name}
    resource = {"group": request.kind.group, "version": request.kind.version, "resource": request.kind.plural}
    body: dict[str, Any] = {
        "uid": uid,
        "kind": kind,
        "resource": resource,
        "requestKind": dict(kind),
        "requestResource": dict(resource),
        "operation": request.operation,
        "userInfo": {"username": request.identity.username, "groups": list(request.identity.groups)},
        "object": copy.deepcopy(document),
        "oldObject": copy.deepcopy(request.old),
        "dryRun": request.dry_run,
        "options": {"kind": _OPTIONS[request.operation], "apiVersion": "meta.k8s.io/v1"},
    }
    body |= {field: value for field, value in (("name", request.name), ("namespace", request.namespace)) if value}
    return {"kind": "AdmissionReview", "apiVersion": REVIEW_VERSION, "request": body}
