"""Values that a database's column definitions exclude, found in the staged files. Postgres itself is tested in tests/integration/test_postgres.py."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql

from airflow_provider_streamsem.connectors.sql.columns import Target
from airflow_provider_streamsem.connectors.sql.values import refuse_misfits
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.protocol.entries import Committable, DataFile

NAN, INFINITY = float("nan"), float("inf")
CASES: list[tuple[str, Any, list[Any], list[Any]]] = [
    ("mysql", mysql.VARCHAR(3), ["ééé", None], ["abcd"]),
    ("mysql", mysql.TINYTEXT(), ["é" * 127], ["é" * 128]),
    ("mysql", mysql.VARBINARY(3), [b"abc"], [b"abcd"]),
    ("mysql", mysql.ENUM("Good", "bad"), ["Good", None], ["worse", "GOOD"]),
    ("mysql", mysql.CHAR(3), ["ab", " a", None], ["ab "]),
    ("postgresql", sa.CHAR(3), ["abc", "a  ", None], ["ab", "abcd"]),
    ("mysql", mysql.DOUBLE(), [1.5, None], [NAN]),
    ("mariadb", mysql.DOUBLE(), [1.5, None], [INFINITY]),
    ("mariadb", mysql.DATE(), [datetime.date(9999, 12, 31)], [2_932_897]),
    ("sqlite", sa.VARCHAR(3), ["any length", "a\0b"], []),
    ("sqlite", sa.DOUBLE(), [INFINITY], [NAN]),
    ("sqlite", sa.DATETIME(), [datetime.datetime(1, 1, 1)], [-719_163 * 86_400_000_000]),
    ("sqlite", sa.TEXT(), [[datetime.date(9999, 12, 31)], None], [[2_932_897]]),
    ("postgresql", postgresql.JSONB(), [["a"], [r"\\u0000"], [None], None], [["a\0b"]]),
    ("postgresql", postgresql.JSON(), [["a\0b"]], []),
    ("postgresql", sa.VARCHAR(7), [["abc"], None], [["abcd"]]),
    ("postgresql", sa.DATE(), [datetime.date(9999, 12, 31)], [11_248_738]),
    ("mssql", sa.VARCHAR(3), ["abc"], ["abcd"]),
    ("mssql", sa.Uuid(), ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"], ["a0eebc99"]),
]  # fmt: skip


def peek(root: Path, dialect: str, kind: Any, values: pyarrow.Array) -> None:
    table = pyarrow.table({"c": values, "other": pyarrow.array(["x"] * len(values))})
    pyarrow.parquet.write_table(table, root / "f.parquet")
    columns = {"c": {"type": kind, "nullable": True}}
    file = DataFile(key="f.parquet", bytes=1, rows=len(values), checksum="")
    staged = Committable(format="parquet", rows=len(values), files=(file,))
    refuse_misfits(str(root), staged, Target(None, "t", dialect, columns, (), frozenset()))


@pytest.mark.parametrize(("dialect", "kind", "good", "bad"), CASES)
def test_value_beyond_a_column_bound_is_refused_and_one_on_the_bound_is_accepted(
    tmp_path: Path, dialect: str, kind: Any, good: list[Any], bad: list[Any]
) -> None:
    fits = pyarrow.array(good)
    peek(tmp_path, dialect, kind, fits)
    for value in bad:
        with pytest.raises(DataError, match=r"table='t', columns=\{'c': '(is|contains|ends) "):
            peek(tmp_path, dialect, kind, pyarrow.array([*good, value], fits.type))
