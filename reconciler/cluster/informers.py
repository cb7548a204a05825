"""Runs an informer for every kind the model reads and reports their health to the liveness probe (R9, N7, N8).

Owns which kinds are watched and with which selectors; `informer` runs one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

from journal.events import Event
from reconciler.cluster.informer import Informer, Timing
from reconciler.cluster.port import Cluster, KindMissing
from reconciler.cluster.retry_policies import REREAD
from reconciler.core.model.objects import GPU_NODE, KINDS, RELEASE, SETTINGS
from reconciler.core.model.vocabulary import SETTINGS_CONFIGMAP, TENANT_KIND, TENANT_KIND_LABEL
from reconciler.core.state.placement_state import PlacementState

__all__ = ["InformerEnded", "Informers", "Timing"]


class InformerEnded(RuntimeError):
    """An informer ended for a reason other than the cluster: the process must exit (C38)."""


class Informers:
    """Informers of all kinds the model reads. `emit` is the loop's queue; `run` is one task."""

    def __init__(
        self,
        cluster: Cluster,
        emit: Callable[[Event], None],
        timing: Timing,
        *,
        settings_namespace: str,
        report_stale_ms: int,
        report_margin_ms: int = 0,
        restarted: Callable[[str, str], None] | None = None,
    ) -> None:
        """`settings_namespace`: namespace of the settings ConfigMap, the only one read (K4)."""
        selections = {
            SETTINGS.name: {"namespace": settings_namespace, "name": SETTINGS_CONFIGMAP},
            RELEASE.name: {"label_selector": f"{TENANT_KIND_LABEL}={TENANT_KIND}"},
        }
        self._timing = timing
        self.of: dict[str, Informer] = {
            kind.name: Informer(
                kind,
                cluster,
                emit,
                timing,
                report_stale_seconds=report_stale_ms / 1000,
                report_margin_seconds=report_margin_ms / 1000,
                selection=selections.get(kind.name),
                restarted=restarted,
                replaced=self._start_anew,
            )
            for kind in KINDS.values()
        }

    def seed(self, state: PlacementState) -> None:
        """Start from a state folded from a journal: an object deleted while no process was running is then reported
        as deleted, an unchanged one makes no event (U2, J3). Call before `run`."""
        for name, informer in self.of.items():
            informer.last_seen = state.now
            informer.cache.seed(
                state.objects[name].values(),
                (
                    ((found.namespace, found.name), found.uid, found.error)
                    for found in state.unreadable.values()
                    if found.kind == name
                ),
                state.silent if name == GPU_NODE.name else (),
            )

    def _start_anew(self) -> None:
        for informer in self.of.values():
            informer.start_anew()

    @property
    def synced(self) -> bool:
        return all(informer.synced for informer in self.of.values())

    @property
    def missing(self) -> list[str]:
        """Kinds that are not installed (N8)."""
        return [name for name, informer in self.of.items() if informer.missing]

    @property
    def restarts(self) -> dict[str, int]:
        """Restarts of list or watch by kind (N4)."""
        return {name: informer.restarts for name, informer in self.of.items()}

    def unhealthy(self, now: float) -> list[str]:
        """One sentence per kind whose watch has stalled (N7); `now` by the timer. While there is one, liveness fails
        and a leader decides nothing."""
        return [
            f"{name}: silent for {informer.silent_seconds(now):.0f} s"
            + (f" ({informer.problem})" if informer.problem else "")
            for name, informer in self.of.items()
            if informer.silent_seconds(now) > self._timing.stall_seconds
        ]

    async def run(self, stop: asyncio.Event) -> None:
        """Run every informer until `stop`. Raises `InformerEnded` as soon as one of them cannot go on."""
        tasks = {asyncio.create_task(informer.run(), name=f"informer {name}") for name, informer in self.of.items()}
        tasks.add(asyncio.create_task(self._silence(), name="report silence"))
        stopped = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*tasks, stopped):
                task.cancel()
            await asyncio.gather(*tasks, stopped, return_exceptions=True)
        for task in sorted(done & tasks, key=asyncio.Task.get_name):
            error = None if task.cancelled() else task.exception()
            raise InformerEnded(f"{task.get_name()} ended: {error!r}") from error

    async def reread(self, kind: str, namespace: str, name: str) -> None:
        """GET one object until there is an answer, and emit it: after a conflict the object counts as unknown until
        then (B6). Returns without an answer only if the kind is not installed."""
        with contextlib.suppress(KindMissing):
            reread = partial(self.of[kind].reread, namespace, name)
            await REREAD.call(reread, self._timing.sleep, jitter=self._timing.jitter)

    async def _silence(self) -> None:
        """Emit reports that become stale, at most a second late."""
        reports = self.of[GPU_NODE.name].cache
        while True:
            reports.silence(self._timing.timer())
            await self._timing.sleep(1.0)
