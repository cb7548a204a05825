"""Records this replica's denials in its journal before they are answered, so that each can be explained (J7).

Owns what is kept of a denied request: subject, reason and requested values in the model's types, never the manifest
(J3). Dry runs are not recorded (B5).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from journal.events import AdmissionRefused
from reconciler.core.model.decode_workload import OwnerReference, virtual_machine
from reconciler.core.model.objects import DEVICE, VMI, Owner
from reconciler.core.model.references import DeviceReference, TemplateReference
from reconciler.core.model.start_request import StartRequest
from webhooks.refusal_log import RefusalLog
from webhooks.review import Answer, Denied, Request, read_object
from webhooks.server import Webhook
from webhooks.vmi import VmiManifest, constraints_of, references_of


class _OrderSpec(msgspec.Struct, rename="camel"):
    class_name: str = ""
    count: int = 1


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    owner_references: tuple[OwnerReference, ...] | None = None


class _Owned(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class _Order(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _OrderSpec = msgspec.field(default_factory=_OrderSpec)


def wanted_of_order(request: Request) -> tuple[str, StartRequest]:
    """(name, requested values) of a GPUDevice."""
    order = read_object(request.object, _Order)
    return order.metadata.name, StartRequest(templates=((order.spec.class_name, order.spec.count),))


def wanted_of_start(request: Request) -> tuple[str, StartRequest]:
    """(name, requested values) of a VMI."""
    vmi = read_object(request.object, VmiManifest)
    references = references_of(vmi)
    return vmi.metadata.name, StartRequest(
        devices=tuple(found.device for found in references if isinstance(found, DeviceReference)),
        templates=tuple(
            (found.class_name, found.count) for found in references if isinstance(found, TemplateReference)
        ),
        constraints=constraints_of(vmi),
    )


def owner_of(request: Request) -> Owner | None:
    """The VirtualMachine that controls the VMI; None if there is none or the object cannot be read."""
    try:
        owned = read_object(request.object, _Owned)
    except Denied:
        return None
    return virtual_machine(owned.metadata.owner_references or ())


class Recording:
    """A webhook whose denials are recorded."""

    def __init__(
        self,
        webhook: Webhook,
        kind: str,
        wanted: Callable[[Request], tuple[str, StartRequest]],
        record: Callable[[AdmissionRefused], None],
    ) -> None:
        self._webhook = webhook
        self._kind = kind
        self._wanted = wanted
        self._record = record

    async def __call__(self, request: Request, seconds: float) -> Answer:
        try:
            return await self._webhook(request, seconds)
        except Denied as denied:
            if not request.dry_run and request.operation == "CREATE":
                self._record(self._event(request, denied))
            raise

    def _event(self, request: Request, denied: Denied) -> AdmissionRefused:
        try:
            name, wanted = self._wanted(request)
        except Denied:
            name, wanted = request.name, StartRequest()
        if self._kind == VMI.name:
            wanted = msgspec.structs.replace(wanted, owner=owner_of(request))
        return AdmissionRefused(
            kind=self._kind,
            namespace=request.namespace,
            name=name or request.name,
            request=request.uid,
            reason=str(denied.reason),
            message=denied.detail,
            public=denied.message if denied.message != denied.detail else "",
            wanted=msgspec.Raw(msgspec.json.encode(wanted)),
        )


RECORDED = {
    "/admit/devices": (DEVICE.name, wanted_of_order),
    "/admit/machines": (VMI.name, wanted_of_start),
}
"""Paths whose denials are recorded: orders and starts."""


def recording(
    routes: dict[str, Webhook], record: Callable[[AdmissionRefused], None], clock: Callable[[], int]
) -> dict[str, Webhook]:
    """Wrap the routes so that their denials are recorded, within the bounds of `RefusalLog`. `clock`: ms since the
    epoch."""
    log = RefusalLog(record, clock)
    return {
        path: Recording(webhook, *RECORDED[path], log) if path in RECORDED else webhook
        for path, webhook in routes.items()
    }
