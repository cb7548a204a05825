"""Moves the part of a journal that cannot be read into a file of its own, so that the rest goes on (J6).

Owns the order of the steps: the copy is on disk before anything is deleted. Neighbours: `files` moves a whole journal,
`sqlite` decides what cannot be read.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

from sqlite_utils import Database

from journal import files, schema
from journal.connection import Connection


def move_tail(connection: Connection, seq: int, at: int) -> str:
    """Move the entries from `seq` on, and their snapshots, to a new file; returns its path. `at`: now, in ms."""
    return _move(connection, {"entries": "seq >= ?", "snapshots": "seq >= ?"}, seq, at)


def move_snapshot(connection: Connection, seq: int, at: int) -> str:
    """Move the snapshot of entry `seq` to a new file; returns its path. `at`: now, in ms."""
    return _move(connection, {"snapshots": "seq = ?"}, seq, at)


def _move(connection: Connection, rows: dict[str, str], seq: int, at: int) -> str:
    target = files.free_name(connection.path, at)
    with connection.mutex, connection.errors():
        connection.check_writable()
        with closing(sqlite3.connect(target)) as made:
            schema.create(Database(made, execute_plugins=False))
        files.sync_directory(target)
        connection.raw.execute("ATTACH DATABASE ? AS aside", (target,))
        try:
            with connection.transaction():
                connection.run("INSERT OR REPLACE INTO aside.meta SELECT * FROM main.meta WHERE key = 'schema_version'")
                for table, which in rows.items():
                    connection.run(f"INSERT INTO aside.{table} SELECT * FROM main.{table} WHERE {which}", (seq,))
        finally:
            connection.raw.execute("DETACH DATABASE aside")
        with connection.transaction():
            for table, which in rows.items():
                connection.run(f"DELETE FROM main.{table} WHERE {which}", (seq,))
    return target
