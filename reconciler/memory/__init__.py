"""A cluster in this process, with the API server's manners, and the players around it.

For the demo, the scenarios and the seeded simulation. `MemoryCluster` is the port, `players` are virt-api,
virt-controller, the scheduler and the kubelets.
"""

from reconciler.memory.admission import Identity, Webhook
from reconciler.memory.cluster import MemoryCluster, MemoryPort
from reconciler.memory.faults import Call, Fault, Faults, Held
from reconciler.memory.store import Written

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
