"""Change events of Debezium become columns exactly, or are bad. ``tests/integration/test_debezium.py`` has events of a real connector."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_streamsem import Debezium
from airflow_provider_streamsem.connectors.parsing.exact.debezium_events import EVENT, DebeziumEvents
from airflow_provider_streamsem.connectors.parsing.exact.debezium_values import Modes, connect_schema_of_avro
from airflow_provider_streamsem.errors import InvalidError

PLACEHOLDER = "__debezium_unavailable_value"
EPOCH = datetime(1970, 1, 1)
ROW = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("is_new", pa.bool_()),
        ("balance", pa.decimal128(10, 2)),
        ("free", pa.decimal128(38, 10)),
        ("born", pa.date32()),
        ("at_ms", pa.timestamp("us")),
        ("at_us", pa.timestamp("us")),
        ("zoned", pa.timestamp("us", "UTC")),
        ("data", pa.binary()),
        ("amount", pa.float64()),
        ("tags", pa.list_(pa.string())),
        ("prices", pa.list_(pa.decimal128(8, 2))),
    ]
)
TYPES: dict[str, dict[str, Any]] = {
    "id": {"type": "int64"},
    "name": {"type": "string"},
    "is_new": {"type": "boolean"},
    "balance": {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}},
    "free": {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"},
    "born": {"type": "int32", "name": "io.debezium.time.Date"},
    "at_ms": {"type": "int64", "name": "io.debezium.time.Timestamp"},
    "at_us": {"type": "int64", "name": "io.debezium.time.MicroTimestamp"},
    "zoned": {"type": "string", "name": "io.debezium.time.ZonedTimestamp"},
    "data": {"type": "bytes"},
    "amount": {"type": "double"},
    "tags": {"type": "array", "items": {"type": "string"}},
    "prices": {
        "type": "array",
        "items": {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}},
    },
}
SCHEMA = {
    "type": "struct",
    "fields": [
        {"field": image, "type": "struct", "fields": [{"field": name, **kind} for name, kind in TYPES.items()]}
        for image in ("before", "after")
    ],
}
SOURCE = {
    "connector": "postgresql", "ts_ms": 1_700_000_000_123, "ts_us": 1_700_000_000_123_456, "snapshot": "false", "db": "shop", "schema": "public",
    "table": "customers", "txId": 730, "lsn": 22354360, "sequence": '["22353984","22354360"]',
}  # fmt: skip


def unscaled(value: Decimal, scale: int) -> str:
    number = int(value.scaleb(scale))
    return base64.b64encode(number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True)).decode()


def micros(value: datetime) -> int:
    return (value.replace(tzinfo=None) - EPOCH) // timedelta(microseconds=1)


ENCODERS: dict[str, Any] = {
    "balance": lambda value: unscaled(value, 2),
    "free": lambda value: {"scale": 10, "value": unscaled(value, 10)},
    "born": lambda value: (value - date(1970, 1, 1)).days,
    "at_ms": lambda value: micros(value) // 1000,
    "at_us": micros,
    "zoned": lambda value: value.strftime("%Y").zfill(4) + value.strftime("-%m-%dT%H:%M:%S.%fZ"),
    "data": lambda value: base64.b64encode(value).decode(),
    "prices": lambda values: [None if value is None else unscaled(value, 2) for value in values],
}


def encoded(row: dict[str, Any]) -> dict[str, Any]:
    """The values as the JSON converter of Kafka Connect writes them, with Debezium's default settings."""
    return {
        name: value if value is None or name not in ENCODERS else ENCODERS[name](value) for name, value in row.items()
    }


def event(op: str = "c", *, schema: Any = None, source: Any = SOURCE, **images: Any) -> str:
    payload = {"before": None, "after": None, "transaction": None, **images, "source": source, "op": op}
    return (
        json.dumps(payload if schema is None else {"schema": schema, "payload": payload}, ensure_ascii=False)
        .replace(', "payload": ', ',"payload":')
        .replace('{"schema": ', '{"schema":', 1)
    )


def parse(
    *texts: str | bytes | None,
    row: pa.Schema = ROW,
    decimals: str = "precise",
    times: str = "adaptive",
    avro: Any = None,
    refuses_new: bool = False,
) -> tuple[list[dict[str, Any]], list[str | None]]:
    parser = DebeziumEvents(row, Modes(decimals, times), PLACEHOLDER, avro or {}, refuses_new)
    data = pa.array([text.encode() if isinstance(text, str) else text for text in texts], pa.binary())
    block = parser.parse(pa.Array.from_buffers(pa.string(), len(data), data.buffers()))
    names = [*row.names, *EVENT.names]
    return pa.RecordBatch.from_arrays(block.columns, names).to_pylist(), block.reasons.to_pylist()


