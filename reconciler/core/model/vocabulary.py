"""Every name the product shares with the cluster: groups, labels, annotations, finalizers, budget keys,
condition types, phases and refusal reasons.

No other module contains one of these strings; a test enforces it. Does not know how they are used.
"""

from enum import StrEnum

GROUP = "gpu.cozystack.io"
VERSION = "v1alpha1"

DEVICES_LABEL = f"{GROUP}/devices"
"""On the VMI template: this VMI refers to devices. KubeVirt copies it to the launcher (K1)."""
DEVICES_ANNOTATION = f"{GROUP}/devices"
"""On the VMI template: the JSON list of references (K1)."""
TEMPLATE_LABEL = f"{GROUP}/template-device"
"""On a device that a webhook created when a VMI started; it is deleted with the VMI (K2)."""
ENTITLEMENT_LABEL = f"{GROUP}/vgpu-entitlement"
"""On a tenant namespace: whether the tenant may use vGPU classes (K5)."""
EPOCH_ANNOTATION = f"{GROUP}/leader-epoch"
"""On a device: EPOCH/IDENTITY of the leader that last fenced it; a write decided under an older one conflicts (J5)."""
TRUE = "true"

DEVICE_FINALIZER = f"{GROUP}/units"
CLASS_FINALIZER = f"{GROUP}/class-in-use"

CLASS_BUDGET_PREFIX = f"{GROUP}/"
RAW_BUDGET_PREFIXES = ("requests.", "limits.")

SETTINGS_CONFIGMAP = "gpu-settings"
SETTINGS_RESOURCE_NAMES = "resourceNames"
SETTINGS_RAW_NAME_POLICY = "rawNamePolicy"
SETTINGS_MANAGER_USERS = "managerUsers"

TENANT_KIND_LABEL = "apps.cozystack.io/application.kind"
TENANT_KIND = "Tenant"
ROOT_TENANT = "tenant-root"
TENANT_PREFIX = "tenant-"

KUBEVIRT_LABEL = "kubevirt.io"
LAUNCHER = "virt-launcher"
CREATED_BY_LABEL = "kubevirt.io/created-by"
DOMAIN_ANNOTATION = "kubevirt.io/domain"
MIGRATION_LABEL = "kubevirt.io/migrationJobUID"
SCHEDULABLE_LABEL = "kubevirt.io/schedulable"
DEDICATED_CPU_LABEL = "cpumanager"
CPU_MODEL_LABEL_PREFIX = "cpu-model.node.kubevirt.io/"
ARCHITECTURE_LABEL = "kubernetes.io/arch"
NVIDIA_VENDOR = "10DE"

CONDITION_HELD = "Held"
CONDITION_READY = "Ready"
CONDITION_PERMITTED = "Permitted"


class Phase(StrEnum):
    """`GPUDevice.status.phase` (O2)."""

    PENDING = "Pending"
    HELD = "Held"
    ATTACHED = "Attached"
    BOUND = "Bound"
    LOST = "Lost"
    RELEASING = "Releasing"


class Mode(StrEnum):
    """`GPUClass.spec.mode` (O1)."""

    PASSTHROUGH = "Passthrough"
    VGPU = "VGPU"


class Outcome(StrEnum):
    """`GPUDevice.status.bindAnswer.outcome` (O2)."""

    BOUND = "Bound"
    REFUSED = "Refused"


class FunctionKind(StrEnum):
    """`GPUNode.status.functions[].kind` (O3)."""

    PHYSICAL = "Physical"
    VIRTUAL_FUNCTION = "VirtualFunction"
    MDEV_PARENT = "MdevParent"


class AuthMode(StrEnum):
    """What is done about callers of a webhook without valid credentials (W7)."""

    IGNORE = "Ignore"
    """Nobody is asked; only the network restricts who calls."""
    REPORT = "Report"
    """They are served, counted and logged: to try a configuration before it refuses anybody."""
    REQUIRE = "Require"
    """They get 401 and nothing else."""


class TenantDetail(StrEnum):
    """What texts that tenants can read may say (N9)."""

    OWN = "Own"
    """The tenant's own names and numbers, and totals of a class."""
    FULL = "Full"
    """Also names and numbers of other tenants and of nodes."""


class RawNamePolicy(StrEnum):
    """Whether tenants may ask for a GPU by its resource name (K4, V1)."""

    ALLOWED = "Allowed"
    FORBIDDEN = "Forbidden"


