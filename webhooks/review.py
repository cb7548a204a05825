"""AdmissionReview v1: the request as far as the webhooks read it, the answer as the API server expects it.

Owns decoding (W5: anything malformed becomes a clean denial or a 4xx, unknown fields are tolerated) and the
answer's JSON. Knows nothing of GPUs or of HTTP.
Source: https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
"""

from __future__ import annotations

import base64
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec

from reconciler.core.model.vocabulary import Reason

MAX_REVIEW_BYTES = 3 * 1024 * 1024
"""etcd's limit on a request is 1.5 MiB; a review carries at most the object twice."""
MAX_MESSAGE_CHARACTERS = 4000
"""A denial is shown on terminals and kept in events of at most 1 KiB; more helps nobody."""

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"

Wanted = TypeVar("Wanted")


class UserInfo(msgspec.Struct, frozen=True):
    username: str = ""


class Request(msgspec.Struct, frozen=True, rename="camel"):
    """`request` of a review. `object` and `old_object` stay raw until a webhook knows their kind; a dry run
    writes nothing (B5)."""

    uid: str
    operation: str
    namespace: str = ""
    name: str = ""
    user_info: UserInfo = UserInfo()
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")
    dry_run: bool | None = False

    @property
    def user(self) -> str:
        return self.user_info.username


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    request: Request


class _OnlyUid(msgspec.Struct, frozen=True):
    class _Request(msgspec.Struct, frozen=True):
        uid: str

    request: _Request


class Denied(Exception):
    """The answer is no. `code` is the HTTP status a client sees."""

    def __init__(self, reason: Reason | str, message: str, code: int = HTTPStatus.FORBIDDEN) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.code = int(code)


class MalformedReview(Exception):
    """Not a review this webhook can answer. `uid` is "" where not even that could be read: only an HTTP 400
    is left."""

    def __init__(self, message: str, uid: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.uid = uid


class Answer(msgspec.Struct, frozen=True):
    """A yes with its JSON patch (RFC 6902 operations) and warnings; a no is `Denied`."""

    patch: tuple[dict[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()


ALLOWED = Answer()

_reviews = msgspec.json.Decoder(_Review)
_only_uid = msgspec.json.Decoder(_OnlyUid)


def read_review(body: bytes) -> Request:
    """The request of a review. Raises `MalformedReview` with the position the decoder gives."""
    try:
        review = _reviews.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedReview(f"the body is no AdmissionReview: {_why(error)}", _uid(body)) from None
    if review.api_version != API_VERSION or review.kind != KIND:
        raise MalformedReview(
            f"expected {KIND} of {API_VERSION}, got {review.kind[:60]!r} of {review.api_version[:60]!r}",
            review.request.uid,
        )
    if not review.request.uid:
        raise MalformedReview("request.uid is empty")
    return review.request


def _uid(body: bytes) -> str:
    try:
        return _only_uid.decode(body).request.uid
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def _why(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def read_object(raw: msgspec.Raw, wanted: type[Wanted], field: str = "object") -> Wanted:
    """An object of a review in the shape a webhook reads. Raises `Denied` naming the field that does not
    fit."""
    try:
        return msgspec.json.decode(raw, type=wanted)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Denied(
            Reason.MALFORMED_REVIEW,
            f"request.{field} cannot be read: {_why(error)}; correct that field",
            HTTPStatus.BAD_REQUEST,
        ) from None


def render_allowed(uid: str, answer: Answer) -> bytes:
    """The review that says yes."""
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if answer.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(answer.patch)).decode()
    if answer.warnings:
        response["warnings"] = list(answer.warnings)
    return _render(response)


def render_denied(uid: str, denied: Denied) -> bytes:
    """The review that says no: HTTP code, stable reason, and `REASON: sentence` for people."""
    message = f"{denied.reason}: {denied.message}"
    if len(message) > MAX_MESSAGE_CHARACTERS:
        message = message[: MAX_MESSAGE_CHARACTERS - 1] + "…"
    status = {
        "status": "Failure",
        "code": denied.code,
        "reason": str(denied.reason),
        "message": message,
    }
    return _render({"uid": uid, "allowed": False, "status": status})


def _render(response: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": KIND, "response": response})


def pointer(*parts: str | int) -> str:
    """A JSON pointer (RFC 6901)."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)