def parsed(text: str, **options: Any) -> dict[str, Any]:
    (row,), reasons = parse(text, **options)
    assert reasons == [None]
    return row


def why_bad(text: str | bytes, **options: Any) -> str | None:
    _, (reason,) = parse(text, **options)
    return reason


def decimals(digits: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**digits - 1
    return st.integers(-most, most).map(lambda number: Decimal(number).scaleb(-scale))


TIMES = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "name": st.text(st.characters(exclude_categories=["Cs"])),
    "is_new": st.booleans(),
    "balance": decimals(10, 2),
    "free": decimals(28, 10),
    "born": st.dates(),
    "at_ms": TIMES.map(lambda value: value.replace(microsecond=value.microsecond // 1000 * 1000)),
    "at_us": TIMES,
    "zoned": TIMES.map(lambda value: value.replace(tzinfo=timezone.utc)),
    "data": st.binary(),
    "amount": st.floats(allow_nan=False, allow_infinity=False),
    "tags": st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]))),
    "prices": st.lists(st.none() | decimals(8, 2)),
}
ROWS = st.fixed_dictionaries(
    {"id": st.integers(-(2**63), 2**63 - 1), **{name: st.none() | values for name, values in VALUES.items()}}
)


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_every_value_of_an_event_with_a_schema_is_decoded_exactly(rows: list[dict[str, Any]]) -> None:
    found, reasons = parse(*(event(schema=SCHEMA, after=encoded(row)) for row in rows))
    assert reasons == [None] * len(rows)
    assert [{name: row[name] for name in ROW.names} for row in found] == rows


def test_schema_of_a_later_event_counts_for_its_own_values_only() -> None:
    wide = json.loads(json.dumps(SCHEMA).replace('"scale": "2"', '"scale": "1"'))
    texts = [event(schema=schema, after={"id": 1, "balance": "fQ=="}) for schema in (SCHEMA, wide, SCHEMA, wide)]
    rows, reasons = parse(*texts)
    assert reasons == [None] * 4
    assert [row["balance"] for row in rows] == [Decimal("1.25"), Decimal("12.5"), Decimal("1.25"), Decimal("12.5")]


@pytest.mark.parametrize(
    ("column", "value", "modes", "expected"),
    [
        ("balance", "12.30", {"decimals": "string"}, Decimal("12.30")),
        ("balance", 12.5, {"decimals": "double"}, Decimal("12.5")),
        ("free", {"scale": 3, "value": "BNI="}, {}, Decimal("1.234")),
        ("born", 18263, {}, date(2020, 1, 2)),
        ("born", "2020-01-02Z", {"times": "isostring"}, date(2020, 1, 2)),
        ("at_us", 1577934245123, {"times": "connect"}, datetime(2020, 1, 2, 3, 4, 5, 123000)),
        ("at_us", 1577934245123456, {"times": "microseconds"}, datetime(2020, 1, 2, 3, 4, 5, 123456)),
        ("at_us", 1577934245123456000, {"times": "nanoseconds"}, datetime(2020, 1, 2, 3, 4, 5, 123456)),
        ("at_us", "2020-01-02T03:04:05.123456Z", {"times": "isostring"}, datetime(2020, 1, 2, 3, 4, 5, 123456)),
        ("zoned", "2020-01-02T03:04:05Z", {}, datetime(2020, 1, 2, 3, 4, 5, tzinfo=timezone.utc)),
        ("amount", "NaN", {}, "nan"),
        ("amount", "-Infinity", {}, "-inf"),
    ],
)
def test_value_without_a_schema_is_decoded_by_the_settings_of_the_connector(
    column: str, value: Any, modes: dict[str, str], expected: Any
) -> None:
    found = parsed(event(after={"id": 1, column: value}), **modes)[column]
    assert (str(found) if isinstance(expected, str) else found) == expected