class Reason(StrEnum):
    """Why an order, a start or a pod is refused: stable, CamelCase, in the order the checks run (P1)."""

    UNKNOWN_CLASS = "UnknownClass"
    CLASS_DELETED = "ClassDeleted"
    COUNT_ABOVE_MAXIMUM = "CountAboveMaximum"
    NOT_PERMITTED = "NotPermitted"
    NOT_ENTITLED = "NotEntitled"
    BUDGET_UNREADABLE = "BudgetUnreadable"
    BUDGET_EXCEEDED = "BudgetExceeded"
    NO_FREE_UNITS = "NoFreeUnits"
    NO_NODE_FITS = "NoNodeFits"
    HOLDS_WOULD_NOT_FIT = "HoldsWouldNotFit"
    MALFORMED_REFERENCES = "MalformedReferences"
    MISSING_REFERENCES = "MissingReferences"
    DUPLICATE_REFERENCE = "DuplicateReference"
    NAME_REQUIRED = "NameRequired"
    RAW_NAME_FORBIDDEN = "RawNameForbidden"
    UNKNOWN_DEVICE = "UnknownDevice"
    DEVICE_DELETED = "DeviceDeleted"
    DEVICE_NOT_HELD = "DeviceNotHeld"
    DEVICE_LOST = "DeviceLost"
    DEVICE_ATTACHED = "DeviceAttached"
    BIND_TIMEOUT = "BindTimeout"
    NOT_PLACED = "NotPlaced"
    MIGRATION_UNSUPPORTED = "MigrationUnsupported"
    RESERVED_FIELD = "ReservedField"
    IMMUTABLE_FIELD = "ImmutableField"
    TEMPLATE_MARK_RESERVED = "TemplateMarkReserved"
    MALFORMED_REVIEW = "MalformedReview"
    NAMESPACE_TERMINATING = "NamespaceTerminating"
    NOT_READY = "NotReady"


REASONS: dict[Reason, str] = {
    Reason.UNKNOWN_CLASS: "the class does not exist; the message lists those that do",
    Reason.CLASS_DELETED: "the class is being deleted",
    Reason.COUNT_ABOVE_MAXIMUM: "more units than the class allows in one order",
    Reason.NOT_PERMITTED: "KubeVirt's permittedHostDevices does not list the resource name",
    Reason.NOT_ENTITLED: "a vGPU class, and the nearest tenant upward that says anything says no",
    Reason.BUDGET_UNREADABLE: "a budget on the way up cannot be read, or the release of a tenant there is missing",
    Reason.BUDGET_EXCEEDED: "a tenant's budget, this one's or one above, would be exceeded",
    Reason.NO_FREE_UNITS: "too few units are free",
    Reason.NO_NODE_FITS: "no single node can take it",
    Reason.HOLDS_WOULD_NOT_FIT: "orders already held could no longer all start",
    Reason.MALFORMED_REFERENCES: "the annotation is not a list of references; the message names the position",
    Reason.MISSING_REFERENCES: "label or annotation without the other",
    Reason.DUPLICATE_REFERENCE: "one device is named twice",
    Reason.NAME_REQUIRED: "generateName with references: the devices need to know whose they are",
    Reason.RAW_NAME_FORBIDDEN: "a GPU asked for by resource name where the policy forbids it",
    Reason.UNKNOWN_DEVICE: "no such device in the namespace",
    Reason.DEVICE_DELETED: "the device is being deleted",
    Reason.DEVICE_NOT_HELD: "the order is still Pending",
    Reason.DEVICE_LOST: "the device's node no longer serves it",
    Reason.DEVICE_ATTACHED: "another VM has the device",
    Reason.BIND_TIMEOUT: "the binder did not answer in time; everything was undone",
    Reason.NOT_PLACED: "a launcher whose devices are on no node",
    Reason.MIGRATION_UNSUPPORTED: "a live-migration target: its devices are on the source's node",
    Reason.RESERVED_FIELD: "a field or annotation only the binder may write",
    Reason.IMMUTABLE_FIELD: "an order's class and count never change; make a new one",
    Reason.TEMPLATE_MARK_RESERVED: "the template mark is the webhooks' alone",
    Reason.MALFORMED_REVIEW: "the request cannot be read",
    Reason.NAMESPACE_TERMINATING: "the namespace is being deleted",
    Reason.NOT_READY: "this replica cannot answer yet, or could not reach the API server; try again",
}
"""What each reason means, for the documentation."""

TRANSIENT_REASONS = frozenset(
    {
        Reason.BUDGET_EXCEEDED,
        Reason.BUDGET_UNREADABLE,
        Reason.NO_FREE_UNITS,
        Reason.NO_NODE_FITS,
        Reason.HOLDS_WOULD_NOT_FIT,
        Reason.NOT_PERMITTED,
        Reason.DEVICE_LOST,
        Reason.DEVICE_NOT_HELD,
        Reason.DEVICE_ATTACHED,
        Reason.BIND_TIMEOUT,
        Reason.NOT_READY,
    }
)
"""Refusals that may resolve by themselves; the others need a changed request."""
