"""The whole product on the in-memory cluster: replicas with their webhooks registered and simulated controllers.

Owns the assembly for the demo, the scenarios and the simulation. The parts are those of `gpu-binder run`; only the
port and the path from API server to webhook are in-process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from journal.store import Journal
from reconciler.cluster.informers import Timing
from reconciler.cluster.memory import MemoryCluster, Webhook
from reconciler.core.model.objects import DEVICE, POD, RELEASE, VMI, Settings
from reconciler.core.model.vocabulary import (
    DEVICES_LABEL,
    KUBEVIRT_LABEL,
    LAUNCHER,
    TENANT_KIND,
    TENANT_KIND_LABEL,
    TRUE,
)
from reconciler.runtime.controller import Controller, LeaseTimes
from reconciler.runtime.loop import Observer
from webhooks.clock import Clock
from webhooks.recording import recording
from webhooks.review import Denied, MalformedReview, read_review, render_allowed, render_denied
from webhooks.routes import Admission, admission
from webhooks.server import Webhook as Handler

SERVICE_ACCOUNT = "system:serviceaccount:cozy-gpu-binder:gpu-binder"
NAMESPACE = "cozy-gpu-binder"
REVIEW_SECONDS = 10.0


class Replica:
    """One controller and its webhooks, running on a memory cluster."""

    def __init__(
        self,
        cluster: MemoryCluster,
        journal: Journal,
        settings: Settings,
        *,
        identity: str,
        timing: Timing,
        build: str = "embedded",
        lease_times: LeaseTimes | None = None,
        observers: Sequence[Observer] = (),
        bind_seconds: float = 8.0,
        snapshot_every: int = 20_000,
        new_id: Callable[[], str] | None = None,
    ) -> None:
        """`new_id`: names bind requests; random ones otherwise."""
        port = cluster.as_user(settings.writer or SERVICE_ACCOUNT)
        self.controller = Controller(
            port,
            journal,
            settings,
            identity=identity,
            build=build,
            timing=timing,
            lease_times=lease_times,
            observers=observers,
            snapshot_every=snapshot_every,
        )
        clock = Clock(now=timing.clock, monotonic=timing.timer, sleep=timing.sleep)
        named: dict[str, Any] = {} if new_id is None else {"new_id": new_id}
        self.admission: Admission = admission(
            self.controller.state, port, clock=clock, bind_seconds=bind_seconds, **named
        )
        self.routes = recording(self.admission.routes, self.controller.refused, timing.clock)
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def state(self) -> Any:
        return self.controller.state

    def start(self) -> None:
        """Run the controller in a task."""
        self._task = asyncio.ensure_future(self.controller.run(self._stop))

    @property
    def failed(self) -> BaseException | None:
        """The error that ended the controller, None while it runs."""
        if self._task is None or not self._task.done() or self._task.cancelled():
            return None
        return self._task.exception()

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    async def stop(self) -> None:
        """Drain and stop, as on SIGTERM (N1)."""
        await self.admission.binding.finish_undoing()
        self._stop.set()
        if self._task is not None:
            await self._task

    async def kill(self) -> None:
        """Stop at once, as on SIGKILL: nothing is drained or saved."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for task in list(self.controller.writer.tasks):
            task.cancel()


def register(cluster: MemoryCluster, replica: Replica) -> None:
    """Register a replica's webhooks as the chart does; the replica registered last serves them."""
    routes = replica.routes
    tenant_label = {TENANT_KIND_LABEL: TENANT_KIND}
    launcher_labels = {DEVICES_LABEL: TRUE, KUBEVIRT_LABEL: LAUNCHER}
    hooks = (
        Webhook(
            name="devices.gpu-binder",
            call=_call(replica, routes["/admit/devices"]),
            kinds=(DEVICE.name,),
            operations=("CREATE", "UPDATE"),
        ),
        Webhook(
            name="machines.gpu-binder",
            call=_call(replica, routes["/admit/machines"]),
            kinds=(VMI.name,),
            object_selector={DEVICES_LABEL: TRUE},
            mutating=True,
            reinvocation=True,
        ),
        Webhook(
            name="pods.gpu-binder",
            call=_call(replica, routes["/admit/pods"]),
            kinds=(POD.name,),
            object_selector=launcher_labels,
            mutating=True,
            reinvocation=True,
        ),
        Webhook(
            name="tenants.gpu-binder",
            call=_call(replica, routes["/admit/tenants"]),
            kinds=(RELEASE.name,),
            operations=("CREATE", "UPDATE"),
            object_selector=tenant_label,
        ),
    )
    for hook in hooks:
        cluster.admission.register(hook)


def _call(replica: Replica, handler: Handler) -> Any:
    async def call(review: dict[str, Any]) -> dict[str, Any]:
        try:
            request = read_review(msgspec.json.encode(review))
        except MalformedReview as error:
            return _plain(render_denied(error.uid, Denied("MalformedReview", error.message)))
        if not replica.controller.synced:
            return _plain(render_denied(request.uid, Denied("NotReady", "the caches are not synced")))
        try:
            return _plain(render_allowed(request.uid, await handler(request, REVIEW_SECONDS)))
        except Denied as denied:
            return _plain(render_denied(request.uid, denied))

    return call


def _plain(answer: bytes) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(answer)
    return found
