"""Uninstalls gpu-binder without leaving behind anything that blocks the cluster (N6, C47).

Owns the order: webhook configurations first (so nothing fails closed), then the controller (it would restore
finalizers), then our finalizers, so that no object or namespace waits for a controller that is gone. Every step is
idempotent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from reconciler.cluster.port import Cluster, ClusterError, Conflict, KindMissing, NotFound, Unavailable
from reconciler.cluster.retry_policies import UNINSTALL
from reconciler.core.model.objects import CLASS, DEVICE, MUTATING_WEBHOOKS, STATEFUL_SET, VALIDATING_WEBHOOKS, Kind
from reconciler.core.model.vocabulary import CLASS_FINALIZER, DEVICE_FINALIZER

ROUNDS = 20
"""Lists of one kind at most: each round leaves only what conflicted or was made meanwhile."""
PAUSE_SECONDS = 1.0
STOP_SECONDS = 120.0
"""How long the controller's pods may take to end; above their grace period."""


class UninstallIncomplete(RuntimeError):
    """Something that blocks the cluster is left; the message names it and the remedy."""


class Uninstalled(msgspec.Struct, frozen=True):
    """What was removed; zeros on a second run."""

    configurations: int = 0
    stopped: bool = False
    devices: int = 0
    classes: int = 0


class Preview(msgspec.Struct, frozen=True):
    """What an uninstall would change: the kinds of the webhook configurations, the replicas to scale to zero (None: no
    such StatefulSet), and how many devices and classes carry our finalizer."""

    configurations: tuple[str, ...] = ()
    replicas: int | None = None
    devices: int = 0
    classes: int = 0


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    finalizers: list[str] | None = None


class _Item(msgspec.Struct):
    metadata: _Metadata


class _List(msgspec.Struct):
    items: list[_Item] | None = None


class _Status(msgspec.Struct):
    replicas: int = 0


class _Spec(msgspec.Struct):
    replicas: int = 1


class _Workload(msgspec.Struct):
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


async def uninstall(
    cluster: Cluster,
    webhook_config_name: str,
    *,
    namespace: str = "",
    workload: str = "",
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Uninstalled:
    """Remove everything that would block. `workload`: the controller's StatefulSet in `namespace`, "" if none runs.
    Raises `UninstallIncomplete`, or the port's errors other than a passing `Unavailable`."""
    removed = 0
    for kind in (VALIDATING_WEBHOOKS, MUTATING_WEBHOOKS):
        removed += await UNINSTALL.call(partial(_delete, cluster, kind, webhook_config_name), sleep)
    stopped = bool(workload) and await _stop(cluster, namespace, workload, sleep)
    devices = await _release_all(cluster, DEVICE, DEVICE_FINALIZER, sleep)
    classes = await _release_all(cluster, CLASS, CLASS_FINALIZER, sleep)
    return Uninstalled(configurations=removed, stopped=stopped, devices=devices, classes=classes)


async def preview(
    cluster: Cluster,
    webhook_config_name: str,
    *,
    namespace: str = "",
    workload: str = "",
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Preview:
    """What `uninstall` would do with these arguments; only reads. Raises the port's errors other than a passing
    `Unavailable`."""
    found = [
        kind.name
        for kind in (VALIDATING_WEBHOOKS, MUTATING_WEBHOOKS)
        if await _found(cluster, kind, "", webhook_config_name, sleep) is not None
    ]
    answer = await _found(cluster, STATEFUL_SET, namespace, workload, sleep) if workload else None
    return Preview(
        configurations=tuple(found),
        replicas=None if answer is None else msgspec.json.decode(answer, type=_Workload).spec.replicas,
        devices=len(await _held(cluster, DEVICE, DEVICE_FINALIZER, sleep)),
        classes=len(await _held(cluster, CLASS, CLASS_FINALIZER, sleep)),
    )


async def _found(
    cluster: Cluster, kind: Kind, namespace: str, name: str, sleep: Callable[[float], Awaitable[None]]
) -> bytes | None:
    try:
        return await UNINSTALL.call(lambda: cluster.get(kind, namespace, name), sleep)
    except (NotFound, KindMissing):
        return None


async def _held(
    cluster: Cluster, kind: Kind, finalizer: str, sleep: Callable[[float], Awaitable[None]]
) -> list[_Metadata]:
    """Every object of a kind that carries our finalizer."""
    try:
        body = await UNINSTALL.call(partial(cluster.list, kind), sleep)
    except KindMissing:
        return []
    listed = msgspec.json.decode(body, type=_List).items or []
    return [item.metadata for item in listed if finalizer in (item.metadata.finalizers or ())]


async def _delete(cluster: Cluster, kind: Kind, name: str) -> int:
    try:
        await cluster.delete(kind, "", name)
    except (NotFound, KindMissing):
        return 0
    return 1


async def _stop(cluster: Cluster, namespace: str, workload: str, sleep: Callable[[float], Awaitable[None]]) -> bool:
    """Scale the controller to zero and wait until its pods are gone; returns False if there is none."""
    body = {"spec": {"replicas": 0}}
    try:
        await UNINSTALL.call(lambda: cluster.patch(STATEFUL_SET, namespace, workload, body, subresource="scale"), sleep)
        for _ in range(round(STOP_SECONDS / PAUSE_SECONDS)):
            answer = await UNINSTALL.call(lambda: cluster.get(STATEFUL_SET, namespace, workload), sleep)
            if not msgspec.json.decode(answer, type=_Workload).status.replicas:
                return True
            await sleep(PAUSE_SECONDS)
    except (NotFound, KindMissing):
        return False
    raise UninstallIncomplete(
        f"the pods of StatefulSet {namespace}/{workload} did not end within {STOP_SECONDS:.0f} s and would put "
        "finalizers back; delete them and run the uninstall again"
    )


async def _release_all(cluster: Cluster, kind: Kind, finalizer: str, sleep: Callable[[float], Awaitable[None]]) -> int:
    """Remove our finalizer from every object of a kind; returns how many had it. Rereads objects after a conflict."""
    count, problem = 0, ""
    for _ in range(ROUNDS):
        try:
            held = await _held(cluster, kind, finalizer, sleep)
        except Unavailable as error:
            problem = error.message
            break
        if not held:
            return count
        for found in held:
            try:
                count += await _release(cluster, kind, found, finalizer)
            except ClusterError as error:
                problem = error.message
        await sleep(0 if not problem else PAUSE_SECONDS)
    raise UninstallIncomplete(
        f"{kind.plural} still carry the finalizer {finalizer} after {ROUNDS} rounds: {problem}; whoever puts it back "
        "has to be stopped, then run the uninstall again"
    )


async def _release(cluster: Cluster, kind: Kind, found: _Metadata, finalizer: str) -> int:
    rest = [name for name in found.finalizers or () if name != finalizer]
    metadata = {"uid": found.uid, "resourceVersion": found.resource_version, "finalizers": rest}
    try:
        await cluster.patch(kind, found.namespace, found.name, {"metadata": metadata})
    except (Conflict, NotFound):
        return 0
    return 1
