"""Requests judged by the raw-name policy, with expected results (V1, V2, V3).

Plain data: who, where, what, and the text of the refusal ("" is allowed). `A10` is in the published set, `VF` is
another vendor's network function that is permitted and not a GPU.
"""

from typing import Any, NamedTuple

A10 = "nvidia.com/GA102GL_A10"
TABLE_ONLY = "nvidia.com/NVIDIA_A16-4Q"
VF = "mellanox.com/CX6_VF"
KUBEVIRT = "system:serviceaccount:cozy-kubevirt:kubevirt-controller"
TENANT = "alice"
KEY = "gpu.cozystack.io/devices"
REFERENCE = '[{"device": "training"}]'
ORDERED = "GPUs are ordered"
LABEL_NEEDED = "needs the label"
ONLY_KUBEVIRT = "only KubeVirt makes launchers"
KEPT = "keeps its label and annotation"


class Case(NamedTuple):
    name: str
    manifest: dict[str, Any]
    refused: str = ""
    user: str = TENANT
    namespace: str = "tenant-acme"
    policy: str = "Forbidden"


def instance(name: str, *, labels=None, annotations=None, **domain: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": name, "labels": labels or {}, "annotations": annotations or {}},
        "spec": {"domain": domain},
    }


def machine(name: str, **parts: Any) -> dict[str, Any]:
    template = instance(name, **parts)
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name},
        "spec": {
            "running": False,
            "template": {"metadata": template["metadata"], "spec": template["spec"]},
        },
    }


def pod(name: str, *, labels=None, owners=(), init=None, **resources: Any) -> dict[str, Any]:
    containers = [{"name": "main", "image": "none", "resources": resources}]
    spec: dict[str, Any] = {"containers": containers, "automountServiceAccountToken": False}
    if init:
        spec["initContainers"] = [{"name": "init", "image": "none", "resources": init}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}, "ownerReferences": list(owners)},
        "spec": spec,
    }


def controlled_by(kind: str, version: str = "kubevirt.io/v1", *, controller: bool = True) -> list[dict[str, Any]]:
    """Owner references of a pod with one owner."""
    uid = "9d5d9c3e-0000-4000-8000-000000000000"
    return [{"apiVersion": version, "kind": kind, "name": "vm", "uid": uid, "controller": controller}]


def one(name: str) -> dict[str, str]:
    return {name: "1"}


def device(name: str) -> list[dict[str, str]]:
    return [{"name": "d1", "deviceName": name}]


def both(name: str) -> dict[str, Any]:
    return {"requests": one(name), "limits": one(name)}


LAUNCHER = {"kubevirt.io": "virt-launcher"}
HOT_PLUG = {"kubevirt.io": "hotplug-disk"}
MARKED = {KEY: "true"}
BY_INSTANCE = controlled_by("VirtualMachineInstance")
BY_A_SET = controlled_by("ReplicaSet", "apps/v1")

