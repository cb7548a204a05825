"""Real samples: the objects of a cluster in which VMs run with GPUs, and the reviews its API server sent meanwhile.

Owns the story they are taken from.
"""

from __future__ import annotations

import asyncio
import copy
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, NamedTuple

import msgspec

from journal.store import MemoryJournal
from reconciler.cluster.memory.json_objects import Document
from reconciler.core.model.objects import KINDS, Function, Profile
from reconciler.core.model.vocabulary import FunctionKind
from reconciler.demo.environment import Environment

A10, TYPE = "nvidia.com/A10", "nvidia.com/NVIDIA_A10-4Q"
NS = "tenant-acme"
PATHS = {
    "devices.gpu-binder": "/admit/devices",
    "machines.gpu-binder": "/admit/machines",
    "pods.gpu-binder": "/admit/pods",
    "tenants.gpu-binder": "/admit/tenants",
}
GUEST = {
    "nodeSelector": {"zone": "a"},
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}]
            }
        }
    },
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
}


class Samples(NamedTuple):
    """`reviews`: path to the reviews sent there. `objects`: kind to its objects."""

    reviews: dict[str, list[Document]]
    objects: dict[str, list[Document]]


async def opened() -> Environment:
    """A cluster of two nodes with classes, nested tenants and two held orders, led by one replica."""
    env = Environment()
    await env.open()
    for node, units in (("gpu-1", 8), ("gpu-2", 4)):
        await env.ecosystem.add_node(node, {A10: units, TYPE: 2}, {"zone": "a"})
    await env.ecosystem.kubevirt({A10: "10DE:2236", TYPE: "NVIDIA A10-4Q"})
    await env.ecosystem.gpu_class("a10", A10, max_count=4)
    await env.ecosystem.gpu_class("a10-4q", TYPE, "VGPU")
    await env.ecosystem.tenant("acme", quotas={"gpu.cozystack.io/a10": "8", f"requests.{TYPE}": 6}, entitled=True)
    await env.add_replica(MemoryJournal(), "binder-0", new_id=iter(f"request-{n}" for n in range(10_000)).__next__)
    await env.later(5)
    for name in ("d1", "d2"):
        await env.do(env.ecosystem.order(NS, name, "a10"))
    await env.settle()
    return env


@cache
def samples() -> Samples:
    """The samples of one story; callers copy what they change."""
    return asyncio.run(_collected())


async def _collected() -> Samples:
    env = await opened()
    reviews = _overheard(env)
    await env.do(env.ecosystem.order(NS, "d3", "a10", 2))
    await env.do(env.ecosystem.tenant("lab", NS, {"gpu.cozystack.io/a10": "2"}))
    await env.do(env.ecosystem.tenant("lab", NS, {"gpu.cozystack.io/a10": "1", f"limits.{TYPE}": "1"}))
    await env.do(env.ecosystem.vmi(NS, "plain", ["d1"]))
    await env.do(env.ecosystem.vmi(NS, "mixed", ["d2", {"className": "a10", "count": 2}], spec=GUEST))
    await env.ecosystem.pod(NS, "raw", {A10: 1})
    functions = [
        Function("0000:01:00.0", "s-1", "", FunctionKind.PHYSICAL, A10),
        Function("0000:02:00.4", "s-2", "0000:02:00.0", FunctionKind.VIRTUAL_FUNCTION, "", False, "no driver"),
        Function("0000:03:00.0", "s-3", "", FunctionKind.MDEV_PARENT, "", profiles=(Profile(TYPE, 1, 3),)),
    ]
    await env.ecosystem.report("gpu-1", functions)
    await env.settle()
    objects = {name: env.cluster.peek_all(kind) for name, kind in KINDS.items()}
    await env.close()
    assert all(objects.values()) and len(reviews) == len(PATHS), "a kind or a webhook without a sample"
    return Samples(dict(reviews), copy.deepcopy(objects))


def _overheard(env: Environment) -> defaultdict[str, list[Document]]:
    """The reviews by path, as the API server sends them from now on."""
    reviews: defaultdict[str, list[Document]] = defaultdict(list)

    def listening(path: str, call: Callable[[Document], Awaitable[Document]]) -> Any:
        async def heard(review: Document) -> Document:
            reviews[path].append(copy.deepcopy(review))
            return await call(review)

        return heard

    for name, path in PATHS.items():
        hook = env.cluster.admission._webhooks[name]
        env.cluster.admission.register(msgspec.structs.replace(hook, call=listening(path, hook.call)))
    return reviews
