"""Writes the golden journal of the current schema version: `python -m tests.journal.make_golden DIRECTORY`.

Run once for every new schema or event version; what an older build wrote is never written again.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from journal import schema
from journal.events import encode
from journal.sqlite import SqliteJournal
from tests.journal.samples import MORNING


def main(directory: Path) -> None:
    """`vN.sqlite`, and the same entries as JSON lines in `vN.jsonl`."""
    name = f"v{len(schema.MIGRATIONS)}"
    journal = SqliteJournal(directory / f"{name}.sqlite")
    for number, events in enumerate(MORNING, 1):
        journal.append(events, at=1_760_000_000_000 + 250 * number, batch=number)
        if number == 3:
            journal.snapshot(journal.last_seq, journal.last_at, b'{"nodes":["gpu-1","gpu-2"]}', build="0.1.0")
    lines = []
    for entry in journal.read():
        kind, version, payload = encode(entry.event)
        head = {"seq": entry.seq, "batch": entry.batch, "at": entry.at, "kind": kind, "version": version}
        lines.append(msgspec.json.encode({**head, "payload": msgspec.Raw(payload)}))
    journal.close()
    (directory / f"{name}.sqlite.lock").unlink()
    (directory / f"{name}.jsonl").write_bytes(b"\n".join(lines) + b"\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
