"""Derives a pod's raw usage: when it started, when it ended, which units no device covers (R8, U1b).

Reads pods and the proof that they are launchers; `raw_usage` keeps the timelines. Uses `coverage` with the confirmed
devices of the VMI that once listed the pods.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from reconciler.core.capacity import coverage
from reconciler.core.capacity.coverage import Named
from reconciler.core.metering.intervals import Moment, Timeline, UsageState, What, between
from reconciler.core.model.objects import POD, Pod, Vmi


class PodUsage(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """One pod with an extended resource. `seen`: its last unfinished value. `vmi_uid`: the VMI that listed
    it, from its first moment (U1b). `orphan`: that VMI is gone and its devices with it, so nothing covers it. `judged`:
    its raw use was evaluated once; `over`: its end is recorded and later observations change nothing; `floor`: it is
    metered from then on only."""

    seen: Pod
    vmi_uid: str = ""
    orphan: bool = False
    start: Moment | None = None
    end: Moment | None = None
    judged: bool = False
    over: bool = False
    floor: Moment | None = None
    lines: dict[str, Timeline] = {}


def slim(pod: Pod) -> Pod:
    """The fields of a pod that its usage depends on."""
    return msgspec.structs.replace(pod, resource_version="", memory=0, vmi_uid="")


def began(pod: Pod) -> Moment | None:
    """When the pod began to run, None if it has not: an unscheduled pod uses nothing (U1b)."""
    if not pod.node:
        return None
    if pod.started:
        return Moment(pod.started)
    return Moment(pod.created) if pod.phase in ("Running", "Succeeded", "Failed") else None


def finished(pod: Pod, at: int, start: int) -> Moment:
    """When a finished pod ended. `at`: ms of the observation, used if the pod gives no time."""
    if pod.finished:
        return Moment(pod.finished)
    if pod.deleting is not None and pod.deleting <= at:
        return Moment(pod.deleting)
    return between(at, start, at)


def vanished(pod: Pod, at: int, start: int, settle: int) -> Moment:
    """When a pod whose removal was seen at `at` ended. One that outlived its deletion time by more than the
    settling time was stuck and used its units until it went (C05)."""
    if pod.deleting is not None and pod.deleting <= at <= pod.deleting + settle:
        return Moment(pod.deleting)
    return between(at, max(start, pod.deleting or 0), at)


def unseen_end(deleting: int | None, last_seen: int, at: int, start: int) -> Moment:
    """The last proven moment of a subject whose end was not observed; found gone at `at` (U2, C50)."""
    proven = max(start, min(last_seen, at))
    if deleting is not None and proven < deleting <= at:
        proven = deleting
    return between(proven, proven, at)


def covered(mark: PodUsage) -> bool:
    """Whether the pod takes its turn when its VMI's devices are shared out: proven, and that VMI's devices remain."""
    return bool(mark.vmi_uid) and not mark.orphan


def ran(mark: PodUsage, at: int) -> bool:
    """Whether the pod ran at a time (ms). One that is over without an end never counts as running."""
    if mark.start is None or mark.start.at > at:
        return False
    return not mark.over if mark.end is None else at < mark.end.not_before(mark.start.at).at


def raw_units(marks: Iterable[PodUsage], devices: Iterable[Named], names: Collection[str]) -> dict[str, dict[str, int]]:
    """By pod UID, the units per name that no device covers while these pods run together (R8). `marks`: pods of one
    VMI's name, `devices`: those attached to it."""
    pods = {mark.seen.uid: msgspec.structs.replace(mark.seen, phase="Running") for mark in marks}
    proven = {mark.seen.uid: mark for mark in marks if covered(mark)}
    vmi = None
    for mark in proven.values():
        active = {uid: pods[uid].node for uid in proven}
        vmi = Vmi(name=mark.seen.vmi_name, namespace=mark.seen.namespace, uid=mark.vmi_uid, active_pods=active)
    return coverage.raw_for_budget(pods.values(), vmi, devices, names)


def raw_what(mark: PodUsage, name: str, units: int, tenants: tuple[str, ...]) -> What:
    """A pod's raw units; its VMI only if proven (R7)."""
    pod = mark.seen
    return What(
        kind=POD.name,
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        state=UsageState.RAW,
        resource_name=name,
        units=units,
        vmi=pod.vmi_name if mark.vmi_uid else "",
        node=pod.node,
        tenants=tenants,
    )
