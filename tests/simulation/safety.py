"""Safety invariants after every step of a simulation, checked on the cluster's objects and never on the binder's
state.

Deliberately independent of the product's arithmetic: plain loops over the stored objects.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from reconciler.cluster.memory import MemoryCluster
from reconciler.core import snapshot
from reconciler.core.model.objects import DEVICE, GPU_NODE, NODE, POD, RELEASE, VMI
from reconciler.core.state.placement_state import PlacementState
from reconciler.core.tenancy.tenants import owned_namespace, parent_of

HOLDING = ("Bound", "Releasing")
ACCEPTED = ("Held", "Attached", "Bound", "Lost", "Releasing")
Document = dict[str, Any]


class Safety:
    """Checks one cluster; remembers for how long a node has served less than it did."""

    def __init__(self, cluster: MemoryCluster, resources: dict[str, str], forgiving_seconds: float) -> None:
        """`resources`: class to resource name. `forgiving_seconds`: how long a shrunken node may still be full."""
        self._cluster = cluster
        self._resources = resources
        self._forgiving = forgiving_seconds * 1000
        self._served: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        self._limits: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        self._charged: dict[tuple[str, str], int] = {}
        """What was charged may stay when its budget is lowered (R4)."""
        self._excused: set[str] = set()

    def know(self, resources: dict[str, str]) -> None:
        """More classes, and the names they sell."""
        self._resources = {**self._resources, **resources}

    def excuse(self, vmi: str) -> None:
        """A Lost device of this VMI was deleted under it, which is allowed (P4)."""
        self._excused.add(vmi)

    def check(self) -> None:
        """Raises AssertionError with the objects that break a rule."""
        devices = self._cluster.peek_all(DEVICE)
        self._note_served()
        self._no_unit_twice(devices)
        self._whole_sets(devices)
        self._entries(devices)
        self._constraints(devices)
        self._budgets(devices)

    def _note_served(self) -> None:
        now = self._cluster.store.clock()
        nodes = {node["metadata"]["name"]: status(node).get("allocatable", {}) for node in self._cluster.peek_all(NODE)}
        silent = {
            node["metadata"]["name"]
            for node in self._cluster.peek_all(NODE)
            if any(c["type"] == "Ready" and c["status"] != "True" for c in status(node).get("conditions", []))
        }
        for node in sorted({*nodes, *(node for node, _ in self._served)}):
            for name in sorted(set(self._resources.values())):
                seen = self._served[(node, name)]
                serves = self._serves(node, name, nodes.get(node))
                if node in silent and seen:  # silence alone loses nothing (R5)
                    serves = max(serves, *(before for _, before in seen))
                seen.append((now, serves))
        for values in (*self._served.values(), *self._limits.values()):
            while len(values) > 1 and values[1][0] < now - self._forgiving:
                values.pop(0)

    def _serves(self, node: str, name: str, allocatable: Document | None) -> int:
        """What a report that speaks of the name says, else what the node says; 0 where it is gone (R5)."""
        functions = status(self._cluster.peek(GPU_NODE, "", node) or {}).get("functions") or []
        seen = [int(found.get("healthy", True)) for found in functions if found.get("resourceName") == name]
        for profile in (told for found in functions for told in found.get("profiles") or []):
            if profile["resourceName"] == name:
                seen.append(profile.get("used", 0) + profile.get("remaining", 0))
        if allocatable is None:
            return 0
        return sum(seen) if seen else int(allocatable.get(name, 0))

    def _no_unit_twice(self, devices: list[Document]) -> None:
        placed: dict[tuple[str, str], int] = defaultdict(int)
        for device in devices:
            found = status(device)
            if found.get("placement") and found.get("phase") in HOLDING:
                name = self._resources[device["spec"]["className"]]
                placed[(found["placement"]["node"], name)] += found["placement"]["units"]
        for key, units in placed.items():
            most = max((served for _, served in self._served.get(key, [(0, 0)])), default=0)
            assert units <= most, f"{units} units placed on {key}, which serves {most}: {short(devices)}"

    def _whole_sets(self, devices: list[Document]) -> None:
        for (namespace, vmi), group in by_vmi(devices).items():
            if self._cluster.peek(VMI, namespace, vmi) is None:
                continue
            nodes = {status(d)["placement"]["node"] for d in group if status(d).get("placement")}
            assert len(nodes) <= 1, f"the set of {namespace}/{vmi} is on {sorted(nodes)}: {short(group)}"

    def _entries(self, devices: list[Document]) -> None:
        """A VMI that runs carries one entry for each unit attached to it, and no resources key (W2)."""
        groups = by_vmi(devices)
        for vmi in self._cluster.peek_all(VMI):
            metadata = vmi["metadata"]
            over = status(vmi).get("phase") in ("Succeeded", "Failed") or metadata.get("deletionTimestamp")
            if over or not metadata.get("annotations"):
                continue
            assert "resources" not in vmi["spec"]["domain"], "a resources key was added"
            entries = vmi["spec"]["domain"]["devices"].get("gpus", [])
            group = groups.get((metadata["namespace"], metadata["name"]), [])
            units = sum(device["spec"].get("count", 1) for device in group)
            excused = units < len(entries) and metadata["name"] in self._excused
            assert units == len(entries) or excused, (
                f"{metadata['namespace']}/{metadata['name']} has {len(entries)} entries, {units} units: {short(group)}"
            )

    def _constraints(self, devices: list[Document]) -> None:
        """A set is on a node that its VM's nodeSelector names (P2)."""
        for (namespace, vmi), group in by_vmi(devices).items():
            found = self._cluster.peek(VMI, namespace, vmi)
            wanted = (found or {"spec": {}})["spec"].get("nodeSelector") or {}
            for device in group:
                node = (status(device).get("placement") or {}).get("node")
                known = self._cluster.peek(NODE, "", node) if node else None
                labels = known["metadata"].get("labels", {}) if known else wanted
                assert wanted.items() <= labels.items(), f"{namespace}/{vmi} asks for {wanted}: {short(group)}"

    def _budgets(self, devices: list[Document]) -> None:
        parents: dict[str, str | None] = {}
        now = self._cluster.store.clock()
        for release in self._cluster.peek_all(RELEASE):
            metadata = release["metadata"]
            owned = owned_namespace(metadata["namespace"], metadata["name"])
            assert owned is not None
            parents[owned] = parent_of(metadata["namespace"], metadata["name"])
            for key, value in release["spec"]["values"].get("resourceQuotas", {}).items():
                self._limits[(owned, key)].append((now, int(value)))
        limits = {place: seen[-1][1] for place, seen in self._limits.items()}
        used: dict[tuple[str, str], int] = defaultdict(int)
        for device in devices:
            if status(device).get("phase") in ACCEPTED:
                key = f"gpu.cozystack.io/{device['spec']['className']}"
                used[(device["metadata"]["namespace"], key)] += device["spec"].get("count", 1)

        def charge(tenant: str, key: str) -> int:
            children = sorted(child for child, parent in parents.items() if parent == tenant)
            return used[(tenant, key)] + sum(max(limits.get((c, key), 0), charge(c, key)) for c in children)

        for tenant, key in sorted(limits):
            units = charge(tenant, key)
            most = max(limit for _, limit in self._limits[(tenant, key)])
            most = max(most, self._charged.get((tenant, key), units))
            assert units <= most, f"{tenant} is charged {units} of {most} {key}: {short(devices)}"
            self._charged[(tenant, key)] = units


