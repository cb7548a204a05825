"""Options of `gpu-binder run`, validated before anything starts.

Owns the meaning and limits of the flags; each is also read from the environment as GPU_BINDER_RUN_FLAG. Those the
model depends on become `core.model.objects.Settings` and are journaled.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from reconciler.core.model.objects import CLOCK_MARGIN, Settings
from reconciler.core.model.vocabulary import AuthMode, RawNamePolicy, TenantDetail
from reconciler.runtime.observability.logs import LEVELS

MAX_PORT = 65_535


class OptionError(ValueError):
    """An invalid flag value; the message names the flag and the remedy."""


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of `run` by name. Durations are in seconds unless the name says otherwise."""

    namespace: str
    identity: str
    journal: Path
    kubeconfig: str | None = None
    context: str | None = None
    listen_host: str = "0.0.0.0"
    listen_port: int = 8443
    metrics_host: str = "0.0.0.0"
    metrics_port: int = 8080
    tls_cert: Path = Path("/run/gpu-binder/tls/tls.crt")
    tls_key: Path = Path("/run/gpu-binder/tls/tls.key")
    tls_ca: Path = Path("/run/gpu-binder/tls/ca.crt")
    tls_secret: str = ""
    webhook_auth: str = AuthMode.IGNORE.value
    webhook_client_ca: Path | None = None
    webhook_client_names: str = ""
    webhook_token_file: Path | None = None
    service_name: str = ""
    webhook_config_name: str = ""
    service_account: str = ""
    resource_names: str = ""
    raw_name_policy: str = RawNamePolicy.ALLOWED.value
    manager_users: str = ""
    tenant_detail: str = TenantDetail.OWN.value
    bind_deadline_seconds: float = 8.0
    lost_grace_seconds: float = 60.0
    attach_grace_seconds: float = 60.0
    settle_seconds: float = 60.0
    report_stale_seconds: float = 120.0
    lease_name: str = "gpu-binder"
    lease_seconds: float = 15.0
    renew_seconds: float = 10.0
    retry_seconds: float = 2.0
    journal_days: float = 90.0
    journal_megabytes: int = 4096
    snapshot_entries: int = 20_000
    drain_seconds: float = 5.0
    log_level: str = "info"

    def check(self) -> None:
        """Validate the flags. Raises `OptionError`."""
        self._check_ranges()
        if not 0 < self.retry_seconds < self.renew_seconds < self.lease_seconds:
            raise OptionError(
                "--retry-seconds < --renew-seconds < --lease-seconds must hold, or two replicas could lead at once; "
                f"got {self.retry_seconds:g}, {self.renew_seconds:g}, {self.lease_seconds:g}"
            )
        if not 1 <= self.bind_deadline_seconds <= 25:
            raise OptionError(
                f"--bind-deadline-seconds is {self.bind_deadline_seconds:g}; between 1 and 25, below the 30 s that the "
                "API server waits for a webhook at most"
            )
        if self.attach_grace_seconds < 2 * self.bind_deadline_seconds:
            raise OptionError(
                f"--attach-grace-seconds is {self.attach_grace_seconds:g}; at least twice --bind-deadline-seconds, or "
                "a start that is still waiting would be released"
            )
        if self.webhook_auth != AuthMode.IGNORE.value and not (self.webhook_client_ca or self.webhook_token_file):
            raise OptionError(
                f"--webhook-auth is {self.webhook_auth}; give --webhook-client-ca, --webhook-token-file or both, or "
                "nobody could be told from a stranger"
            )
        if self.tls_secret and not (self.service_name and self.webhook_config_name):
            raise OptionError("--tls-secret needs --service-name and --webhook-config-name as well")

    def _check_ranges(self) -> None:
        if self.log_level not in LEVELS:
            raise OptionError(f"--log-level is {self.log_level!r}; one of {', '.join(LEVELS)}")
        for name in ("listen_port", "metrics_port"):
            if not 0 <= getattr(self, name) <= MAX_PORT:
                raise OptionError(f"{_flag(name)} is {getattr(self, name)}; between 0 (any free port) and {MAX_PORT}")
        for name in ("journal_days", "journal_megabytes", "snapshot_entries"):
            if not getattr(self, name) > 0:
                raise OptionError(f"{_flag(name)} is {getattr(self, name):g}; more than 0")
        for name in ("lost_grace_seconds", "settle_seconds", "report_stale_seconds", "drain_seconds"):
            if not 0 <= getattr(self, name) < math.inf:
                raise OptionError(f"{_flag(name)} is {getattr(self, name):g}; 0 or more")

    def settings(self) -> Settings:
        """The settings the model depends on."""
        return Settings(
            namespace=self.namespace,
            resource_names=names_of(self.resource_names),
            raw_name_policy=RawNamePolicy(self.raw_name_policy),
            manager_users=names_of(self.manager_users),
            tenant_detail=TenantDetail(self.tenant_detail),
            writer=self.service_account or f"system:serviceaccount:{self.namespace}:gpu-binder",
            lost_grace=round(self.lost_grace_seconds * 1000),
            attach_grace=round(self.attach_grace_seconds * 1000),
            settle=round(self.settle_seconds * 1000),
            report_stale=round(self.report_stale_seconds * 1000),
            report_margin=CLOCK_MARGIN,
        )


def _flag(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def names_of(text: str) -> tuple[str, ...]:
    return tuple(sorted({part.strip() for part in text.split(",") if part.strip()}))
