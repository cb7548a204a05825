"""`node-agent` and `uninstall`: cluster jobs that run beside the controller.

Owns their flags, each of which can also be set by an environment variable.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from reconciler.cluster.kube import KubeCluster
from reconciler.cluster.port import ClusterError
from reconciler.commands.exit_codes import EXIT_DIFFERS, fail
from reconciler.core.model.objects import CLASS, DEVICE
from reconciler.core.model.text import counted
from reconciler.core.model.vocabulary import CLASS_FINALIZER, DEVICE_FINALIZER
from reconciler.node_agent.agent import SYSFS, Agent
from reconciler.runtime.observability.logs import configure_logs
from reconciler.runtime.uninstall import Preview, UninstallIncomplete, preview, uninstall
from reconciler.runtime.wall_clock import now_ms

kubeconfig = click.option("--kubeconfig", help="Kubeconfig file; defaults to in-cluster credentials.")


@click.command("node-agent")
@click.option("--node-name", required=True, help="Name of the node this agent runs on.")
@click.option("--interval-seconds", default=30.0, show_default=True, help="Seconds between two scans of sysfs.")
@click.option("--sysfs", type=click.Path(path_type=Path), default=SYSFS, show_default=True, help="Root of sysfs.")
@click.option(
    "--map-file",
    type=click.Path(path_type=Path),
    help="Resource names by device, in the format of permittedHostDevices; defaults to KubeVirt's own list.",
)
@kubeconfig
def node_agent_command(
    node_name: str, interval_seconds: float, sysfs: Path, map_file: Path | None, kubeconfig: str | None
) -> None:
    """Read this node's GPUs from sysfs and report them as its GPUNode."""
    configure_logs()

    async def run() -> None:
        cluster = await KubeCluster.connect(kubeconfig)
        try:
            agent = Agent(cluster, node_name=node_name, sysfs=sysfs, map_file=map_file, clock=now_ms)
            await agent.run(interval_seconds)
        finally:
            await cluster.close()

    asyncio.run(run())


@click.command("uninstall")
@click.option("--webhook-config-name", required=True, help="Name of both webhook configurations.")
@click.option("--namespace", default="", help="Namespace of the controller.")
@click.option("--workload", default="", help="The controller's StatefulSet, which is scaled down first.")
@click.option("--dry-run", is_flag=True, help="Print what would be deleted and changed; change nothing.")
@kubeconfig
def uninstall_command(
    webhook_config_name: str, namespace: str, workload: str, dry_run: bool, kubeconfig: str | None
) -> None:
    """Remove everything that would block the cluster without gpu-binder: webhook configurations, then finalizers."""

    async def run() -> None:
        cluster = await KubeCluster.connect(kubeconfig)
        try:
            if dry_run:
                planned = await preview(cluster, webhook_config_name, namespace=namespace, workload=workload)
                lines = _preview_lines(planned, webhook_config_name, f"{namespace}/{workload}")
            else:
                done = await uninstall(cluster, webhook_config_name, namespace=namespace, workload=workload)
                lines = [
                    f"removed {done.configurations} webhook configurations and the finalizers of {done.devices} "
                    f"devices and {done.classes} classes"
                ]
        finally:
            await cluster.close()
        click.echo("\n".join(lines))

    try:
        asyncio.run(run())
    except (UninstallIncomplete, ClusterError) as error:
        fail(str(error), EXIT_DIFFERS)


def _preview_lines(planned: Preview, webhook_config_name: str, workload: str) -> list[str]:
    lines = [f"would delete {kind} {webhook_config_name}" for kind in planned.configurations]
    if planned.replicas:
        lines.append(f"would scale StatefulSet {workload} from {counted(planned.replicas, 'replica')} to 0")
    if planned.devices:
        lines.append(f"would remove the finalizer {DEVICE_FINALIZER} from {counted(planned.devices, DEVICE.name)}")
    if planned.classes:
        what = CLASS.name if planned.classes == 1 else f"{CLASS.name}es"
        lines.append(f"would remove the finalizer {CLASS_FINALIZER} from {planned.classes} {what}")
    return [*(lines or ["nothing to remove"]), "nothing was changed"]


COMMANDS = (node_agent_command, uninstall_command)
