"""Requests judged by the raw-name policy, with expected results (V1, V2).

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


def pod(name: str, *, labels=None, init=None, **resources: Any) -> dict[str, Any]:
    containers = [{"name": "main", "image": "none", "resources": resources}]
    spec: dict[str, Any] = {"containers": containers, "automountServiceAccountToken": False}
    if init:
        spec["initContainers"] = [{"name": "init", "image": "none", "resources": init}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": spec,
    }


def one(name: str) -> dict[str, str]:
    return {name: "1"}


def device(name: str) -> list[dict[str, str]]:
    return [{"name": "d1", "deviceName": name}]


def both(name: str) -> dict[str, Any]:
    return {"requests": one(name), "limits": one(name)}


LAUNCHER = {"kubevirt.io": "virt-launcher"}
MARKED = {KEY: "true"}

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
)