@pytest.mark.parametrize(
    ("column", "value", "modes", "why"),
    [
        (
            "balance",
            "BM4=",
            {},
            "balance: with decimal_handling_mode='precise', a decimal has no scale without a schema",
        ),
        (
            "at_us",
            1577934245123,
            {},
            "at_us: with time_precision_mode='adaptive', a number has no unit without a schema",
        ),
        ("at_us", 1577934245123456001, {"times": "nanoseconds"}, "values that do not fit: at_us"),
        ("at_us", "2020-01-02T03:04:05Z", {}, "values that do not fit: at_us"),
        ("at_us", -9223372036832400000, {"times": "microseconds"}, "values that do not fit: at_us"),
        ("zoned", "infinity", {}, "values that do not fit: zoned"),
        ("born", -2147472692, {}, "values that do not fit: born"),
        ("balance", "12.345", {"decimals": "string"}, "values that do not fit: balance"),
        ("balance", "NaN", {"decimals": "string"}, "values that do not fit: balance"),
        ("data", "not base64", {}, "values that do not fit: data"),
        ("is_new", 1, {}, "values that do not fit: is_new"),
        ("id", "1", {}, "values that do not fit: id"),
        ("id", 2**63, {}, "values that do not fit: id"),
        ("id", None, {}, "required values that are missing: id"),
    ],
)
def test_event_with_a_value_that_has_no_exact_column_value_is_bad_and_the_reason_names_the_column(
    column: str, value: Any, modes: dict[str, str], why: str
) -> None:
    assert why_bad(event(after={"id": 1, column: value}), **modes) == why


@pytest.mark.parametrize(
    ("column", "schema"),
    [
        ("balance", {"type": "int64"}),
        ("balance", {"type": "bytes"}),
        ("born", {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}),
        ("at_us", {"type": "int64"}),
        ("at_us", {"type": "int64", "name": "io.debezium.time.MicroTime"}),
        ("zoned", {"type": "string"}),
        ("data", {"type": "string"}),
        ("prices", {"type": "array", "items": {"type": "bytes"}}),
    ],
)
def test_value_whose_schema_says_another_meaning_than_the_column_is_bad(column: str, schema: dict[str, Any]) -> None:
    fields = [{"field": "id", "type": "int64"}, {"field": column, **schema}]
    envelope = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
    texts = {"zoned": "2020-01-02T03:04:05Z", "prices": ["AQ=="]}
    value: Any = 1 if schema["type"] == "int64" else texts.get(column, "AQ==")
    is_number_of_decimal = column == "balance" and schema["type"] == "int64"
    why = why_bad(event(schema=envelope, after={"id": 1, column: value}))
    assert why == (None if is_number_of_decimal else f"values that do not fit: {column}")


def test_delete_has_the_row_before_it_and_a_truncate_and_a_null_have_none() -> None:
    before = {"id": 7, "name": None}
    rows, reasons = parse(event("d", before=before), event("t"), None, event("d", schema=SCHEMA, before=before))
    assert reasons == [None] * 4
    assert [(row["id"], row["debezium_op"]) for row in rows] == [(7, "d"), (None, "t"), (None, None), (7, "d")]


def test_columns_of_the_event_come_from_its_source() -> None:
    row = parsed(event(after={"id": 1}))
    assert {name: row[name] for name in EVENT.names} == {
        "debezium_op": "c",
        "debezium_sequence": Decimal("22353984" + "0000000000022354360"),
        "debezium_timestamp": datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=timezone.utc),
        "debezium_snapshot": "false",
        "debezium_transaction": "730",
        "debezium_database": "shop",
        "debezium_schema": "public",
        "debezium_table": "customers",
        "debezium_unchanged": None,
    }


def sequences(*sources: dict[str, Any]) -> list[Decimal | None]:
    rows, reasons = parse(*(event(after={"id": 1}, source=source) for source in sources))
    assert reasons == [None] * len(sources)
    return [row["debezium_sequence"] for row in rows]


def test_sequence_of_postgres_is_in_the_order_of_commits_though_positions_are_not() -> None:
    snapshot, first, delete, insert, again = sequences(
        *(
            {"connector": "postgresql", "sequence": text}
            for text in (
                '[null,"100"]',
                '[null,"150"]',
                '["160","190"]',
                '["200","180"]',
                '["9223372036854775807","9223372036854775807"]',
            )
        )
    )
    assert None not in (snapshot, first, delete, insert, again)
    assert snapshot < first < delete < insert < again  # type: ignore[operator]


def test_sequence_of_a_binary_log_is_file_then_position_then_row() -> None:
    at = [
        ("binlog.000009", 900, 0),
        ("binlog.000009", 900, 1),
        ("binlog.000009", 1000, 0),
        ("binlog.000010", 4, 0),
        ("binlog.1000000", 4, 0),
    ]
    found = sequences(*({"connector": "mysql", "file": f, "pos": p, "row": r} for f, p, r in at))
    assert None not in found
    assert found == sorted(found)  # type: ignore[type-var]
    assert len({*found}) == len(at)


