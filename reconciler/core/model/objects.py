"""The fields of Kubernetes objects that the model reads, and no others (J3).

Owns the structs that the journal stores and the table of kinds. `wire` decodes them from the API's JSON;
nothing here knows where an object came from. All times are integer milliseconds since
the Unix epoch, UTC; memory is bytes; GPUs are whole units. All structs are frozen: a change is a new value.
"""

from __future__ import annotations

from typing import Any

import msgspec

from reconciler.core.model.vocabulary import GROUP, VERSION, Mode, RawNamePolicy, TenantDetail


class Model(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Base of every stored struct: camelCase on disk, defaults left out, unknown fields ignored."""


class Key(msgspec.Struct, frozen=True, order=True, array_like=True):
    """An object's address: kind name, namespace ("" for cluster scope), name."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


class Object(Model, frozen=True, kw_only=True):
    """Fields common to every stored object. `created` and `deleting` are ms (`deleting` None: not being deleted)."""

    name: str
    namespace: str = ""
    uid: str
    resource_version: str = ""
    created: int = 0
    deleting: int | None = None


class Taint(Model, frozen=True):
    key: str
    effect: str
    value: str = ""


class Node(Object, frozen=True, kw_only=True):
    """`allocatable` holds extended resources only; None if the status has none (unknown, not zero: R5)."""

    labels: dict[str, str] = {}
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    ready: bool = False
    allocatable: dict[str, int] | None = None
    memory: int = 0


class Pod(Object, frozen=True, kw_only=True):
    """`requests`: effective request per extended resource (R6); `memory`: effective memory request. `started`:
    when the kubelet accepted it; `finished`: when its last container ended; 0 if unknown."""

    node: str = ""
    phase: str = ""
    requests: dict[str, int] = {}
    memory: int = 0
    started: int = 0
    finished: int = 0
    launcher: bool = False
    vmi_name: str = ""
    vmi_uid: str = ""

    @property
    def terminal(self) -> bool:
        """A finished pod requests nothing (R6)."""
        return self.phase in ("Succeeded", "Failed")


class Owner(Model, frozen=True):
    """A VirtualMachine, by which tenants know its VMI."""

    name: str
    uid: str = ""


class Vmi(Object, frozen=True, kw_only=True):
    """`active_pods`: launcher pod UID to node name, the only proof of a launcher (R7). `owner`: the VirtualMachine that
    controls it, for Events alone; None if there is none."""

    phase: str = ""
    node: str = ""
    active_pods: dict[str, str] = {}
    owner: Owner | None = None

    @property
    def final(self) -> bool:
        return self.phase in ("Succeeded", "Failed")


class Attachment(Model, frozen=True):
    vmi_name: str
    request_id: str = msgspec.field(default="", name="requestID")
    since: int = 0


class Toleration(Model, frozen=True):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class Requirement(Model, frozen=True):
    """One node selector requirement; `operator` in Kubernetes' spelling (In, NotIn, Exists, ...)."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class Term(Model, frozen=True):
    """One node selector term; requirements are ANDed, terms are ORed, an empty term matches nothing."""

    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()


class Constraints(Model, frozen=True):
    """What a VMI requires of its node (P2). `terms` None: no required node affinity at all."""

    node_selector: dict[str, str] = {}
    terms: tuple[Term, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    memory: int = 0


class BindRequest(Model, frozen=True):
    id: str
    vmi_name: str
    set_size: int
    constraints: Constraints = Constraints()
    requested_at: int = 0


class BindAnswer(Model, frozen=True):
    request_id: str = msgspec.field(name="requestID")
    outcome: str
    reason: str = ""
    message: str = ""
    node: str = ""
    answered_at: int = 0


class Placement(Model, frozen=True):
    node: str
    units: int
    since: int = 0


class Condition(Model, frozen=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    observed_generation: int = 0
    last_transition_time: int = 0


class Device(Object, frozen=True, kw_only=True):
    """A GPUDevice (O2). `phase` "": the binder has not processed the device yet. `phase_since`: when the binder
    last changed its phase, the time on which every replica's usage records agree (U1)."""

    generation: int = 0
    finalizers: tuple[str, ...] = ()
    template: bool = False
    epoch: str = ""
    class_name: str
    count: int = 1
    observed_generation: int = 0
    phase: str = ""
    phase_since: int = 0
    attachment: Attachment | None = None
    bind_request: BindRequest | None = None
    bind_answer: BindAnswer | None = None
    placement: Placement | None = None
    conditions: tuple[Condition, ...] = ()


class ClassUnits(Model, frozen=True):
    served: int = 0
    bound: int = 0
    held: int = 0
    raw: int = 0
    free: int = 0


class LargestFree(Model, frozen=True):
    node: str = ""
    units: int = 0


class GpuClass(Object, frozen=True, kw_only=True):
    """A GPUClass (O1). `max_count` None: the size of an order is not limited."""

    generation: int = 0
    finalizers: tuple[str, ...] = ()
    resource_name: str
    mode: Mode = Mode.PASSTHROUGH
    max_count: int | None = None
    display_name: str = ""
    description: str = ""
    observed_generation: int = 0
    units: ClassUnits | None = None
    largest_free: LargestFree | None = None
    conditions: tuple[Condition, ...] = ()


class Profile(Model, frozen=True):
    """One vGPU type on a parent: instances created, and how many more the parent's memory allows now."""

    resource_name: str
    used: int = 0
    remaining: int = 0


class Function(Model, frozen=True):
    """One reported PCI function. `resource_name` "": the function is not served as a whole."""

    id: str
    stable_id: str = msgspec.field(default="", name="stableID")
    parent: str = ""
    kind: str = "Physical"
    resource_name: str = ""
    healthy: bool = True
    message: str = ""
    profiles: tuple[Profile, ...] = ()


class GpuNode(Object, frozen=True, kw_only=True):
    """A node agent's report (O3). A change of `reported_at` alone produces no event (J3)."""

    reported_at: int = 0
    functions: tuple[Function, ...] = ()


class Release(Object, frozen=True, kw_only=True):
    """A tenant's HelmRelease (R2). `quotas` holds only keys with a "/", as written; `error`: why the whole
    map could not be read."""

    quotas: dict[str, Any] = {}
    error: str = ""


class PermittedDevice(Model, frozen=True):
    """An entry of permittedHostDevices. `vendor`: PCI vendor id as written, "" for a mediated entry."""

    resource_name: str
    mediated: bool = False
    vendor: str = ""


class KubeVirt(Object, frozen=True, kw_only=True):
    permitted: tuple[PermittedDevice, ...] = ()


class Namespace(Object, frozen=True, kw_only=True):
    """`entitlement`: the value of the entitlement label, None if the namespace does not carry it (K5)."""

    entitlement: str | None = None


class SettingsMap(Object, frozen=True, kw_only=True):
    """The settings ConfigMap (K4)."""

    data: dict[str, str] = {}


class Kind(msgspec.Struct, frozen=True):
    """One watched kind: its place in the API and the struct that stores it.

    `foreign`: may not be installed (N8). `written`: the binder writes this kind, so its resourceVersion is
    part of what the model reads (B6).
    """

    name: str
    group: str
    version: str
    plural: str
    namespaced: bool
    model: type[Object]
    foreign: bool = False
    written: bool = False

    @property
    def api_version(self) -> str:
        """`apiVersion` of its objects: GROUP/VERSION, or the version alone in the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version


NODE = Kind("Node", "", "v1", "nodes", False, Node)
POD = Kind("Pod", "", "v1", "pods", True, Pod)
NAMESPACE = Kind("Namespace", "", "v1", "namespaces", False, Namespace)
SETTINGS = Kind("ConfigMap", "", "v1", "configmaps", True, SettingsMap, written=True)
DEVICE = Kind("GPUDevice", GROUP, VERSION, "gpudevices", True, Device, written=True)
CLASS = Kind("GPUClass", GROUP, VERSION, "gpuclasses", False, GpuClass, written=True)
GPU_NODE = Kind("GPUNode", GROUP, VERSION, "gpunodes", False, GpuNode)
VMI = Kind("VirtualMachineInstance", "kubevirt.io", "v1", "virtualmachineinstances", True, Vmi, foreign=True)
KUBEVIRT = Kind("KubeVirt", "kubevirt.io", "v1", "kubevirts", True, KubeVirt, foreign=True)
RELEASE = Kind("HelmRelease", "helm.toolkit.fluxcd.io", "v2", "helmreleases", True, Release, foreign=True)

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (NODE, POD, NAMESPACE, SETTINGS, CLASS, DEVICE, GPU_NODE, VMI, KUBEVIRT, RELEASE)
}
"""Every kind whose first list precedes any decision (R9)."""

LEASE = Kind("Lease", "coordination.k8s.io", "v1", "leases", True, Object)
VM = Kind("VirtualMachine", "kubevirt.io", "v1", "virtualmachines", True, Object, foreign=True)
EVENT = Kind("Event", "events.k8s.io", "v1", "events", True, Object)
SELF_REVIEW = Kind("SelfSubjectReview", "authentication.k8s.io", "v1", "selfsubjectreviews", False, Object)
TOKEN_REVIEW = Kind("TokenReview", "authentication.k8s.io", "v1", "tokenreviews", False, Object)
ACCESS_REVIEW = Kind("SubjectAccessReview", "authorization.k8s.io", "v1", "subjectaccessreviews", False, Object)
SECRET = Kind("Secret", "", "v1", "secrets", True, Object)
STATEFUL_SET = Kind("StatefulSet", "apps", "v1", "statefulsets", True, Object)
MUTATING_WEBHOOKS = Kind(
    "MutatingWebhookConfiguration",
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    False,
    Object,
)
VALIDATING_WEBHOOKS = Kind(
    "ValidatingWebhookConfiguration",
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    False,
    Object,
)


CLOCK_MARGIN = 60_000
"""Settings.report_margin of a running controller, ms: a node whose clock is further off has its report used only once
it is seen to change."""


class Settings(Model, frozen=True):
    """The hoster's settings that the model depends on; journaled before they are used (J1). Durations in ms.

    `lost_grace`: P4. `attach_grace`: how long an attachment may wait for its VMI (P5) and the greatest age at which
    an answered request still counts as the caller's own (B4). `settle`: U1b. `report_stale`: age from which an
    agent's report is not used (R5). `report_margin`: how far the clocks of nodes may differ from ours, when a report
    first seen at a start is judged by its own time; 0 in journals of builds that took every report as just heard.
    `writer`: the binder's own user name (K2). `tenant_detail`: N9; `run` sets Own by default, journals of builds
    before it mean Full.
    """

    namespace: str = "cozy-gpu-binder"
    resource_names: tuple[str, ...] = ()
    raw_name_policy: RawNamePolicy = RawNamePolicy.ALLOWED
    manager_users: tuple[str, ...] = ()
    writer: str = ""
    lost_grace: int = 60_000
    attach_grace: int = 60_000
    settle: int = 60_000
    report_stale: int = 120_000
    report_margin: int = 0
    tenant_detail: TenantDetail = TenantDetail.FULL

    def public(self, text: str) -> str:
        """What tenants read in place of a message that tells more, "" where they may read the message itself (N9)."""
        return text if self.tenant_detail is TenantDetail.OWN else ""
