"""`node-agent` and `uninstall`: the jobs beside the controller that speak to the cluster.

Owns their flags; each is also read from the environment.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from reconciler.cluster.kube import KubeCluster
from reconciler.cluster.port import ClusterError
from reconciler.commands.exit_codes import EXIT_DIFFERS, fail
from reconciler.node_agent.agent import SYSFS, Agent
from reconciler.runtime.observability.logs import configure_logs
from reconciler.runtime.uninstall import UninstallIncomplete, uninstall
from reconciler.runtime.wall_clock import now_ms

kubeconfig = click.option("--kubeconfig", help="Kubeconfig file; in-cluster credentials otherwise.")


@click.command("node-agent")
@click.option("--node-name", required=True, help="The node this runs on.")
@click.option("--interval-seconds", default=30.0, show_default=True, help="How often the node is looked at.")
@click.option("--sysfs", type=click.Path(path_type=Path), default=SYSFS, show_default=True, help="Root of sysfs.")
@click.option(
    "--map-file",
    type=click.Path(path_type=Path),
    help="Which device is sold under which resource name, as in permittedHostDevices; KubeVirt's own otherwise.",
)
@kubeconfig
def node_agent_command(
    node_name: str, interval_seconds: float, sysfs: Path, map_file: Path | None, kubeconfig: str | None
) -> None:
    """Report this node's GPUs, from sysfs, as its GPUNode."""
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
@click.option("--workload", default="", help="The controller's StatefulSet, to be stopped first.")
@kubeconfig
def uninstall_command(webhook_config_name: str, namespace: str, workload: str, kubeconfig: str | None) -> None:
    """Remove what would block a cluster without gpu-binder: webhook configurations first, then our finalizers."""

    async def run() -> None:
        cluster = await KubeCluster.connect(kubeconfig)
        try:
            done = await uninstall(cluster, webhook_config_name, namespace=namespace, workload=workload)
        finally:
            await cluster.close()
        click.echo(
            f"{done.configurations} webhook configurations removed, {done.devices} devices and {done.classes} classes "
            "let go"
        )

    try:
        asyncio.run(run())
    except (UninstallIncomplete, ClusterError) as error:
        fail(str(error), EXIT_DIFFERS)


COMMANDS = (node_agent_command, uninstall_command)