@pytest.mark.parametrize("connector", ["mysql", "mariadb"])
def test_events_of_one_transaction_are_in_the_order_of_its_metadata(connector: str) -> None:
    """MariaDB 11 writes no positions within a transaction, so its events have that of the transaction, and rows begin with 0 in each statement."""
    source = {"connector": connector, "file": "binlog.000001", "pos": 2035, "snapshot": "false"}
    texts = [
        event(after={"id": 1}, source={**source, "row": row}, transaction={"id": "0-1-7", "total_order": order})
        for order, row in ((1, 0), (2, 1), (3, 0))
    ]
    insert, other, update = (row["debezium_sequence"] for row in parse(*texts)[0])
    assert insert < other < update


def test_sequence_of_mariadb_is_null_without_transaction_metadata() -> None:
    source = {"connector": "mariadb", "file": "binlog.000001", "pos": 2035, "row": 0}
    assert sequences({**source, "snapshot": "false"}, source) == [None, None]
    (snapshot,) = sequences({**source, "snapshot": "first"})
    assert snapshot is not None


@pytest.mark.parametrize(
    "source",
    [
        {"connector": "sqlserver"}, {"connector": "postgresql"}, {"connector": "postgresql", "sequence": "x"},
        {"connector": "postgresql", "sequence": "[null,null]"}, {"connector": "mysql", "file": "x", "pos": 1, "row": 0}, {},
    ],
)  # fmt: skip
def test_sequence_is_null_if_the_source_has_no_known_position(source: dict[str, Any]) -> None:
    assert sequences(source) == [None]


PLACEHOLDERS: dict[str, Any] = {
    "name": PLACEHOLDER,
    "data": base64.b64encode(PLACEHOLDER.encode()).decode(),
    "tags": [PLACEHOLDER],
    "prices": [*PLACEHOLDER.encode()],
}
IN_LISTS = [
    [base64.b64encode(PLACEHOLDER.encode()).decode()],
    [str(uuid.UUID(bytes=hashlib.md5(PLACEHOLDER.encode()).digest(), version=3))],
]


@pytest.mark.parametrize("value", IN_LISTS, ids=["bytea[]", "uuid[]"])
def test_placeholder_in_an_array_is_recognized(value: list[str]) -> None:
    assert "tags" in parsed(event("u", after={"id": 1, "tags": value}))["debezium_unchanged"]
    assert "did not log the values" in str(why_bad(event("c", after={"id": 1, "tags": value})))


@pytest.mark.parametrize("schema", [None, SCHEMA], ids=["without a schema", "with a schema"])
def test_value_that_an_update_does_not_have_is_null_and_named(schema: Any) -> None:
    whole = encoded({name: None for name in ROW.names})
    row = parsed(event("u", schema=schema, after={**whole, "id": 1, **PLACEHOLDERS}))
    assert row["debezium_unchanged"] == [*PLACEHOLDERS]
    assert [row[name] for name in PLACEHOLDERS] == [None] * len(PLACEHOLDERS)


def test_column_that_an_update_lacks_is_named_and_a_null_is_not() -> None:
    row = parsed(event("u", after={"id": 1, "name": None}))
    assert row["debezium_unchanged"] == [name for name in ROW.names if name not in ("id", "name")]


def test_column_that_is_not_declared_is_ignored_or_makes_the_event_bad() -> None:
    row = pa.schema([("id", pa.int64())])
    for op in ("c", "r", "u"):
        text = event(op, after={"id": 1, "added": None, "other": 2})
        assert parsed(text, row=row)["id"] == 1
        assert why_bad(text, row=row, refuses_new=True) == "the row has columns that schema does not name: added, other"
        assert parsed(event(op, after={"id": 1}), row=row, refuses_new=True)["id"] == 1
    assert parsed(event("d", before={"id": 1, "added": None}), row=row, refuses_new=True)["id"] == 1
    assert parsed(event("t"), row=row, refuses_new=True)["debezium_op"] == "t"