def left_over(cluster: MemoryCluster) -> list[str]:
    """What must not be there once everything is quiet; empty when all is well."""
    found = []
    for device in cluster.peek_all(DEVICE):
        metadata, seen = device["metadata"], status(device)
        name = f"{metadata['namespace']}/{metadata['name']}"
        attached = seen.get("attachment")
        vmi = cluster.peek(VMI, metadata["namespace"], attached["vmiName"]) if attached else None
        if attached and (vmi is None or status(vmi).get("phase") in ("Succeeded", "Failed")):
            found.append(f"{name} is attached to a VMI that is gone")
        if metadata.get("deletionTimestamp") and vmi is None:
            found.append(f"{name} is deleted and still there")
        if metadata.get("labels") and not attached:
            found.append(f"template {name} has no VMI")
        if seen.get("placement") and not attached:
            found.append(f"{name} is placed and attached to nothing")
        if not seen.get("phase"):
            found.append(f"{name} was never looked at")
        request, answer = seen.get("bindRequest"), seen.get("bindAnswer") or {}
        if request and answer.get("requestID") != request["id"]:
            found.append(f"{name} has a request without an answer")
    for pod in cluster.peek_all(POD):
        labels = pod["metadata"].get("labels") or {}
        marked = labels.get("kubevirt.io") == "virt-launcher" and "gpu.cozystack.io/devices" in labels
        if marked and not pod["spec"].get("affinity", {}).get("nodeAffinity"):
            found.append(f"launcher {pod['metadata']['name']} is not pinned")
    return found


def status(document: Document) -> Document:
    found: Document = document.get("status") or {}
    return found


def by_vmi(devices: list[Document]) -> dict[tuple[str, str], list[Document]]:
    groups: dict[tuple[str, str], list[Document]] = defaultdict(list)
    for device in devices:
        attached = status(device).get("attachment")
        if attached:
            groups[(device["metadata"]["namespace"], attached["vmiName"])].append(device)
    return groups


def short(devices: list[Document]) -> str:
    lines = []
    for device in devices:
        seen = status(device)
        placement, attachment = seen.get("placement") or {}, seen.get("attachment") or {}
        lines.append(
            f"{device['metadata']['namespace']}/{device['metadata']['name']} x{device['spec'].get('count', 1)} "
            f"{seen.get('phase')} vmi={attachment.get('vmiName')} node={placement.get('node')}"
        )
    return "; ".join(lines)


def same_when_counted_anew(state: PlacementState) -> None:
    """Indexes kept by the fold equal those counted from the facts (J6)."""
    again = snapshot.restore(snapshot.export(state))
    assert again.accounts == state.accounts
    assert again.effective_names == state.effective_names
    for tenant in state.charges.tenants():
        for key in sorted(state.charges.budgets(tenant).limits):
            assert again.charges.charge(tenant, key) == state.charges.charge(tenant, key)
    holds = {name: sizes for name, sizes in state.devices.holds.items() if sizes}
    assert {name: sizes for name, sizes in again.devices.holds.items() if sizes} == holds
