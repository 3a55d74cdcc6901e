"""
Parses change events of Debezium into columns: those of the row, and those of the event. Executors run this module.

An event is a JSON text: the envelope with ``before``, ``after``, ``source`` and ``op``, or an object with a ``schema`` of Kafka Connect and the envelope as
``payload``. The facts about events rest on Debezium 3.6 with Postgres and MariaDB (``tests/integration/test_debezium.py``).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_streamsem.connectors.parsing.exact.blocks import Block, reason_of
from airflow_provider_streamsem.connectors.parsing.exact.debezium_values import (
    UTC,
    ConnectSchema,
    Modes,
    UnknownEncodingError,
    event_value_reader,
    field_schemas,
    is_as_in_json,
)
from airflow_provider_streamsem.connectors.parsing.exact.json_records import (
    BadRecordError,
    JsonObjects,
    Unfit,
    column_reader,
    deep_recursion,
)

EVENT = pa.schema(
    [
        ("debezium_op", pa.string()),
        ("debezium_sequence", pa.decimal128(38, 0)),
        ("debezium_timestamp", pa.timestamp("us", "UTC")),
        ("debezium_snapshot", pa.string()),
        ("debezium_transaction", pa.string()),
        ("debezium_database", pa.string()),
        ("debezium_schema", pa.string()),
        ("debezium_table", pa.string()),
        ("debezium_unchanged", pa.list_(pa.string())),
    ]
)
"""The columns of the event. ``docs/connectors/kafka-source.md`` describes them."""
_OPERATIONS = ("c", "r", "u", "d", "t")
_NO_EVENT = "no change event of Debezium"
_FILE = re.compile(r".*\.([0-9]{1,8})")
_POSITIONS = re.compile(r'\[(?:null|"([0-9]{1,19})"), ?"([0-9]{1,19})"\]')
_SCHEMA, _PAYLOAD = '{"schema":', ',"payload":'
_MOST_SCHEMAS = 32
_ENDLESS = 1 << 62


class DebeziumEvents:
    """
    Parses events.

    :param row: the declared columns of the row. A column that is not nullable is required, except in a delete
    :param unavailable: the setting ``unavailable.value.placeholder`` of the connector
    :param avro: schema id → schema of the envelope. The ``schema`` of an event that was in Avro is this id
    :param refuses_new: whether an event is bad if its row has a column that is not declared
    """

    def __init__(
        self, row: pa.Schema, modes: Modes, unavailable: str, avro: Mapping[int, ConnectSchema], refuses_new: bool
    ) -> None:
        self._row = row
        self._known = frozenset(row.names) if refuses_new else None
        self._objects = JsonObjects()
        self._schemas = _Schemas(row, modes, avro)
        self._unavailable = _Unavailable(unavailable)
        self._columns = [column_reader(f.type, UTC, frozenset()) if is_as_in_json(f.type, None) else None for f in row]

    def parse(self, texts: pa.StringArray) -> Block:
        """A text is bad unless it is one event whose values the columns hold exactly. A null has null columns, and is not bad."""
        with deep_recursion():
            return self._parsed(texts.cast(pa.binary()).to_pylist())

    def _parsed(self, texts: Sequence[bytes | None]) -> Block:
        rows: list[Sequence[Any]] = []
        events: list[Sequence[Any]] = []
        reasons: list[str | None] = []
        no_row: Sequence[Any] = [None] * len(self._row)
        no_event: Sequence[Any] = [None] * len(EVENT)
        for text in texts:
            row, event, reason = no_row, no_event, None
            try:
                if text is not None:
                    row, event = self._change(text)
            except BadRecordError as error:
                reason = str(error)
            rows.append(row)
            events.append(event)
            reasons.append(reason)
        columns = []
        unfit: dict[int, list[str]] = {}
        for at, (field, read) in enumerate(zip(self._row, self._columns, strict=True)):
            given = [row[at] for row in rows]
            column = pa.array(given, field.type) if read is None else read(given)
            columns.append(column)
            if column.null_count != given.count(None):
                for n in pc.indices_nonzero(column.is_null()).to_pylist():
                    if given[n] is not None:
                        unfit.setdefault(n, []).append(field.name)
        for n, names in unfit.items():
            reasons[n] = reasons[n] or reason_of(names, None)
        columns += [pa.array([event[at] for event in events], field.type) for at, field in enumerate(EVENT)]
        return Block(columns, pa.array(reasons, pa.string()))

    def _change(self, data: bytes) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the values of the row, and those of the event. Values of types of JSON are not converted yet."""
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise BadRecordError("not UTF-8") from None
        envelope, readers = self._schemas.envelope(text, self._objects)
        if envelope is None:
            return [None] * len(self._row), [None] * len(EVENT)
        op, source = envelope.get("op"), envelope.get("source")
        if op not in _OPERATIONS or not isinstance(source, dict):
            raise BadRecordError(f"{_NO_EVENT}: it has no source, or op is none of {', '.join(_OPERATIONS)}")
        image = "before" if op == "d" else "after"
        row = {} if op == "t" else envelope.get(image)
        if not isinstance(row, dict):
            raise BadRecordError(f"an event with op {op} has no {image}")
        if self._known is not None and op != "d" and not row.keys() <= self._known:
            new = ", ".join(sorted(row.keys() - self._known))
            raise BadRecordError(f"the row has columns that schema does not name: {new}")
        values, unchanged = self._values(op, row, readers)
        return values, [op, *_facts(source, envelope.get("transaction")), unchanged or None]

    def _values(
        self, op: str, row: Mapping[str, Any], readers: Sequence[Callable[[Any], Any] | None]
    ) -> tuple[list[Any], list[str]]:
        """Return the values of the row, and the columns whose values an update does not have."""
        values: list[Any] = []
        unchanged, unfit, missing, unknown = [], [], [], []
        for field, reader in zip(self._row, readers, strict=True):
            given = row.get(field.name)
            if given is None:
                values.append(None)
                if op == "u" and field.name not in row:
                    unchanged.append(field.name)
                elif not field.nullable and op not in ("d", "t"):
                    missing.append(field.name)
            elif self._unavailable.is_in(given):
                values.append(None)
                unchanged.append(field.name)
            elif reader is None:
                values.append(given)
            else:
                try:
                    values.append(reader(given))
                except UnknownEncodingError as error:
                    unknown.append(f"{field.name}: {error}")
                except Unfit:
                    unfit.append(field.name)
        if unfit or missing or unknown:
            raise BadRecordError("; ".join(filter(None, [reason_of(unfit, missing), *unknown])))
        if unchanged and op in ("c", "r"):
            columns = ", ".join(unchanged)
            raise BadRecordError(
                f"the database did not log the values of columns of a new row (REPLICA IDENTITY FULL logs them): {columns}"
            )
        return values, unchanged


