"""A decision as a value: the action, its subject, the reason, and the ordered writes that carry it out.

Owns the journaled schema; `decide` makes decisions, `fold` assumes their writes, the loop sends them. A write carries
both the patch and the resulting object, so that people can read the journal and `fold` can apply it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from reconciler.core.model.objects import Kind, Model, Object


class Action(StrEnum):
    """What a decision does."""

    FENCE = "Fence"
    """Touch a device so that no write decided under an older leadership can land (J5)."""
    GUARD = "Guard"
    """Put our finalizer on a device or class before it counts (O2, P6)."""
    HOLD = "Hold"
    """Accept an order: Pending becomes Held (P1b)."""
    REFUSE_ORDER = "RefuseOrder"
    """Leave an order Pending and say why (P1b)."""
    BIND = "Bind"
    """Place a set on one node and answer its request (B2)."""
    REFUSE_BIND = "RefuseBind"
    """Answer a request with a reason (B2)."""
    RELEASE = "Release"
    """Detach a device whose VMI is gone; its order stays Held (P5)."""
    DELETE = "Delete"
    """Delete a template device whose VMI is gone (P5)."""
    FINALIZE = "Finalize"
    """Let go of an object that is being deleted (O2, P6)."""
    AWAIT = "Await"
    """Mark a deleted device whose units are still in use as Releasing (O2)."""
    LOSE = "Lose"
    """Take the units of a device whose node no longer serves them (P4)."""
    RESTORE = "Restore"
    """Give a Lost device its units back (P4)."""
    PUBLISH_CLASS = "PublishClass"
    """Write a class's units and conditions (O1)."""
    PUBLISH_SETTINGS = "PublishSettings"
    """Write the settings ConfigMap (K4)."""


class Verb(StrEnum):
    """How a write is sent: a merge patch of the status, of the object, a delete, a create."""

    STATUS = "status"
    PATCH = "patch"
    DELETE = "delete"
    CREATE = "create"


class Write(Model, frozen=True, kw_only=True):
    """One conditional write. `body` is the merge patch without its precondition (`uid`, `resource_version`);
    `after` is the model's object once the write has landed."""

    kind: str
    namespace: str
    name: str
    uid: str
    resource_version: str
    verb: Verb
    body: dict[str, Any] = {}
    after: msgspec.Raw

    @property
    def key(self) -> str:
        """What the pending write is filed under: the uid, or the address of an object to be created."""
        return self.uid or f"{self.kind}/{self.namespace}/{self.name}"


class Decision(Model, frozen=True, kw_only=True):
    """`subject`: "NAMESPACE/NAME" or a name. `missing`: units lacking for a yes. `request_id`: of a bind. `public`: the
    message as tenants may read it, "" where it is the message (N9)."""

    action: Action
    kind: str
    subject: str
    request_id: str = ""
    node: str = ""
    reason: str = ""
    message: str = ""
    missing: int = 0
    public: str = ""
    writes: tuple[Write, ...] = ()


def write(kind: Kind, before: Object, after: Object, verb: Verb, body: dict[str, Any]) -> Write:
    """A write on `before` under its uid and version."""
    return Write(
        kind=kind.name,
        namespace=before.namespace,
        name=before.name,
        uid=before.uid,
        resource_version=before.resource_version,
        verb=verb,
        body=body,
        after=msgspec.Raw(msgspec.json.encode(after)),
    )
