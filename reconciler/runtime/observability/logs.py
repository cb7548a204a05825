"""Structured logs: one JSON object a line on stderr, or coloured lines where a person looks (N4).

Owns the configuration of structlog and the words that log lines use (`LOG_FIELDS`, which the documentation is held
to). A start can be followed by its request id from the webhook that asked to the binder that answered.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

import structlog
from aiohttp.http_exceptions import HttpProcessingError
from structlog.types import Processor

from journal import events
from journal.events import Entry
from journal.store import Journal
from reconciler.core.state.decisions import Action, Decision
from reconciler.core.state.placement_state import PlacementState

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

LOG_FIELDS: dict[str, str] = {
    "action": "What a decision does: Hold, Bind, RefuseBind, Lose and so on.",
    "address": "Address of a caller that is not authenticated.",
    "build": "Version of the program.",
    "bytes": "Size of the journal.",
    "device": "A GPUDevice.",
    "devices": "GPUDevices of a start.",
    "entries": "Journal entries that were pruned.",
    "epoch": "Number of the leadership.",
    "error": "Why something failed, in the words of whoever refused it.",
    "event": "What happened, a few fixed words.",
    "exception": "Traceback of a fault of ours.",
    "functions": "GPU functions in a node's report.",
    "identity": "The replica, unique per process.",
    "kind": "Kind of the subject.",
    "level": "debug, info, warning or error.",
    "logger": "Part of the program, or the library, that logged the line.",
    "message": "The sentence a tenant reads in a condition or a denial.",
    "metrics": "Port of metrics and health.",
    "missing": "Units that lack for a yes.",
    "name": "Name of an object.",
    "namespace": "Namespace of an object.",
    "node": "Node of a placement or a report.",
    "reason": "Why a request is refused, one of the documented reasons.",
    "request_id": "Id of a bind request, from the webhook that wrote it to the binder that answers.",
    "review": "Uid of the AdmissionReview.",
    "seq": "Journal entry; `gpu-binder replay --at SEQ` shows the state there.",
    "stage": "Where the rotation of the certificate authority stands.",
    "subject": "NAMESPACE/NAME, or the name, that a decision is about.",
    "timestamp": "RFC 3339, UTC.",
    "user": "Who sent the request that a webhook failed on.",
    "vmi": "NAMESPACE/NAME of a VirtualMachineInstance.",
    "webhook": "Path of the webhook.",
    "webhooks": "Port of the webhooks.",
    "why": "Why a leadership ended or a file was not taken.",
    "write": "SEQ.INDEX: the decision's entry and the write's place in it.",
}
"""Every field of a log line to what it holds."""


def configure_logs(level: str = "info", stream: TextIO | None = None) -> None:
    """Log to `stream` (stderr) from `level` on, libraries from warnings on. Raises ValueError for a level that
    is none of `LEVELS`."""
    if level not in LEVELS:
        raise ValueError(f"log level {level!r} is none of {', '.join(LEVELS)}")
    out = stream or sys.stderr
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[Processor] = (
        [structlog.dev.ConsoleRenderer()]
        if out.isatty()
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(sort_keys=False)]
    )
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    handler.addFilter(no_strangers_fault)
    logging.basicConfig(handlers=[handler], level=max(LEVELS[level], logging.WARNING), force=True)


def no_strangers_fault(record: logging.LogRecord) -> bool:
    """Filter of library logs: aiohttp logs a traceback for every request that is not HTTP, such as a port scanner's,
    after it has answered 400."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_QUIET = (Action.FENCE, Action.GUARD, Action.PUBLISH_CLASS, Action.PUBLISH_SETTINGS)
"""Decisions internal to the protocol, logged at debug level."""
_WARNED = (Action.LOSE,)


class LogDecisions:
    """A loop observer that logs every decision and the facts an operator looks for."""

    def __init__(self, log: Any = None) -> None:
        self._log = log or structlog.get_logger("binder")

    def folded(self, count: int, seconds: float, backlog: int) -> None:
        """Batches are counted, not logged."""

    def recorded(self, entry: Entry) -> None:
        """Leadership, objects that cannot be read, writes that did not land."""
        match entry.event:
            case events.LeadershipAcquired(identity, epoch):
                self._log.info("leader", identity=identity, epoch=epoch, seq=entry.seq)
            case events.HistoryReplaced(kind, known, found):
                self._log.error(
                    "the API server's data was replaced",
                    kind=kind,
                    message=f"version {found} was read where {known} had been seen: etcd was restored from a backup, "
                    "or this is another cluster. Everything is read again; usage at the seam is inexact",
                    seq=entry.seq,
                )
            case events.LeadershipLost(identity, why):
                self._log.warning("no longer leader", identity=identity, why=why, seq=entry.seq)
            case events.ObjectUnreadable() as found:
                self._log.warning(
                    "unreadable",
                    kind=found.kind,
                    namespace=found.namespace,
                    name=found.name,
                    error=found.error,
                    seq=entry.seq,
                )
            case events.WriteRejected(write, message):
                self._log.error("write rejected", write=write, error=message, seq=entry.seq)
            case events.WriteConflicted(write, message):
                self._log.info("write conflicted", write=write, error=message, seq=entry.seq)
            case events.KindListed(kind, True):
                self._log.warning("kind not installed", kind=kind, seq=entry.seq)

    def decided(self, entry: Entry, decision: Decision, seconds: float) -> None:
        """One line per decision; empty fields are omitted."""
        fields = {
            "request_id": decision.request_id,
            "node": decision.node,
            "reason": decision.reason,
            "message": decision.message,
            "missing": decision.missing,
        }
        write = self._log.info
        if decision.action in _QUIET:
            write = self._log.debug
        elif decision.action in _WARNED:
            write = self._log.warning
        write(
            "decided",
            action=decision.action.value,
            kind=decision.kind,
            subject=decision.subject,
            seq=entry.seq,
            **{name: value for name, value in fields.items() if value},
        )

    def committed(self, journal: Journal, state: PlacementState) -> None:
        """Logs nothing: the journal has every event."""
