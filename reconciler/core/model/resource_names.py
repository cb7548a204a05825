"""Which extended resource names denote GPUs, and which of them KubeVirt permits.

Owns R1. Does not know where the lists come from: `wire` reads them, `state` combines them.
"""

from __future__ import annotations

from collections.abc import Iterable

from reconciler.core.model.objects import GpuNode, PermittedDevice
from reconciler.core.model.vocabulary import NVIDIA_VENDOR


def effective_names(
    hoster: Iterable[str],
    class_names: Iterable[str],
    report_names: Iterable[str],
    permitted: Iterable[PermittedDevice],
) -> tuple[str, ...]:
    """The effective GPU resource names, sorted (R1).

    The hoster's list, the classes' resource names, the names agents report, and from KubeVirt's table every
    mediated entry and every NVIDIA PCI entry, whether or not the hoster lists names.
    """
    from_table = (
        device.resource_name for device in permitted if device.mediated or device.vendor.upper() == NVIDIA_VENDOR
    )
    return tuple(sorted({*hoster, *class_names, *report_names, *from_table} - {""}))


def permitted_names(permitted: Iterable[PermittedDevice]) -> frozenset[str]:
    """Names in KubeVirt's table, of any vendor: what a class may ask for (R1, O1 `Permitted`)."""
    return frozenset(device.resource_name for device in permitted)


def reported_names(report: GpuNode) -> tuple[str, ...]:
    """Resource names in a node agent's report, sorted; companion functions have none (O3)."""
    names = {function.resource_name for function in report.functions}
    names |= {profile.resource_name for function in report.functions for profile in function.profiles}
    return tuple(sorted(names - {""}))


def published(names: Iterable[str]) -> str:
    """The names as the settings ConfigMap carries them: sorted, comma-joined (K4)."""
    return ",".join(sorted(set(names)))
