"""Checks rows with the columns ``key, value, headers, topic, partition`` before the batch is committed, and converts them to Kafka records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_streamsem.errors import DataError

COLUMNS = ("key", "value", "headers", "topic", "partition")
_TEXT = ("string", "binary")
_HEADERS = {"key": "string", "value": "binary"}
# Maximum size in bytes of a record in addition to key, value and headers: lengths, offsets, and the header of its record batch.
OVERHEAD_BYTES = 128
_COST_BYTES = 32  # sending a record costs as much time in the producer as this many bytes


def check_columns(schema: str, topic: str | None) -> None:
    """Refuse columns that are not those of a Kafka record. ``topic=None``: each row must name its topic."""
    types = {column["name"]: column["type"] for column in json.loads(schema)["fields"]}
    if not types:  # A batch without rows may have no columns.
        return
    unknown = sorted({*types} - {*COLUMNS})
    if unknown or "value" not in types:
        raise DataError("the columns are not those of a Kafka record", given=sorted(types), accepted=COLUMNS)
    if "topic" not in types and topic is None:
        raise DataError("the rows have no column `topic`, and the sink sets no topic", given=sorted(types))
    accepted: dict[str, tuple[Any, ...]] = {
        "key": _TEXT, "value": _TEXT, "topic": ("string",), "partition": ("integer", "long", "short", "byte"),
    }  # fmt: skip
    for name, kind in types.items():
        fits = _is_headers(kind) if name == "headers" else kind in accepted[name]
        if not fits:
            raise DataError(
                "a column has a type that a Kafka record does not accept",
                column=name,
                given=kind,
                accepted=["array<struct<key string, value binary>>"] if name == "headers" else accepted[name],
            )


def _is_headers(kind: Any) -> bool:
    if not isinstance(kind, dict) or kind["type"] != "array" or not isinstance(kind["elementType"], dict):
        return False
    element = kind["elementType"]
    return (
        element["type"] == "struct" and {part["name"]: part["type"] for part in element.get("fields", ())} == _HEADERS
    )


@dataclass(slots=True)
class Measured:
    """
    Measurements of a batch that are compared with the limits of the cluster. Bytes are those of keys, values and headers, uncompressed.

    :attr bytes: of all records, plus a constant for each record
    :attr topic_partitions: ``None`` for a topic that the row does not name, and for a partition that the partitioner chooses
    :attr keyless: topics of the records without a key; ``None`` stands for rows that name no topic
    """

    rows: int = 0
    bytes: int = 0
    largest: int = 0
    topic_partitions: set[tuple[str | None, int | None]] = field(default_factory=set)
    keyless: set[str | None] = field(default_factory=set)

    def add(self, batch: Any) -> None:
        """Add a pyarrow record batch. Empty topics, and headers that the client would drop or truncate, are refused (``DataError``)."""
        import pyarrow
        from pyarrow import compute

        if not batch.num_rows:
            return
        names = batch.schema.names
        sizes = pyarrow.array([0] * batch.num_rows, pyarrow.int64())
        for name in ("key", "value"):
            if name in names:
                lengths = compute.binary_length(batch.column(name)).cast(pyarrow.int64())
                sizes = compute.add(sizes, lengths.fill_null(0))
        if "topic" in names and compute.any(compute.equal(batch.column("topic"), "")).as_py():
            raise DataError("the topic of a row is an empty string", column="topic")
        if "headers" in names:
            header_sizes = [
                sum(len(k.encode()) + len(v or b"") for k, v in _checked(row))
                for row in batch.column("headers").to_pylist()
            ]
            sizes = compute.add(sizes, pyarrow.array(header_sizes, pyarrow.int64()))
        self.rows += batch.num_rows
        self.bytes += compute.sum(sizes).as_py() + _COST_BYTES * batch.num_rows
        self.largest = max(self.largest, compute.max(sizes).as_py())
        columns = {
            name: batch.column(name) if name in names else pyarrow.nulls(batch.num_rows, pyarrow.string())
            for name in ("topic", "partition", "key")
        }
        columns["key"] = compute.is_null(columns["key"])
        for row in pyarrow.table(columns).group_by(list(columns)).aggregate([]).to_pylist():
            self.topic_partitions.add((row["topic"], row["partition"]))
            if row["key"]:
                self.keyless.add(row["topic"])


def records(batches: Iterator[Any], topic: str | None) -> Iterator[dict[str, Any]]:
    """Yield the keyword arguments of ``Producer.produce`` for each row. ``topic`` is the topic of rows that name none."""
    for batch in batches:
        for row in batch.to_pylist():
            record: dict[str, Any] = {"topic": row.get("topic") or topic, "value": row["value"], "key": row.get("key")}
            if row.get("partition") is not None:
                record["partition"] = row["partition"]
            if row.get("headers"):
                record["headers"] = _headers(row["headers"])
            yield record


def _headers(row: list[dict[str, Any]] | None) -> list[tuple[str, bytes | None]]:
    return [(header["key"], header["value"]) for header in row or ()]


def _checked(row: list[dict[str, Any]] | None) -> list[tuple[str, bytes | None]]:
    """Refuse headers that the client would drop or truncate."""
    if any(header is None or header["key"] is None or "\0" in header["key"] for header in row or ()):
        summary = "a header is null, or its name is null or contains the character NUL"
        raise DataError(summary, column="headers")
    return _headers(row)
