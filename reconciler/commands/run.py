"""`run`: the flags of the controller and webhooks.

Owns the mapping from flags to `settings.RunOptions`: one flag a field, its help beside it. The environment variable
of a flag is GPU_BINDER_RUN_ and its name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from reconciler.core.model.vocabulary import RawNamePolicy
from reconciler.runtime.settings import OptionError, RunOptions

HELP = {
    "namespace": "Namespace of the controller, its lease and the settings ConfigMap.",
    "identity": "Name of this replica; the pod's name in a cluster.",
    "journal": "SQLite file of this replica's journal.",
    "kubeconfig": "Kubeconfig file; in-cluster credentials otherwise.",
    "context": "Context of the kubeconfig.",
    "listen_host": "Address of the webhooks.",
    "listen_port": "Port of the webhooks (HTTPS).",
    "metrics_host": "Address of metrics and health.",
    "metrics_port": "Port of metrics and health (HTTP).",
    "tls_cert": "Serving certificate (PEM), read again when it changes.",
    "tls_key": "Key of the serving certificate (PEM).",
    "tls_ca": "Certificate authority of the serving certificate (PEM).",
    "tls_secret": "Make and rotate the certificate in this Secret; mounted files otherwise.",
    "service_name": "Service the webhooks are called by, for the self-made certificate.",
    "webhook_config_name": "Webhook configurations whose caBundle follows the self-made certificate.",
    "service_account": "Our own user name; asked of the API server otherwise.",
    "resource_names": "Further GPU resource names, comma-separated.",
    "raw_name_policy": "Whether tenants may ask for a GPU by its resource name.",
    "manager_users": "User names whose launchers and VMIs the raw-name policy leaves to the webhooks.",
    "bind_deadline_seconds": "How long a start waits for the binder.",
    "lost_grace_seconds": "How long a node may serve too few units before devices are Lost.",
    "attach_grace_seconds": "How long an attachment may wait for its VMI.",
    "settle_seconds": "How long a pod must run unlisted before its use counts as raw in usage records.",
    "report_stale_seconds": "Age at which a node agent's report stops speaking.",
    "lease_name": "Name of the leader lease.",
    "lease_seconds": "How long others wait for a silent leader.",
    "renew_seconds": "How long a leader believes in a lease it could not renew.",
    "retry_seconds": "How often the lease is tried or renewed.",
    "journal_days": "Entries older than this are pruned.",
    "journal_megabytes": "The journal is pruned to this size.",
    "snapshot_entries": "A snapshot is taken after this many entries.",
    "drain_seconds": "How long webhooks are still served after SIGTERM.",
    "log_level": "debug, info, warning or error.",
}
"""Field of RunOptions to the help of its flag."""


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for field in reversed(msgspec.structs.fields(RunOptions)):
        required = field.default is msgspec.NODEFAULT
        shown: dict[str, Any] = {"help": HELP[field.name], "required": required, "show_envvar": True}
        if not required:
            shown |= {"default": field.default, "show_default": field.default not in (None, "")}
        if field.name == "raw_name_policy":
            shown["type"] = click.Choice([policy.value for policy in RawNamePolicy])
        elif field.type is Path or isinstance(field.default, Path):
            shown["type"] = click.Path(path_type=Path)
        elif isinstance(field.default, int | float):
            shown["type"] = type(field.default)
        command = click.option(f"--{field.name.replace('_', '-')}", **shown)(command)
    return command


@click.command("run")
@_options
def run_command(**values: Any) -> None:
    """Run the controller and the webhooks of one replica."""
    options = RunOptions(**values)
    try:
        options.check()
        from reconciler.runtime.serve import serve

        asyncio.run(serve(options))
    except OptionError as error:
        raise click.UsageError(str(error)) from error


COMMANDS = (run_command,)
