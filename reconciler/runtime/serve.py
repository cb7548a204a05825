"""`gpu-binder run`: one replica in production, from an empty process to a drained one (N1).

Owns the order of start and stop and the health endpoints. Starts `controller`, the webhooks' `server`, `telemetry`
and `certificates`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
import uuid
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec
import structlog
from aiohttp import web

from journal.sqlite import SqliteJournal
from reconciler import VERSION
from reconciler.cluster.informers import Timing
from reconciler.cluster.kube import KubeCluster
from reconciler.cluster.port import Cluster
from reconciler.cluster.retry_policies import OWN_USER
from reconciler.core.model.objects import SELF_REVIEW, Settings
from reconciler.core.model.vocabulary import AuthMode
from reconciler.runtime.certificates import CertificateKeeper
from reconciler.runtime.controller import Controller, LeaseTimes
from reconciler.runtime.observability.blocking_conditions import BlockingConditions
from reconciler.runtime.observability.event_recorder import EventRecorder
from reconciler.runtime.observability.logs import LogDecisions, configure_logs
from reconciler.runtime.observability.telemetry import Telemetry
from reconciler.runtime.settings import OptionError, RunOptions, names_of
from reconciler.runtime.wall_clock import now_ms
from webhooks import catalog
from webhooks.callers import Callers
from webhooks.certificates import Certificates
from webhooks.clock import Clock
from webhooks.recording import recording
from webhooks.routes import admission
from webhooks.server import Server

PRUNE_SECONDS = 3600.0
CERTIFICATE_POLL_SECONDS = 2.0
"""Two small files are read; a replica that starts waits this long for the certificate it makes."""
CLOCK_SLACK_MILLISECONDS = 5_000
"""What time synchronisation corrects without anybody's doing."""
BLOCKING_SECONDS = 3.0
"""Beyond the first retries, which pass by themselves; short enough to be read while one waits for a pod."""
DAY_MILLISECONDS = 86_400_000

log = structlog.get_logger("gpu-binder")


