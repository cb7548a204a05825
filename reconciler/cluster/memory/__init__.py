"""In-memory cluster with API server semantics, and simulated controllers around it.

Used by the demo, the scenarios and the seeded simulation. `MemoryCluster` implements the port; `ecosystem` simulates
virt-api, virt-controller, the scheduler and the kubelets.
"""

from reconciler.cluster.memory.admission import Identity, Webhook
from reconciler.cluster.memory.cluster import MemoryCluster, MemoryPort
from reconciler.cluster.memory.faults import Call, Fault, Faults, Held
from reconciler.cluster.memory.store import Written

__all__ = [
    "Call",
    "Fault",
    "Faults",
    "Held",
    "Identity",
    "MemoryCluster",
    "MemoryPort",
    "Webhook",
    "Written",
]
