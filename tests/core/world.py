"""A world of model objects around the pure core: events in, decisions out, writes applied explicitly.

Maintains versions and uids as an API server would, so that tests state only what matters.
"""

from __future__ import annotations

from typing import Any

import msgspec

from journal import events
from journal.events import Entry, Event
from reconciler.core.decide import decide
from reconciler.core.fold import adds_nothing, decode_object, fold
from reconciler.core.model.objects import (
    CLASS,
    CLOCK_MARGIN,
    DEVICE,
    GPU_NODE,
    KINDS,
    KUBEVIRT,
    NAMESPACE,
    NODE,
    POD,
    RELEASE,
    VMI,
    Attachment,
    BindRequest,
    Constraints,
    Device,
    Function,
    GpuClass,
    GpuNode,
    Kind,
    KubeVirt,
    Namespace,
    Node,
    Object,
    PermittedDevice,
    Pod,
    Release,
    Settings,
    Vmi,
)
from reconciler.core.model.vocabulary import SCHEDULABLE_LABEL, Mode
from reconciler.core.state.decisions import Decision, Verb
from reconciler.core.state.placement_state import PlacementState

R = "nvidia.com/GA102"
NS = "tenant-a"


class World:
    """`seconds` is the clock. Every `put` is an observation; `run` decides until nothing is pending."""

    def __init__(self, **settings: Any) -> None:
        self.state = PlacementState()
        self.entries: list[Entry] = []
        self.decisions: list[Decision] = []
        self.at = 1_000_000
        self.version = 0
        self.batch = 0
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.refuse_writes = False
        self.held_writes: list[tuple[str, Decision, int]] = []
        self._uids = 0
        self.tell(events.ControllerStarted("binder-0", "test"))
        self.tell(
            events.SettingsLoaded(
                msgspec.Raw(msgspec.json.encode(Settings(**{"report_margin": CLOCK_MARGIN, **settings})))
            )
        )

    # Events

    def tell(self, event: Event) -> None:
        if isinstance(event, events.ObjectObserved) and adds_nothing(self.state, event):
            return
        self.batch += 1
        entry = Entry(self.state.seq + 1, self.batch, self.at, event)
        fold(self.state, entry)
        self.entries.append(entry)

    def sync(self, lead: bool = True) -> None:
        """List every kind, and lead."""
        for kind in KINDS:
            if kind not in self.state.listed:
                self.tell(events.KindListed(kind))
        if lead and not self.state.leading:
            self.tell(events.LeadershipAcquired("binder-0", 1))
        self.run()

    def later(self, seconds: float) -> None:
        """Let time pass and decide what is due."""
        self.at += int(seconds * 1000)
        self.tell(events.TimeReached())
        self.run()

    def put(self, kind: Kind, item: Object, source: str = "watch") -> Object:
        """An object is new or changed; gives it its uid and version."""
        key = (kind.name, item.namespace, item.name)
        self.version += 1
        known = self.objects.get(key)
        if not item.uid:
            self._uids += 1
            uid = known.uid if known is not None else f"uid-{self._uids:04}"
            item = msgspec.structs.replace(item, uid=uid)
        item = msgspec.structs.replace(item, resource_version=str(self.version), created=item.created or self.at)
        self.objects[key] = item
        self.tell(self.observation(kind, item, source))
        return item

    def observation(self, kind: Kind, item: Object, source: str = "watch") -> events.ObjectObserved:
        raw = msgspec.Raw(msgspec.json.encode(item))
        return events.ObjectObserved(kind.name, item.namespace, item.name, item.uid, item.resource_version, source, raw)

    def gone(self, kind: Kind, namespace: str, name: str) -> None:
        item = self.objects.pop((kind.name, namespace, name))
        self.tell(events.ObjectDeleted(kind.name, namespace, name, item.uid))
        self.run()

    def change(self, kind: Kind, namespace: str, name: str, **fields: Any) -> Object:
        item = self.objects[(kind.name, namespace, name)]
        changed = self.put(kind, msgspec.structs.replace(item, **fields))
        self.run()
        return changed

    # Decisions

    def run(self) -> list[Decision]:
        """Decide until nothing is pending, applying every write; returns the decisions."""
        made: list[Decision] = []
        while (decision := decide(self.state)) is not None:
            made.append(decision)
            self.tell(events.Decided(msgspec.Raw(msgspec.json.encode(decision))))
            seq = self.state.seq
            for index in range(len(decision.writes)):
                if self.refuse_writes:
                    self.held_writes.append((f"{seq}.{index}", decision, index))
                else:
                    self.land(f"{seq}.{index}", decision, index)
        self.decisions.extend(made)
        return made

    def land(self, identity: str, decision: Decision, index: int) -> None:
        """Apply one write: a conflict if the object has changed since, else a new version."""
        write = decision.writes[index]
        key = (write.kind, write.namespace, write.name)
        known = self.objects.get(key)
        if write.verb is Verb.CREATE:
            self.tell(events.WriteSucceeded(identity, "1"))
            created = decode_object(write.kind, write.after)
            self.put(KINDS[write.kind], created)
            return
        if known is None:
            self.tell(events.WriteFoundGone(identity))
            return
        if known.resource_version != write.resource_version or known.uid != write.uid:
            self.tell(events.WriteConflicted(identity, "the object has been modified"))
            self.tell(self.observation(KINDS[write.kind], known, "read"))
            return
        self.version += 1
        after = msgspec.structs.replace(decode_object(write.kind, write.after), resource_version=str(self.version))
        finalizers = getattr(after, "finalizers", ())
        if after.deleting is not None and not finalizers:
            self.objects.pop(key)
            self.tell(events.WriteSucceeded(identity, "" if write.verb is Verb.DELETE else after.resource_version))
            self.tell(events.ObjectDeleted(write.kind, write.namespace, write.name, write.uid))
            return
        self.objects[key] = after
        version = "" if write.verb is Verb.DELETE else after.resource_version
        self.tell(events.WriteSucceeded(identity, version))
        self.tell(self.observation(KINDS[write.kind], after))

    # Builders

    def node(self, name: str, units: int = 4, resource: str = R, **fields: Any) -> None:
        fields.setdefault("labels", {SCHEDULABLE_LABEL: "true"})
        fields.setdefault("allocatable", {resource: units})
        fields.setdefault("ready", True)
        fields.setdefault("memory", 64 << 30)
        self.put(NODE, Node(name=name, uid="", **fields))

    def report(self, node: str, *functions: Function) -> None:
        self.put(GPU_NODE, GpuNode(name=node, uid="", functions=functions, reported_at=self.at))
        self.run()

    def gpu_class(self, name: str = "a10", resource: str = R, mode: Mode = Mode.PASSTHROUGH, **fields: Any) -> None:
        self.put(CLASS, GpuClass(name=name, uid="", resource_name=resource, mode=mode, generation=1, **fields))

    def kubevirt(self, *names: str) -> None:
        permitted = tuple(PermittedDevice(name, vendor="10DE") for name in names or (R,))
        self.put(KUBEVIRT, KubeVirt(name="kubevirt", namespace="cozy-kubevirt", uid="", permitted=permitted))
        self.run()

    def tenant(self, name: str, parent: str = "tenant-root", entitled: str | None = None, **quotas: Any) -> None:
        quotas = {key.replace("__", "/"): value for key, value in quotas.items()}
        self.put(RELEASE, Release(name=f"tenant-{name}", namespace=parent, uid="", quotas=quotas))
        owned = f"tenant-{name}" if parent == "tenant-root" else f"{parent}-{name}"
        self.put(NAMESPACE, Namespace(name=owned, uid="", entitlement=entitled))

    def quotas(self, name: str, quotas: dict[str, Any], parent: str = "tenant-root") -> None:
        self.put(RELEASE, Release(name=f"tenant-{name}", namespace=parent, uid="", quotas=quotas))

    def order(self, name: str, count: int = 1, class_name: str = "a10", ns: str = NS, **fields: Any) -> Device:
        self.put(
            DEVICE,
            Device(name=name, namespace=ns, uid="", class_name=class_name, count=count, generation=1, **fields),
        )
        self.run()
        return self.device(name, ns)

    def device(self, name: str, ns: str = NS) -> Device:
        found = self.state.device(ns, name)
        assert found is not None, f"no device {ns}/{name}"
        return found

    def ask(self, vmi: str, *names: str, ns: str = NS, constraints: Constraints | None = None) -> str:
        """What the webhook does at a start (B1): attachment and request on every device of the set."""
        request = BindRequest(
            id=f"req-{vmi}-{self.version}",
            vmi_name=vmi,
            set_size=len(names),
            constraints=constraints or Constraints(),
            requested_at=self.at,
        )
        for name in names:
            device = self.objects[(DEVICE.name, ns, name)]
            assert isinstance(device, Device)
            phase = "Attached" if device.phase == "Held" else device.phase
            attachment = Attachment(vmi_name=vmi, request_id=request.id, since=self.at)
            self.put(
                DEVICE,
                msgspec.structs.replace(device, attachment=attachment, bind_request=request, phase=phase),
            )
        self.run()
        return request.id

    def vmi(self, name: str, ns: str = NS, **fields: Any) -> Vmi:
        item = self.put(VMI, Vmi(name=name, namespace=ns, uid=fields.pop("uid", ""), **fields))
        self.run()
        assert isinstance(item, Vmi)
        return item

    def launcher(self, vmi: str, node: str, units: int, ns: str = NS, resource: str = R, name: str = "") -> Pod:
        """A launcher on a node, listed in its VMI's activePods, running."""
        pod = self.pod(
            name or f"virt-launcher-{vmi}", node, units, ns=ns, resource=resource, vmi_name=vmi, launcher=True
        )
        found = self.objects[(VMI.name, ns, vmi)]
        assert isinstance(found, Vmi)
        active = {**found.active_pods, pod.uid: node}
        self.put(VMI, msgspec.structs.replace(found, active_pods=active, phase="Running", node=node))
        self.run()
        return pod

    def pod(self, name: str, node: str, units: int, ns: str = NS, resource: str = R, **fields: Any) -> Pod:
        fields.setdefault("phase", "Running")
        item = self.put(POD, Pod(name=name, namespace=ns, uid="", node=node, requests={resource: units}, **fields))
        self.run()
        assert isinstance(item, Pod)
        return item

    def start(self, vmi: str, *names: str, units: int = 1, ns: str = NS) -> str:
        """A whole start: request, VMI, launcher where the set was placed; the node."""
        self.ask(vmi, *names, ns=ns)
        placement = self.device(names[0], ns).placement
        assert placement is not None, self.device(names[0], ns)
        self.vmi(vmi, ns=ns)
        self.launcher(vmi, placement.node, units, ns=ns)
        return placement.node

    def ready(self, *nodes: tuple[str, int]) -> World:
        """A cluster with nodes (name, units), one class, a permitted name and one tenant, listed and led."""
        for name, units in nodes:
            self.node(name, units)
        self.gpu_class()
        self.kubevirt()
        self.put(RELEASE, Release(name="tenant-root", namespace="tenant-root", uid=""))
        self.tenant("a")
        self.sync()
        return self
