"""
Batches of JSON and CSV records of one kind, compared with a plain read and Parquet write of the same files: ``make bench ARGS=parsing``.

Spark's own reader parses the same records, but not exactly. The provider and the plain copy run in turn in one session. The first round is not counted.
``CASES`` selects cases by a part of their names.
"""

from __future__ import annotations

import csv
import io
import json
import os
import random
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from airflow_provider_streamsem import SparkEngine
from benchmarks import results, start
from benchmarks.files import compare

RECORDS = int(os.environ.get("RECORDS", "300000"))
COLUMNS = 10
_COLUMNS_OF_CSV = 2_000

Record = Mapping[str, Any]


def _columns(kind: str, value: Callable[[random.Random], Any]) -> tuple[str, Callable[[random.Random, int], Record]]:
    """Return the schema of ten columns of one type, and a function that returns a record."""
    schema = ", ".join(f"c{n} {kind}" for n in range(COLUMNS))
    return schema, lambda chance, _: {f"c{n}": value(chance) for n in range(COLUMNS)}


def mixed(chance: random.Random, number: int) -> Record:
    """Return a record of ten columns of several types."""
    return {
        "id": number, "user": f"user{number % 1000}", "amount": round(chance.random() * 1000, 2), "ts": f"2026-01-01T00:00:{number % 60:02d}Z",
        "ok": number % 2 == 0, "qty": number % 7, "price": round(chance.random() * 10, 3), "city": f"city{number % 50}",
        "note": f'hello "x" {number}', "score": chance.random(),
    }  # fmt: skip


def _one_in_hundred_bad(chance: random.Random, number: int) -> Record:
    record = dict(mixed(chance, number))
    if number % 100 == 0:
        wrong = {"amount": round(chance.random(), 6), "ts": "2026-13-01T00:00:00Z", "qty": "seven", "score": "none"}
        name = [*wrong][number // 100 % len(wrong)]
        record[name] = wrong[name]
    return record


MIXED = (
    "id long, user string, amount decimal(12,2), ts timestamp, ok boolean, qty int, price decimal(12,3), city string, "
    "note string, score double"
)
JSON: dict[str, tuple[str, Callable[[random.Random, int], Record]]] = {
    "integers": _columns("long", lambda chance: chance.randrange(10**9)),
    "strings": _columns("string", lambda chance: f"value-{chance.randrange(10**6)}"),
    "doubles of 17 digits": _columns("double", lambda chance: chance.random()),
    "decimals": _columns("decimal(12,2)", lambda chance: round(chance.random() * 10_000, 2)),
    "nested": (
        "id long, items array<struct<sku: string, price: decimal(12,2), count: int>>",
        lambda chance, number: {
            "id": number,
            "items": [
                {"sku": f"sku-{n}", "price": round(chance.random() * 100, 2), "count": n} for n in range(number % 4)
            ],
        },
    ),
    "mixed": (MIXED, mixed),
    "1 % bad": (MIXED, _one_in_hundred_bad),
    "every record exact": (MIXED, lambda chance, number: {**mixed(chance, number), "user": number % 1000}),
}


def write_json(path: Path, make: Callable[[random.Random, int], Record], records: int) -> None:
    """Write records as lines of JSON."""
    chance = random.Random(1)
    path.mkdir()
    with (path / "a.json").open("w") as file:
        for number in range(records):
            file.write(json.dumps(make(chance, number)) + "\n")


def write_csv(path: Path, make: Callable[[random.Random, int], Record], records: int) -> None:
    """Write records as lines of CSV."""
    chance = random.Random(1)
    path.mkdir()
    with (path / "a.csv").open("w", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        for number in range(records):
            lines.writerow([str(v).lower() if isinstance(v, bool) else v for v in make(chance, number).values()])


def wide_csv(path: Path, records: int = 2_000) -> str:
    """Write lines of many decimals, and return the schema."""
    path.mkdir()
    text = io.StringIO()
    for number in range(records):
        text.write(",".join(f"{(number + column) % 10_000 / 100}" for column in range(_COLUMNS_OF_CSV)) + "\n")
    (path / "a.csv").write_text(text.getvalue())
    return ", ".join(f"c{n} decimal(12,2)" for n in range(_COLUMNS_OF_CSV))


def first_batch(home: Path, source: Path, title: str) -> None:
    """Measure the first batch of a process, without the start of the process."""
    found = start.phases(home, "local[2]", source, MIXED)
    subjects = {results.PROVIDER: results.PROVIDER, "bare read and write": "bare script"}
    times = {name: [phases["work"] * 1000 for phases in found[subject]] for name, subject in subjects.items()}
    results.record("parsing", title, times)


def main() -> None:
    """Measure each case."""
    chosen = os.environ.get("CASES", "")
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        engine = SparkEngine(master="local[2]")
        spark = engine.session()
        spark.sparkContext.setLogLevel("ERROR")
        for n, (name, (schema, make)) in enumerate(JSON.items()):
            title = f"JSON, {name}"
            if chosen in title:
                write_json(home / f"json-{n}", make, RECORDS)
                bad = RECORDS // 100 if name == "1 % bad" else 0
                compare(spark, engine, home / f"json-{n}", schema, title, benchmark="parsing", bad=bad)
        for name in ("decimals", "mixed"):
            title = f"CSV, {name}"
            if chosen in title:
                schema, make = JSON[name]
                write_csv(home / f"csv-{name}", make, RECORDS)
                compare(spark, engine, home / f"csv-{name}", schema, title, benchmark="parsing", format="csv")
        title = "JSON, mixed, first batch"
        if chosen in title:
            write_json(home / "json-first", mixed, RECORDS)
            first_batch(home / "first", home / "json-first", title)
        title = f"CSV, {_COLUMNS_OF_CSV:,} columns"
        if chosen in title:
            schema = wide_csv(home / "csv-wide")
            compare(spark, engine, home / "csv-wide", schema, title, benchmark="parsing", format="csv")


if __name__ == "__main__":
    main()
