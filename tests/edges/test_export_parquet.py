"""Parquet by day, read back with DuckDB (U3)."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest

from reconciler.billing.export import COLUMNS
from reconciler.billing.parquet import DAY_MILLISECONDS, ParquetMissing, write_parquet
from reconciler.core.metering.usage_records import Record
from tests.core.test_usage_twin import play
from tests.edges.test_export import export, journal_of

MIDNIGHT = 1_767_225_600_000


def rows_of(query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        return connection.execute(query).fetchall()


def moved() -> list[Record]:
    """A story that goes over midnight."""
    found = export(journal_of(play(7, 60).entries))
    middle = (found[0].start + max(one.end for one in found)) // 2
    by = MIDNIGHT - middle
    return [msgspec.structs.replace(one, start=one.start + by, end=one.end + by) for one in found]


def test_u3_a_fleet_is_billed_in_one_query(tmp_path: Path) -> None:
    """U3: unit-seconds a cluster and day, exact, from the files of two clusters."""
    first = moved()
    second = [msgspec.structs.replace(one, cluster="c2", units=one.units * 3) for one in first]
    write_parquet(first, tmp_path, cluster="c1")
    rows = write_parquet(second, tmp_path, cluster="c2")
    query = f"""
        select cluster, day, sum("unitSeconds"), count(*), min("from"), max("to")
        from read_parquet('{tmp_path}/*/*.parquet', hive_partitioning = true) group by 1, 2 order by 1, 2
    """
    found = rows_of(query)
    assert [(one[0], str(one[1])) for one in found] == [
        (cluster, day) for cluster in ("c1", "c2") for day in ("2025-12-31", "2026-01-01")
    ]
    total = sum(one.unit_milliseconds for one in first)
    sums = [one[2] * 1000 for one in found]
    assert (sums[0] + sums[1], sums[2] + sums[3]) == (total, 3 * total)
    assert sum(one[3] for one in found[2:]) == rows > len(second)
    assert found[0][5].timestamp() * 1000 <= MIDNIGHT == found[1][4].timestamp() * 1000


def test_u3_columns_are_the_plain_formats_and_typed(tmp_path: Path) -> None:
    write_parquet(moved(), tmp_path, cluster="c1")
    described = rows_of(f"describe select * from read_parquet('{tmp_path}/*/c1.parquet')")
    kinds = {name: kind for name, kind, *_ in described}
    assert tuple(kinds)[: len(COLUMNS)] == COLUMNS
    assert kinds["unitSeconds"] == "DECIMAL(38,3)"
    assert kinds["from"] == kinds["toNotAfter"] == "TIMESTAMP WITH TIME ZONE"
    assert (kinds["open"], kinds["units"], kinds["cluster"]) == ("BOOLEAN", "BIGINT", "VARCHAR")


def test_u3_a_day_written_again_is_the_same_file(tmp_path: Path) -> None:
    """U3: pieces of one interval have ids of their own, and no unfinished file is left."""
    records = moved()
    for directory in ("a", "b"):
        write_parquet(records, tmp_path / directory, cluster="c1")
    write_parquet(records, tmp_path / "b", cluster="c1")
    files = {
        directory: {
            str(path.relative_to(tmp_path / directory)): path.read_bytes() for path in files_of(tmp_path, directory)
        }
        for directory in ("a", "b")
    }
    assert files["a"] == files["b"]
    assert sorted(files["a"]) == ["day=2025-12-31/c1.parquet", "day=2026-01-01/c1.parquet"]
    ((rows, ids),) = rows_of(f"select count(*), count(distinct id) from read_parquet('{tmp_path}/a/*/*.parquet')")
    assert rows == ids


def files_of(tmp_path: Path, directory: str) -> list[Path]:
    return sorted(path for path in (tmp_path / directory).rglob("*") if path.is_file())


@pytest.mark.parametrize("name", ["", "a/b", ".hidden"])
def test_u3_a_cluster_name_that_is_no_file_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot name a file"):
        write_parquet([], tmp_path, cluster=name)


def test_u3_without_pyarrow_the_way_out_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return found(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ParquetMissing, match=r"pip install 'gpu-binder\[parquet\]'"):
        write_parquet([], tmp_path, cluster="c1")


def test_u3_a_piece_lies_within_its_day(tmp_path: Path) -> None:
    """U3: three days of one interval."""
    record = msgspec.structs.replace(moved()[0], start=MIDNIGHT - 1, end=MIDNIGHT + DAY_MILLISECONDS + 1)
    assert write_parquet([record], tmp_path, cluster="c1") == 3
    sums = rows_of(f"""select "unitSeconds" from read_parquet('{tmp_path}/*/*.parquet') order by "from" """)
    assert [one[0] * 1000 for one in sums] == [
        record.units,
        record.units * DAY_MILLISECONDS,
        record.units,
    ]