CASES = (
    Case("machine-gpus", machine("m1", devices={"gpus": device(A10)}), ORDERED),
    Case("machine-host-devices", machine("m2", devices={"hostDevices": device(A10)}), ORDERED),
    Case("machine-requests", machine("m3", resources={"requests": one(A10)}), ORDERED),
    Case("machine-limits", machine("m4", resources={"limits": one(A10)}), ORDERED),
    Case("machine-table-only-name", machine("m5", devices={"gpus": device(TABLE_ONLY)}), ORDERED),
    Case("machine-network-function", machine("m6", devices={"hostDevices": device(VF)})),
    Case("machine-plain", machine("m7", resources={"requests": {"memory": "1Gi"}})),
    Case("machine-empty-domain", machine("m8")),
    Case(
        "machine-references",
        machine("m9", labels=MARKED, annotations={KEY: REFERENCE}),
    ),
    Case("machine-references-and-raw", machine("m10", labels=MARKED, devices={"gpus": device(A10)}), ORDERED),
    Case("machine-by-kubevirt", machine("m11", devices={"gpus": device(A10)}), ORDERED, KUBEVIRT),
    Case("machine-annotation-only", machine("m12", annotations={KEY: REFERENCE}), LABEL_NEEDED),
    Case(
        "machine-annotation-with-false-label",
        machine("m13", labels={KEY: "false"}, annotations={KEY: REFERENCE}),
        LABEL_NEEDED,
    ),
    Case(
        "machine-annotation-only-where-raw-is-allowed",
        machine("m14", annotations={KEY: REFERENCE}),
        LABEL_NEEDED,
        policy="Allowed",
    ),
    Case("machine-raw-where-allowed", machine("m15", devices={"gpus": device(A10)}), policy="Allowed"),
    Case("machine-outside-tenants", machine("m16", devices={"gpus": device(A10)}), namespace="cozy-elsewhere"),
    Case("instance-gpus", instance("i1", devices={"gpus": device(A10)}), ORDERED),
    Case("instance-host-devices", instance("i2", devices={"hostDevices": device(A10)}), ORDERED),
    Case("instance-limits", instance("i3", resources={"limits": one(A10)}), ORDERED),
    Case("instance-by-kubevirt-unmarked", instance("i4", devices={"gpus": device(A10)}), ORDERED, KUBEVIRT),
    Case("instance-marked", instance("i5", labels=MARKED, devices={"gpus": device(A10)}), "", KUBEVIRT),
    Case("instance-marked-with-limits", instance("i6", labels=MARKED, resources=both(A10)), ORDERED, KUBEVIRT),
    Case("instance-annotation-only", instance("i7", annotations={KEY: REFERENCE}), LABEL_NEEDED, KUBEVIRT),
    Case("instance-network-function", instance("i8", devices={"hostDevices": device(VF)})),
    Case("pod-limits", pod("p1", **both(A10)), ORDERED),
    Case("pod-init", pod("p2", init=both(A10)), ORDERED),
    Case("pod-network-function", pod("p3", **both(VF))),
    Case("pod-plain", pod("p4")),
    Case("pod-launcher-by-kubevirt", pod("p5", labels=LAUNCHER, **both(A10)), "", KUBEVIRT),
    Case("pod-launcher-by-tenant", pod("p6", labels=LAUNCHER, **both(A10)), ORDERED),
    Case("pod-other-by-kubevirt", pod("p7", **both(A10)), ORDERED, KUBEVIRT),
    Case("pod-where-allowed", pod("p8", **both(A10)), policy="Allowed"),
    Case("pod-outside-tenants", pod("p9", **both(A10)), namespace="cozy-elsewhere"),
    Case("pod-in-kube-system", pod("p10", **both(A10)), namespace="kube-system"),
    Case("launcher-by-label", pod("l1", labels=LAUNCHER), ONLY_KUBEVIRT),
    Case("launcher-by-label-where-raw-is-allowed", pod("l2", labels=LAUNCHER), ONLY_KUBEVIRT, policy="Allowed"),
    Case("launcher-by-controller", pod("l3", owners=BY_INSTANCE), ONLY_KUBEVIRT),
    Case("launcher-by-controller-where-allowed", pod("l4", owners=BY_INSTANCE), ONLY_KUBEVIRT, policy="Allowed"),
    Case(
        "launcher-that-asks-for-gpus-where-allowed",
        pod("l5", labels=LAUNCHER, owners=BY_INSTANCE, **both(A10)),
        ONLY_KUBEVIRT,
        policy="Allowed",
    ),
    # KubeVirt compares the uid alone, and its label with any value will do.
    Case("launcher-by-label-and-uid", pod("l6", labels=HOT_PLUG, owners=controlled_by("Else", "a/v1")), ONLY_KUBEVIRT),
    Case("launcher-by-kubevirt", pod("l7", labels=LAUNCHER, owners=BY_INSTANCE, **both(A10)), "", KUBEVIRT),
    Case(
        "launcher-by-kubevirt-where-allowed",
        pod("l8", labels=LAUNCHER, owners=BY_INSTANCE),
        "",
        KUBEVIRT,
        policy="Allowed",
    ),
    Case("hot-plug-pod-by-kubevirt", pod("l9", labels=HOT_PLUG, owners=controlled_by("Pod", "v1")), "", KUBEVIRT),
    Case("pod-of-a-set", pod("l10", owners=BY_A_SET)),
    Case("pod-with-another-kubevirt-label", pod("l11", labels=HOT_PLUG)),
    Case("pod-owned-and-not-controlled", pod("l12", owners=controlled_by("VirtualMachineInstance", controller=False))),
    Case("launcher-outside-tenants", pod("l13", labels=LAUNCHER), namespace="cozy-elsewhere"),
)