class _Schemas:
    """The schemas of events, and the functions that convert the values of their rows; ``None`` for a column of a type of JSON."""

    def __init__(self, row: pa.Schema, modes: Modes, avro: Mapping[int, ConnectSchema]) -> None:
        self._row, self._modes = row, modes
        self._without = self._readers(None)
        self._avro = {str(number).encode(): schema for number, schema in avro.items()}
        self._of_avro: dict[bytes, Sequence[Callable[[Any], Any] | None]] = {}
        self._of_prefix: dict[str, Sequence[Callable[[Any], Any] | None]] = {}

    def envelope(
        self, text: str, objects: JsonObjects
    ) -> tuple[dict[str, Any] | None, Sequence[Callable[[Any], Any] | None]]:
        """Return the envelope of an event, and the functions. ``None`` stands for the event of a null."""
        for prefix, readers in self._of_prefix.items():
            if text.startswith(prefix) and text.endswith("}"):  # the schema is the largest part of the text
                try:
                    return objects.parsed(text[len(prefix) : -1]), readers
                except BadRecordError:
                    break
        event = objects.parsed(text)
        if "payload" not in event or not event.keys() <= {"schema", "payload"}:
            return event, self._without
        schema, payload = event.get("schema"), event.get("payload")
        if payload is None:
            return None, self._without
        if not isinstance(payload, dict):
            raise BadRecordError(_NO_EVENT)
        if isinstance(schema, dict):
            readers = self._readers(schema)
            self._remember(text, readers)
            return payload, readers
        if isinstance(schema, bytes) and schema in self._avro:
            if schema not in self._of_avro:
                self._of_avro[schema] = self._readers(self._avro[schema])
            return payload, self._of_avro[schema]
        if schema is not None:
            raise BadRecordError(f"{_NO_EVENT}: its schema is no object")
        return payload, self._without

    def _remember(self, text: str, readers: Sequence[Callable[[Any], Any] | None]) -> None:
        if not text.startswith(_SCHEMA):
            return
        _, end = json.JSONDecoder().raw_decode(text, len(_SCHEMA))
        if text.startswith(_PAYLOAD, end):
            if len(self._of_prefix) >= _MOST_SCHEMAS:
                self._of_prefix.clear()
            self._of_prefix[text[: end + len(_PAYLOAD)]] = readers

    def _readers(self, schema: ConnectSchema | None) -> list[Callable[[Any], Any] | None]:
        parts = field_schemas(schema)
        fields = field_schemas(parts.get("after") or parts.get("before"))
        if schema is not None and not fields:
            raise BadRecordError(f"{_NO_EVENT}: its schema describes no row")
        schemas = [(field.type, fields.get(field.name)) for field in self._row]
        return [None if is_as_in_json(kind, of) else event_value_reader(kind, of, self._modes) for kind, of in schemas]


