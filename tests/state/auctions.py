"""Generates a stream of people, auctions and bids, with event times out of order, and computes results with DuckDB in one pass."""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SCHEMA = "kind string, id long, at timestamp, auction long, person long, category string, price long"
START = datetime.datetime(2026, 1, 1)
DISORDER_S = 120
"""how much older than the newest event an event may be, in seconds"""
CATEGORIES = ("art", "books", "coins")


def events(seed: int, count: int) -> list[dict[str, Any]]:
    """Return events in the order of their arrival. Five of six are bids on earlier auctions."""
    chance = random.Random(seed)
    second = 0
    arrivals: list[tuple[int, dict[str, Any]]] = []
    auctions: list[int] = []
    for id in range(count):
        second += chance.randint(0, 20)
        event: dict[str, Any] = {"id": id, "at": _time(second), "person": chance.randrange(8)}
        if id % 6 == 0:
            auctions.append(id)
            event |= {"kind": "auction", "auction": id, "category": chance.choice(CATEGORIES)}
        else:
            event |= {"kind": "bid", "auction": chance.choice(auctions[-5:]), "price": chance.randrange(1, 1_000)}
        arrivals.append((second + chance.randrange(DISORDER_S), event))
    return [event for _, event in sorted(arrivals, key=lambda pair: pair[0])]


def closing(number: int) -> dict[str, Any]:
    """Return an event with a time far after all others, which closes every window. It belongs to no auction."""
    at = _time(100 * 86_400 + number)
    return {"kind": "end", "id": -1 - number, "at": at, "auction": -1, "person": -1, "category": "none", "price": 0}


def batches(seed: int, count: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the events in three to five batches of random sizes, and then two that close all windows."""
    arrived = events(seed, count)
    chance = random.Random(-seed - 1)
    cuts = sorted(chance.sample(range(1, count), chance.randint(2, 4)))
    for first, last in zip([0, *cuts], [*cuts, count], strict=True):
        yield arrived[first:last]
    yield [closing(0)]
    yield [closing(1)]


def write(folder: Path, number: int, batch: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{number}.json").write_text("".join(json.dumps(event) + "\n" for event in batch))


def in_one_pass(folder: Path, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a DuckDB query over the table ``events`` with all events."""
    import duckdb

    columns = {
        name: {"string": "VARCHAR", "long": "BIGINT", "timestamp": "TIMESTAMP"}[type]
        for name, type in (column.split(" ") for column in SCHEMA.split(", "))
    }
    with duckdb.connect() as connection:
        connection.execute(
            f"CREATE TABLE events AS SELECT * FROM read_json('{folder}/*.json', columns={columns}) WHERE kind <> 'end'"
        )
        return sorted(connection.execute(query).fetchall(), key=repr)


def _time(second: int) -> str:
    return (START + datetime.timedelta(seconds=second)).isoformat() + "Z"