class Service:
    """One replica on a real cluster. `run` returns after `stop` and raises whatever made it fail."""

    def __init__(self, options: RunOptions, cluster: Cluster, settings: Settings, journal: SqliteJournal) -> None:
        self.options = options
        auth = AuthMode(options.webhook_auth)
        self.telemetry = Telemetry(auth_required=auth is AuthMode.REQUIRE)
        self.event_recorder = EventRecorder(cluster, identity=options.identity, clock=now_ms)
        self.keeper = _keeper(options, cluster)
        timing = Timing(clock=now_ms, timer=_timer)
        self.journal = journal
        self.controller = Controller(
            cluster,
            journal,
            settings,
            identity=f"{options.identity}_{uuid.uuid4()}",
            build=VERSION,
            timing=timing,
            lease_name=options.lease_name,
            lease_times=LeaseTimes(options.lease_seconds, options.renew_seconds, options.retry_seconds),
            observers=(self.telemetry, LogDecisions(), self.event_recorder),
            restarted=self.telemetry.watch_restarted,
            snapshot_every=options.snapshot_entries,
        )
        for told in self.controller.set_aside:
            log.error("journal set aside", message=told)
        self.admission = admission(
            self.controller.state,
            cluster,
            clock=Clock(),
            bind_seconds=options.bind_deadline_seconds,
            on_bind=self.telemetry.bind_answered,
            on_conflict=self.telemetry.conflicted,
        )
        self.certificates = Certificates(
            options.tls_cert,
            options.tls_key,
            client_ca=options.webhook_client_ca,
            on_error=partial(self._file_refused, "certificate"),
        )
        callers = Callers(
            auth,
            client_ca=options.webhook_client_ca,
            names=names_of(options.webhook_client_names),
            token_file=options.webhook_token_file,
            on_stranger=self.telemetry.stranger_called,
            on_error=partial(self._file_refused, "tokens"),
        )
        if auth is AuthMode.IGNORE:
            log.warning(
                "webhook callers are not authenticated", why="--webhook-auth is Ignore: only the network guards them"
            )
        self.server = Server(
            recording(self.admission.routes, self.controller.refused, now_ms),
            self.certificates,
            ready=lambda: self.controller.synced,
            pages={catalog.PATH: catalog.Catalog(self.controller.state, cluster).handle},
            on_answer=self.telemetry.answered,
            callers=callers,
        )
        self.telemetry.observe(self.controller, self.certificates)
        self.stop = asyncio.Event()
        self._refused: dict[str, str] = {}
        self.webhook_port = 0
        self.metrics_port = 0

    async def run(self) -> None:
        """Serve until `stop` is set, then drain: webhooks finish, the lease is released, the journal gets a
        snapshot."""
        health = web.AppRunner(self._health(), access_log=None)
        await health.setup()
        site = web.TCPSite(health, self.options.metrics_host, self.options.metrics_port)
        try:
            with _listening("metrics", self.options.metrics_host, self.options.metrics_port):
                await site.start()
            self.metrics_port = int(health.addresses[0][1])
            with _listening("listen", self.options.listen_host, self.options.listen_port):
                self.webhook_port = await self.server.start(
                    self.options.listen_host,
                    self.options.listen_port,
                    certificate_poll_seconds=CERTIFICATE_POLL_SECONDS,
                )
        except OptionError:
            await health.cleanup()
            raise
        log.info("started", build=VERSION, webhooks=self.webhook_port, metrics=self.metrics_port)
        halt = asyncio.Event()
        controlling: asyncio.Future[Any] = asyncio.ensure_future(self.controller.run(halt))
        jobs = [
            self._prune(),
            self._log_blocking_conditions(),
            self.event_recorder.run(),
            *([self.keeper.run()] if self.keeper is not None else []),
        ]
        others: list[asyncio.Future[Any]] = [asyncio.ensure_future(job) for job in jobs]
        stopping: asyncio.Future[Any] = asyncio.ensure_future(self.stop.wait())
        try:
            await asyncio.wait({controlling, stopping, *others}, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                log.info("draining")
                await self.server.drain(linger_seconds=self.options.drain_seconds)
                await self.admission.binding.finish_undoing()
            halt.set()
            await controlling
            for task in others:
                if task.done():
                    task.result()
        finally:
            for task in (controlling, stopping, *others):
                task.cancel()
            await asyncio.gather(controlling, stopping, *others, return_exceptions=True)
            with contextlib.suppress(Exception):
                await self.server.drain()
            await health.cleanup()
            self.journal.close()
            log.info("stopped")

    def _file_refused(self, what: str, why: str) -> None:
        """Called at every poll; logs each error once."""
        if why != self._refused.get(what):
            log.error(f"{what} refused", why=why)
        self._refused[what] = why

    async def _log_blocking_conditions(self) -> None:
        blocking = BlockingConditions(log)
        while True:
            await asyncio.sleep(BLOCKING_SECONDS)
            blocking.look(self.controller.blocking())

    async def _prune(self) -> None:
        """Prune the journal to its maximum age and size (J6)."""
        while True:
            await asyncio.sleep(PRUNE_SECONDS)
            before = now_ms() - round(self.options.journal_days * DAY_MILLISECONDS)
            self.controller.loop.save()
            pruned = await asyncio.to_thread(
                self.journal.prune, before_at=before, max_bytes=self.options.journal_megabytes * 2**20
            )
            log.info("journal pruned", entries=pruned, bytes=self.journal.size_bytes)

    def _health(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        return app

    async def _healthz(self, _request: web.Request) -> web.Response:
        problems = self.controller.problems()
        if problems:
            return web.Response(status=HTTPStatus.INTERNAL_SERVER_ERROR, text="\n".join(problems))
        return web.Response(text="ok")

    async def _readyz(self, _request: web.Request) -> web.Response:
        if self.server.ready:
            return web.Response(text="ok")
        if self.controller.synced:
            why = "no certificate is loaded, or draining"
        else:
            why = f"the cluster is not read yet: {', '.join(self.controller.unread()) or 'the last lists are folded'}"
        return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=why)

    async def _metrics(self, _request: web.Request) -> web.Response:
        body, content_type = self.telemetry.render()
        return web.Response(body=body, headers={"Content-Type": content_type})


@contextlib.contextmanager
def _listening(what: str, host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise OptionError(
            f"--{what}-host {host} --{what}-port {port} cannot be listened on: {why}; give an address of this "
            "machine and a free port"
        ) from error


def _keeper(options: RunOptions, cluster: Cluster) -> CertificateKeeper | None:
    """The certificate keeper, None if the certificate files are mounted."""
    if not options.tls_secret:
        return None
    return CertificateKeeper(
        cluster,
        namespace=options.namespace,
        secret_name=options.tls_secret,
        service_name=options.service_name,
        webhook_config_name=options.webhook_config_name,
        certificate=options.tls_cert,
        key=options.tls_key,
        authority=options.tls_ca,
    )


class _UserInfo(msgspec.Struct):
    username: str = ""


class _ReviewStatus(msgspec.Struct, rename="camel"):
    user_info: _UserInfo = msgspec.field(default_factory=_UserInfo)


class _SelfReview(msgspec.Struct):
    status: _ReviewStatus = msgspec.field(default_factory=_ReviewStatus)


async def own_user(cluster: Cluster) -> str:
    """Our user name at the API server; only it may set the template annotation (K2)."""
    body = {"apiVersion": SELF_REVIEW.api_version, "kind": SELF_REVIEW.name}
    answer = await cluster.create(SELF_REVIEW, "", body)
    return msgspec.json.decode(answer, type=_SelfReview).status.user_info.username


def open_journal(options: RunOptions) -> SqliteJournal:
    """The journal at its path; a damaged one is set aside and a new one begun (J6)."""
    journal, told = SqliteJournal.open_or_set_aside(str(options.journal), at=now_ms())
    if told:
        log.error("journal set aside", message=told)
    ahead = journal.last_at - now_ms()
    if ahead > CLOCK_SLACK_MILLISECONDS:
        log.warning(
            "clock behind journal",
            message=f"the newest entry of {options.journal} is {ahead / 1000:.0f} s ahead of this machine's clock; "
            "time goes on from there. Set the clock right: usage records and grace times count by it",
        )
    return journal


async def serve(options: RunOptions) -> None:
    """Run one replica until SIGTERM or SIGINT."""
    options.check()
    configure_logs(options.log_level)
    journal = open_journal(options)
    cluster = await KubeCluster.connect(options.kubeconfig, options.context)
    try:
        settings = options.settings()
        if not options.service_account:
            user = await OWN_USER.call(partial(own_user, cluster), asyncio.sleep, failed=_unknown_user)
            settings = msgspec.structs.replace(settings, writer=user)
        service = Service(options, cluster, settings, journal)
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, service.stop.set)
        await service.run()
    finally:
        await cluster.close()


def _unknown_user(error: BaseException) -> None:
    log.warning("cannot ask the API server who we are, trying again", error=str(error))


def _timer() -> float:
    """Seconds since boot, suspension included: a suspended machine must not trust its old lease (J5)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