def test_new_row_with_a_value_that_the_database_did_not_log_is_bad() -> None:
    why = why_bad(event("c", after={"id": 1, "name": PLACEHOLDER}))
    assert why == (
        "the database did not log the values of columns of a new row (REPLICA IDENTITY FULL logs them): name"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "no JSON object"),
        ("[]", "no JSON object"),
        (b"\xff", "not UTF-8"),
        ("{}", "no change event of Debezium: it has no source, or op is none of c, r, u, d, t"),
        ('{"schema": null}', "no change event of Debezium: it has no source, or op is none of c, r, u, d, t"),
        ('{"id": 1}', "no change event of Debezium: it has no source, or op is none of c, r, u, d, t"),
        (event("m"), "no change event of Debezium: it has no source, or op is none of c, r, u, d, t"),
        (event("c"), "an event with op c has no after"),
        (event("d"), "an event with op d has no before"),
        ('{"schema":{"fields":[]},"payload":{"op":"c"}}', "no change event of Debezium: its schema describes no row"),
        ('{"schema":7,"payload":{"op":"c"}}', "no change event of Debezium: its schema is no object"),
        ('{"schema":[],"payload":{"op":"c"}}', "no change event of Debezium: its schema is no object"),
        ('{"schema":null,"payload":[]}', "no change event of Debezium"),
        (event(after={"id": 1}) + "x", "text after the JSON object"),
    ],
)
def test_text_that_is_no_event_is_bad(text: str | bytes, why: str) -> None:
    assert why_bad(text) == why


def test_time_of_an_event_beyond_the_range_of_the_type_is_null() -> None:
    for source in ({"ts_us": 99999999999999999999}, {"ts_ms": 9223372036854775807}):
        assert parsed(event(after={"id": 1}, source=source))["debezium_timestamp"] is None


def test_text_after_a_known_schema_is_parsed_like_that_after_a_new_one() -> None:
    good = event(schema=SCHEMA, after={"id": 1})
    null = good[: good.index('"payload":')] + '"payload":null}'
    for text in (good + "x", good[:-1], good[:-1] + ',"more":1}', null):
        assert parse(good, text)[1][1] == parse(text)[1][0]
    assert parse(good, null)[0][1]["debezium_op"] is None


def test_schema_of_avro_says_what_the_values_mean_that_spark_writes_as_json() -> None:
    optional = lambda kind: ["null", kind]  # noqa: E731
    row = {
        "type": "record", "name": "Value", "namespace": "shop.public.customers", "fields": [
            {"name": "id", "type": "long"},
            {"name": "balance", "type": optional({"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2})},
            {"name": "born", "type": optional({"type": "int", "connect.name": "io.debezium.time.Date"})},
            {"name": "at_ms", "type": optional({"type": "long", "connect.name": "io.debezium.time.Timestamp"})},
            {"name": "at_us", "type": optional({"type": "long", "logicalType": "timestamp-millis", "connect.name": "org.apache.kafka.connect.data.Timestamp"})},
            {"name": "free", "type": optional({
                "type": "record", "name": "VariableScaleDecimal", "namespace": "io.debezium.data", "connect.name": "io.debezium.data.VariableScaleDecimal",
                "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}]})},
            {"name": "tags", "type": optional({"type": "array", "items": ["null", "string"]})},
        ],
    }  # fmt: skip
    envelope = {"type": "record", "name": "Envelope", "fields": [
        {"name": "before", "type": optional(row)}, {"name": "after", "type": optional("shop.public.customers.Value")},
    ]}  # fmt: skip
    after = {
        "id": 1, "balance": 12.30, "born": 18263, "at_ms": 1577934245000, "at_us": "2020-01-02T03:04:05.000000Z",
        "free": {"scale": 3, "value": "BNI="}, "tags": ["a", None],
    }  # fmt: skip
    row_found = parsed(event(schema=7, after=after), avro={7: connect_schema_of_avro(envelope)})
    assert {name: row_found[name] for name in after} == {
        "id": 1, "balance": Decimal("12.30"), "born": date(2020, 1, 2), "at_ms": datetime(2020, 1, 2, 3, 4, 5),
        "at_us": datetime(2020, 1, 2, 3, 4, 5), "free": Decimal("1.234"), "tags": ["a", None],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"decimal_handling_mode": "exact"}, "decimal_handling_mode"),
        ({"time_precision_mode": "ms"}, "time_precision_mode"),
        ({"subject": "s"}, "a subject has no effect"),
        ({"registry": "http://r", "registry_conn_id": "r"}, "exclude each other"),
        ({"unavailable_value": ""}, "unavailable_value"),
    ],
)
def test_invalid_argument_of_a_debezium_decoder_is_refused(arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidError, match=error):
        Debezium("id long", **arguments)
