"""Assembles all webhooks of a replica over one state and one cluster.

Owns the paths, which the chart's webhook configurations repeat. Called by `runtime.serve`, which serves the result.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial

import msgspec

from reconciler.cluster.port import Cluster
from reconciler.core.admission import checks
from reconciler.core.model.objects import Device
from reconciler.core.state.placement_state import PlacementState
from webhooks.binding import BindClient
from webhooks.clock import Clock
from webhooks.devices import DeviceWebhook
from webhooks.machines import BIND_SECONDS, MachineWebhook
from webhooks.pods import PodWebhook
from webhooks.reader import DeviceReader
from webhooks.server import Webhook
from webhooks.tenants import TenantWebhook


def _request_id() -> str:
    return str(uuid.uuid4())


class Admission(msgspec.Struct, frozen=True):
    """`routes`: path to webhook. `binding`: await its `finish_undoing` at shutdown."""

    routes: dict[str, Webhook]
    binding: BindClient


def admission(
    state: PlacementState,
    cluster: Cluster,
    *,
    clock: Clock | None = None,
    new_id: Callable[[], str] = _request_id,
    bind_seconds: float = BIND_SECONDS,
    on_bind: Callable[[str, float], None] = lambda outcome, seconds: None,
    on_conflict: Callable[[], None] = lambda: None,
) -> Admission:
    """Webhooks W1 to W4 over this replica's state. `on_bind` and `on_conflict`: see `BindClient`."""
    reader = DeviceReader(cluster, state)
    binding = BindClient(
        cluster,
        state,
        check_start=partial(checks.check_start, state),
        check_device=partial(_check_device, state),
        new_id=new_id,
        clock=clock,
        on_bind=on_bind,
        on_conflict=on_conflict,
    )
    routes: dict[str, Webhook] = {
        "/admit/devices": DeviceWebhook(state, partial(checks.check_order, state)),
        "/admit/machines": MachineWebhook(state, reader, binding, bind_seconds=bind_seconds),
        "/admit/pods": PodWebhook(reader),
        "/admit/tenants": TenantWebhook(state),
    }
    return Admission(routes, binding)


def _check_device(state: PlacementState, vmi_name: str, device: Device) -> checks.Refusal | None:
    start = checks.Start(namespace=device.namespace, vmi_name=vmi_name, devices=(device,))
    return checks.device_unusable(state, start)
