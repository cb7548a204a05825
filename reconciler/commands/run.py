"""`run`: the controller and webhooks of one replica.

Owns the flags, one per field of `settings.RunOptions`, and their help. The environment variable
of a flag is GPU_BINDER_RUN_ and its name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from reconciler.core.model.vocabulary import AuthMode, RawNamePolicy, TenantDetail
from reconciler.runtime.settings import OptionError, RunOptions

HELP = {
    "namespace": "Namespace of the controller, its lease and the settings ConfigMap.",
    "identity": "Name of this replica; in a cluster, the name of its pod.",
    "journal": "SQLite file for this replica's journal.",
    "kubeconfig": "Kubeconfig file; defaults to in-cluster credentials.",
    "context": "Context of the kubeconfig.",
    "listen_host": "Listen address of the webhooks.",
    "listen_port": "Port of the webhooks (HTTPS).",
    "metrics_host": "Listen address for metrics and health.",
    "metrics_port": "Port for metrics and health (HTTP).",
    "tls_cert": "Serving certificate (PEM), reloaded on change.",
    "tls_key": "Private key of the serving certificate (PEM).",
    "tls_ca": "Certificate authority of the serving certificate (PEM).",
    "tls_secret": "Issue and rotate the certificate in this Secret; by default mounted files are used.",
    "webhook_auth": "Callers of webhooks without valid credentials. Ignore: not asked; Report: counted; Require: 401.",
    "webhook_client_ca": "Authorities (PEM) of the API servers' client certificates, reloaded on change.",
    "webhook_client_names": "Accepted common names of client certificates, comma-separated; by default any.",
    "webhook_token_file": "Accepted bearer tokens of the API servers, one per line, reloaded on change.",
    "service_name": "Service of the webhooks, named in the self-issued certificate.",
    "webhook_config_name": "Webhook configurations whose caBundle is kept in sync with the self-issued certificate.",
    "service_account": "User name of the controller; queried from the API server by default.",
    "resource_names": "Additional GPU resource names, comma-separated.",
    "raw_name_policy": "Whether tenants may request GPUs by resource name.",
    "manager_users": "Users whose launchers and VMIs are checked by the webhooks instead of the raw-name policy.",
    "tenant_detail": "Own: tenants read their own names and numbers. Full: also those of other tenants and nodes.",
    "bind_deadline_seconds": "How long a start waits for its placement.",
    "lost_grace_seconds": "How long a node may serve too few units before devices become Lost.",
    "attach_grace_seconds": "How long an attachment may wait for its VMI.",
    "settle_seconds": "How long a pod must run without being claimed by a VMI before it is metered as raw use.",
    "report_stale_seconds": "Age at which a node agent's report is stale.",
    "lease_name": "Name of the leader lease.",
    "lease_seconds": "Lease duration: how long other replicas wait before they take over.",
    "renew_seconds": "Renew deadline: how long a leader keeps trying to renew before it steps down.",
    "retry_seconds": "Interval between attempts to acquire or renew the lease.",
    "journal_days": "Prune entries older than this.",
    "journal_megabytes": "Prune the journal to this size.",
    "snapshot_entries": "Number of entries between snapshots.",
    "drain_seconds": "How long webhooks are served after SIGTERM.",
    "log_level": "debug, info, warning or error.",
}
"""Help of each flag, by field of RunOptions."""


CHOICES = {"raw_name_policy": RawNamePolicy, "tenant_detail": TenantDetail, "webhook_auth": AuthMode}


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for field in reversed(msgspec.structs.fields(RunOptions)):
        required = field.default is msgspec.NODEFAULT
        shown: dict[str, Any] = {"help": HELP[field.name], "required": required, "show_envvar": True}
        if not required:
            shown |= {"default": field.default, "show_default": field.default not in (None, "")}
        if field.name in CHOICES:
            shown["type"] = click.Choice([value.value for value in CHOICES[field.name]])
        elif field.type in (Path, Path | None) or isinstance(field.default, Path):
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
