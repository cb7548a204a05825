"""AdmissionReview v1: decodes the request fields the webhooks read, encodes the response.

Owns decoding (W5: malformed input becomes a denial or a 4xx, unknown fields are tolerated) and the response JSON. Knows
nothing of GPUs or HTTP.
Source: https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
"""

from __future__ import annotations

import base64
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec

from reconciler.core.admission.checks import Refusal
from reconciler.core.model.objects import Settings
from reconciler.core.model.vocabulary import Reason

MAX_REVIEW_BYTES = 3 * 1024 * 1024
"""etcd limits a request to 1.5 MiB; a review carries the object at most twice."""
MAX_MESSAGE_CHARACTERS = 4000
"""Denials are shown in terminals and stored in Events of at most 1 KiB."""

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"

Wanted = TypeVar("Wanted")


class UserInfo(msgspec.Struct, frozen=True):
    username: str = ""


class Request(msgspec.Struct, frozen=True, rename="camel"):
    """`request` of a review. `object` and `old_object` stay raw until a webhook decodes them; a dry run writes nothing
    (B5)."""

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
    """The request is denied. `message`: for the caller. `detail`: for the log and the journal, which may say more (N9).
    `code`: HTTP status returned to the client."""

    def __init__(
        self, reason: Reason | str, message: str, code: int = HTTPStatus.FORBIDDEN, *, detail: str = ""
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.detail = detail or message
        self.code = int(code)

    @classmethod
    def because(cls, refusal: Refusal, settings: Settings) -> Denied:
        """The denial of a refused request, in the words that the caller may read."""
        return cls(refusal.reason, refusal.text_for(settings.tenant_detail), detail=refusal.message)


class MalformedReview(Exception):
    """The body is not a valid review. `uid` is "" if not even that could be decoded; the response is then HTTP 400."""

    def __init__(self, message: str, uid: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.uid = uid


class Answer(msgspec.Struct, frozen=True):
    """The request is allowed, with a JSON patch (RFC 6902 operations) and warnings; a denial is `Denied`."""

    patch: tuple[dict[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()


ALLOWED = Answer()

_reviews = msgspec.json.Decoder(_Review)
_only_uid = msgspec.json.Decoder(_OnlyUid)


def read_review(body: bytes) -> Request:
    """Decode the request of a review. Raises `MalformedReview` with the decoder's position."""
    try:
        review = _reviews.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedReview(f"the body is no AdmissionReview: {_describe(error)}", _uid(body)) from None
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


def _describe(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def read_object(raw: msgspec.Raw, wanted: type[Wanted], field: str = "object") -> Wanted:
    """Decode an object of a review into the given type. Raises `Denied` naming the invalid field."""
    try:
        return msgspec.json.decode(raw, type=wanted)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Denied(
            Reason.MALFORMED_REVIEW,
            f"request.{field} cannot be read: {_describe(error)}; correct that field",
            HTTPStatus.BAD_REQUEST,
        ) from None


def render_allowed(uid: str, answer: Answer) -> bytes:
    """Encode an allowing review."""
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if answer.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(answer.patch)).decode()
    if answer.warnings:
        response["warnings"] = list(answer.warnings)
    return _render(response)


def render_denied(uid: str, denied: Denied) -> bytes:
    """Encode a denying review: HTTP code, stable reason, and `REASON: message`."""
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
