"""`plan`: dry run of a manifest or of draining a node.

Owns arguments, the source of the state (a journal or a live cluster) and exit codes; the answers come from
`debugging.planning`.
"""

from __future__ import annotations

import asyncio
import sys

import click

from reconciler.cluster.kube import KubeCluster
from reconciler.cluster.port import ClusterError
from reconciler.commands import console, manifests
from reconciler.commands.exit_codes import EXIT_CLUSTER, EXIT_DIFFERS, EXIT_USAGE, fail
from reconciler.commands.journals import all_opened, output, state_at
from reconciler.commands.plan_tables import print_drain, print_plan
from reconciler.core.model import wire
from reconciler.core.model.objects import Model, Settings
from reconciler.core.state.placement_state import PlacementState
from reconciler.debugging.planning.drain import Drain, drain
from reconciler.debugging.planning.live import read_state
from reconciler.debugging.planning.plan import Outcome, Plan
from reconciler.runtime.wall_clock import now_ms


class PlanAnswer(Model, frozen=True, kw_only=True):
    """Output of `plan -o json`. `source`: journal file or live cluster; `at`: RFC 3339; `entry`: journal entry."""

    source: str
    at: str
    entry: int = 0
    plans: tuple[Plan, ...] = ()
    drain: Drain | None = None


@click.command("plan")
@click.option(
    "-f",
    "--filename",
    "paths",
    multiple=True,
    metavar="FILE",
    help="Manifest of VirtualMachines, VirtualMachineInstances or GPUDevices; - reads standard input.",
)
@click.option("--drain", "node", metavar="NODE", help="Plan the restarts that drain this node instead.")
@click.option(
    "--journal",
    "file",
    type=click.Path(dir_okay=False),
    help="Plan on the state of this journal; defaults to the live cluster.",
)
@click.option(
    "--at", metavar="SEQ|TIME", help="Journal state after this entry or at this time; defaults to the latest."
)
@click.option("-n", "--namespace", help="Namespace for manifests without one.")
@click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False),
    help="Kubeconfig of the live cluster; found like kubectl's by default.",
)
@click.option("--context", help="Context of the kubeconfig.")
@click.option(
    "--settings-namespace",
    default=Settings().namespace,
    show_default=True,
    help="Namespace in which the controller publishes its settings.",
)
@output
def plan_command(
    paths: tuple[str, ...],
    node: str | None,
    file: str | None,
    at: str | None,
    namespace: str | None,
    kubeconfig: str | None,
    context: str | None,
    settings_namespace: str,
    form: str,
) -> None:
    """Show which node a VM would get and whether an order would be held, or everything that blocks it.

    Manifests are planned in order, each on the state its predecessors would leave. Nothing is written.
    Exit code 0: everything fits; 1: something is blocked; 2: invalid manifest or argument; 3: the journal
    cannot be read; 4: the cluster cannot be read.
    """
    if bool(paths) == bool(node):
        raise click.UsageError("give either -f FILE or --drain NODE")
    if at is not None and file is None:
        raise click.UsageError("--at refers to a journal; give --journal FILE as well")
    try:
        wanted = manifests.read(paths, namespace) if paths else []
    except manifests.ManifestError as error:
        fail(str(error), EXIT_USAGE)
    state, source = _journal_state(file, at) if file else _live_state(kubeconfig, context, settings_namespace)
    plans, drained = tuple(manifests.plan_all(state, wanted)), None
    if node is not None:
        try:
            drained = drain(state, node)
        except LookupError:
            fail(f"no node {node}; the nodes are:  {_some(state.node_names())}", EXIT_DIFFERS)
    _show(
        PlanAnswer(
            source=source, at=wire.from_ms(state.now), entry=state.seq if file else 0, plans=plans, drain=drained
        ),
        form,
    )
    if any(plan.outcome is Outcome.BLOCKED for plan in plans) or (drained is not None and drained.stuck):
        sys.exit(EXIT_DIFFERS)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return (", ".join(names[:10]) or "none") + more


def _journal_state(file: str, at: str | None) -> tuple[PlacementState, str]:
    with all_opened([file]) as journals:
        return state_at(journals, at)[1], file


def _live_state(kubeconfig: str | None, context: str | None, settings_namespace: str) -> tuple[PlacementState, str]:
    try:
        return asyncio.run(_read_live(kubeconfig, context, settings_namespace))
    except (ClusterError, wire.WireError) as error:
        fail(f"the cluster cannot be read: {error}; or give --journal FILE", EXIT_CLUSTER)
    raise AssertionError("fail() exits")


async def _read_live(
    kubeconfig: str | None, context: str | None, settings_namespace: str
) -> tuple[PlacementState, str]:
    cluster = await KubeCluster.connect(kubeconfig, context)
    try:
        return await read_state(cluster, Settings(namespace=settings_namespace), now=now_ms()), "live cluster"
    finally:
        await cluster.close()


def _show(answer: PlanAnswer, form: str) -> None:
    if form != "table":
        console.emit(answer, form)
        return
    out = console.console()
    entry = f", entry {answer.entry}" if answer.entry else ""
    out.print(f"on {answer.source}{entry}, {answer.at}", markup=False, soft_wrap=True)
    for plan in answer.plans:
        print_plan(plan, out)
    if answer.drain is not None:
        print_drain(answer.drain, out)


COMMANDS = (plan_command,)