class _Unavailable:
    """Recognizes the placeholder that Debezium sends for a value that the database did not log: a TOAST value of Postgres that an update does not change."""

    def __init__(self, placeholder: str) -> None:
        data = placeholder.encode()
        encoded = base64.b64encode(data).decode()
        uuid = str(UUID(bytes=hashlib.md5(data, usedforsecurity=False).digest(), version=3))
        signed = [byte - 256 if byte > 127 else byte for byte in data]  # a byte of Java
        self._texts = (placeholder, encoded, f'{{"{placeholder}":"{placeholder}"}}')  # text, bytea, hstore
        lists = ([placeholder], [encoded], [uuid], *([str(byte).encode() for byte in of] for of in (data, signed)))
        self._others = (*lists, {placeholder: placeholder})

    def is_in(self, value: Any) -> bool:
        if isinstance(value, str):
            return value in self._texts
        return isinstance(value, (list, dict)) and value in self._others


def _facts(source: Mapping[str, Any], transaction: Any) -> list[Any]:
    """Return the values of :data:`EVENT` between ``debezium_op`` and ``debezium_unchanged``."""
    micros, millis = (_integer(source.get(name)) for name in ("ts_us", "ts_ms"))
    own = transaction.get("id") if isinstance(transaction, dict) else None
    of_source = next((source[name] for name in ("txId", "gtid") if source.get(name) is not None), own)
    texts = (source.get("snapshot"), of_source, *(source.get(name) for name in ("db", "schema", "table")))
    at = micros if micros is not None or millis is None else millis * 1000
    return [_sequence(source, transaction), None if at is None or abs(at) >= _ENDLESS else at, *map(_text, texts)]


def _sequence(source: Mapping[str, Any], transaction: Any) -> Decimal | None:
    """
    Return a number that is greater for a later change of a row; ``None`` if the event has none.

    Postgres: the end of the last transaction that was committed before, and the position of the change, 19 digits each. The position alone is not in the order
    of the commits: a row that is inserted again may be in the write-ahead log before its delete, if a unique constraint is checked later. MariaDB and MySQL:
    the number of the file of the binary log, the position, and the number of the event in its transaction, with 8, 20 and 10 digits.

    The position alone does not order the events of a transaction: MariaDB 11 writes none for them, so Debezium sends that of the transaction. The number is in
    the transaction metadata. Without them, MySQL has the number of the row in its event, whose position differs from those of other events.
    """
    connector = source.get("connector")
    if connector == "postgresql":
        positions = _POSITIONS.fullmatch(str(source.get("sequence")))
        return None if positions is None else _joined((int(positions[1] or positions[2]), 19), (int(positions[2]), 19))
    if connector in ("mysql", "mariadb"):
        file = _FILE.fullmatch(str(source.get("file")))
        order = transaction.get("total_order") if isinstance(transaction, dict) else None
        if order is None and (connector == "mysql" or source.get("snapshot") not in (None, "false")):
            order = source.get("row")
        parts = (_integer(source.get("pos")), 20), (_integer(order), 10)
        return None if file is None else _joined((int(file[1]), 8), *parts)
    return None


def _joined(*parts: tuple[int | None, int]) -> Decimal | None:
    """Return one number with the digits of all parts (number, digits)."""
    joined = 0
    for number, digits in parts:
        if number is None or not 0 <= number < 10**digits:
            return None
        joined = joined * 10**digits + number
    return Decimal(joined)


def _integer(value: Any) -> int | None:
    return int(value) if isinstance(value, bytes) and len(value) <= 20 and value.lstrip(b"-").isdigit() else None


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode()
    return value if isinstance(value, str) else None
