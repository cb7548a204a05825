"""W2: mutating webhook that starts a VMI with its GPUs or denies it with a reason.

Owns the order of checks on the VMI side; `binding` obtains the devices, `vmi` reads and patches the manifest.

The raw resource name policy is enforced here for every creator, including KubeVirt's service accounts: the admission
policy exempts VMIs of those users (K4).
"""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from reconciler.cluster.port import ClusterError, Rejected
from reconciler.core.model.references import TemplateReference
from reconciler.core.model.vocabulary import TENANT_PREFIX, RawNamePolicy, Reason
from webhooks.binding import BindClient
from webhooks.reader import DeviceReader
from webhooks.review import ALLOWED, Answer, Denied, Request, read_object
from webhooks.sets import DeviceSet, unknown_device
from webhooks.view import View
from webhooks.vmi import VmiManifest, constraints_of, entries_patch, raw_entries, references_of

BIND_SECONDS = 8.0
"""How long a start waits for the binder (B3). Higher makes the API slow for clients; lower makes a busy leader miss
starts it could serve."""
UNDO_SECONDS = 1.0
"""Reserved from the API server's timeout to undo before answering."""
EXPIRY_SECONDS = 2.0
"""Beyond the time for this answer, until an earlier start of the same VM can no longer succeed (B4): the API server's
call carries the timeout that the configuration registers, of which the answer has a little less."""


class MachineWebhook:
    """Mutates CREATE of VMIs that reference devices (W2). Raises `Denied`."""

    def __init__(
        self, view: View, reader: DeviceReader, binding: BindClient, *, bind_seconds: float = BIND_SECONDS
    ) -> None:
        self._view = view
        self._reader = reader
        self._binding = binding
        self._bind_seconds = bind_seconds

    async def __call__(self, request: Request, seconds: float) -> Answer:
        if request.operation != "CREATE":
            return ALLOWED
        vmi = read_object(request.object, VmiManifest)
        if not vmi.marked:
            return ALLOWED
        references = references_of(vmi)
        name = vmi.metadata.name or request.name
        if not name:
            raise Denied(
                Reason.NAME_REQUIRED,
                "a VMI with GPU devices needs metadata.name (generateName leaves it open who the devices are "
                "for); give it a name",
            )
        self._refuse_raw(request.namespace, vmi)
        self._refuse_terminating(request.namespace)
        wanted = DeviceSet(
            namespace=request.namespace,
            vmi_name=name,
            references=references,
            constraints=constraints_of(vmi),
        )
        try:
            return await self._start(vmi, wanted, seconds, bool(request.dry_run))
        except Rejected as error:
            raise Denied(
                Reason.NOT_READY,
                f"the devices of {wanted.vmi} could not be written: {error.message}; ask the hoster",
            ) from error
        except ClusterError as error:
            raise Denied(
                Reason.NOT_READY,
                f"the API server did not answer while {wanted.vmi} started: {error.message}; try again",
                HTTPStatus.SERVICE_UNAVAILABLE,
            ) from error

    async def _start(self, vmi: VmiManifest, wanted: DeviceSet, seconds: float, dry_run: bool) -> Answer:
        if await self._reader.vmi_exists(wanted.namespace, wanted.vmi_name):
            # The API server answers AlreadyExists; the running VMI's devices do not belong to this request (C16).
            return ALLOWED
        wanted = msgspec.structs.replace(
            wanted, orders={name: await self._order(wanted.namespace, name) for name in wanted.held}
        )
        units = self._units(wanted)
        wait = max(seconds / 2, min(self._bind_seconds, seconds - UNDO_SECONDS))
        await self._binding.bind(wanted, seconds=wait, dry_run=dry_run, expires_seconds=seconds + EXPIRY_SECONDS)
        return Answer(patch=entries_patch(vmi, units, self._view.effective_names))

    async def _order(self, namespace: str, name: str) -> TemplateReference:
        """Class and count of a held device's order."""
        device = self._reader.cached(namespace, name) or await self._reader.read(namespace, name)
        if device is None:
            raise unknown_device(namespace, name)
        return TemplateReference(device.class_name, device.count)

    def _units(self, wanted: DeviceSet) -> list[tuple[str, int]]:
        """Resource name and unit count of each reference, in order."""
        units = []
        for reference in wanted.references:
            order = reference if isinstance(reference, TemplateReference) else wanted.orders[reference.device]
            found = self._view.gpu_class(order.class_name)
            if found is None:
                known = ", ".join(each.name for each in self._view.classes()) or "none"
                raise Denied(
                    Reason.UNKNOWN_CLASS,
                    f"GPU class {order.class_name!r} does not exist; the classes here are: {known}",
                )
            units.append((found.resource_name, order.count))
        return units

    def _refuse_raw(self, namespace: str, vmi: VmiManifest) -> None:
        if self._view.settings.raw_name_policy is not RawNamePolicy.FORBIDDEN:
            return
        if not namespace.startswith(TENANT_PREFIX):
            return
        entries = raw_entries(vmi, self._view.effective_names)
        if entries:
            raise Denied(
                Reason.RAW_NAME_FORBIDDEN,
                f"GPUs are given by device reference here, not by resource name; remove {', '.join(entries[:5])}",
            )

    def _refuse_terminating(self, namespace: str) -> None:
        found = self._view.namespace(namespace)
        if found is not None and found.deleting is not None:
            raise Denied(
                Reason.NAMESPACE_TERMINATING,
                f"namespace {namespace} is being deleted and starts no VMs; use another namespace",
            )
