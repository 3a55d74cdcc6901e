"""Columns, partitions and bounds of Iceberg tables, tables that are refused before the commit, and secrets that are never shown."""

from __future__ import annotations

import json
import logging
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow
import pytest
from pyiceberg.expressions import EqualTo, GreaterThan, IsNull, LessThan
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from airflow_provider_streamsem.connections import Connection, use_resolver
from airflow_provider_streamsem.connectors.iceberg.columns import iceberg_schema
from airflow_provider_streamsem.connectors.iceberg.sink import IcebergSink
from airflow_provider_streamsem.errors import ConflictError, DataError, InvalidError, PublishError, StreamsemError
from tests.connectors.iceberg.lake import ID, Lake, spark_schema
from tests.pipeline_fixture import PipelineFixture

SECRET = "hush-hush"
UTC = timezone.utc


def named(text: str) -> str:
    """Return the directory name that Spark's writer uses for a partition value."""
    return "__p=" + quote(text, safe="").replace("_", "%5F").replace("%", "_")


PARTITIONS: dict[str, tuple[Any, Any, list[tuple[str, Any]]]] = {
    "text": (
        "string",
        pyarrow.string(),
        [("__p=_null", None), ("__p=_empty", ""), (named("a/b=ç%20 d"), "a/b=ç%20 d"), (f"__p=_sha256-{'0' * 64}", "x" * 100)],
    ),
    "integer": ("long", pyarrow.int64(), [("__p=_null", None), (named("-7"), -7), (named("9007199254740993"), 2**53 + 1)]),
    "small": ("byte", pyarrow.int8(), [(named("3"), 3)]),
    "truth": ("boolean", pyarrow.bool_(), [("__p=_null", None), (named("true"), True), (named("false"), False)]),
    "day": ("date", pyarrow.date32(), [("__p=_null", None), (named("1969-12-31"), date(1969, 12, 31))]),
    "instant": (
        "timestamp",
        pyarrow.timestamp("us", "UTC"),
        [("__p=_null", None), ("__p=1969-12-31~235959.999999Z", datetime(1969, 12, 31, 23, 59, 59, 999999, UTC))],
    ),
    "local": (
        "timestamp_ntz",
        pyarrow.timestamp("us"),
        [("__p=2024-02-29~010203.5", datetime(2024, 2, 29, 1, 2, 3, 500000))],
    ),
    "money": (
        "decimal(38,2)",
        pyarrow.decimal128(38, 2),
        [("__p=_null", None), (named("-123456789012345678901234567890123456.78"), Decimal("-123456789012345678901234567890123456.78"))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", PARTITIONS)
def test_each_partition_value_is_read_unchanged_and_found_by_a_filter(tmp_path: Path, kind: str) -> None:
    spark, arrow, values = PARTITIONS[kind]
    lake = Lake(tmp_path).with_options(partition_by=["p"])
    columns = [*ID, ("p", spark)]
    files = [
        (directory, pyarrow.table({"id": [at, at + 100], "p": pyarrow.array([value, value], arrow)}))
        for at, (directory, value) in enumerate(values)
    ]
    first = lake.batch(0, files, columns=columns)
    lake.publish(first)
    table = lake.table()
    read = table.scan().to_arrow().to_pylist()
    assert {row["id"]: row["p"] for row in read} == {
        at + more: value for at, (_, value) in enumerate(values) for more in (0, 100)
    }
    for at, (_, value) in enumerate(values):
        row_filter = IsNull("p") if value is None else EqualTo("p", value)
        assert len(list(table.scan(row_filter=row_filter).plan_files())) == 1
        assert sorted(table.scan(row_filter=row_filter).to_arrow()["id"].to_pylist()) == [at, at + 100]
    lake.publish(lake.batch(1, files[:1], columns=columns, reprocesses=first))
    assert lake.rows() == [0, 100]


@pytest.mark.parametrize("partition_by", [[], ["other"], ["p", "id"]])
def test_table_with_other_partitions_is_refused_before_the_commit(tmp_path: Path, partition_by: list[str]) -> None:
    lake = Lake(tmp_path)
    columns = [*ID, ("p", "string"), ("other", "string")]
    partitioned = lake.with_options(partition_by=partition_by)
    partitioned.sink._create_table(lake.catalog(), partitioned.batch(0, [], columns=columns))
    with pytest.raises(ConflictError, match="other partitions"):
        lake.with_options(partition_by=["p"]).sink.resolve_schema(spark_schema(columns))


def test_table_partitioned_by_a_transform_is_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    schema = Schema(NestedField(1, "at", TimestamptzType(), required=False))
    with lake.catalog() as catalog:
        catalog.create_namespace("lake")
        spec = PartitionSpec(PartitionField(1, 1000, DayTransform(), "at_day"))
        catalog.create_table("lake.rows", schema, location=f"file://{tmp_path}/table", partition_spec=spec)
    with pytest.raises(ConflictError, match=r"day\(at\)"):
        lake.with_options(partition_by=["at"]).sink.resolve_schema(spark_schema([("at", "timestamp")]))


@pytest.mark.parametrize("kind", ["interval day to second", "variant", {"type": "udt"}])
def test_types_that_iceberg_lacks_are_refused_before_the_commit(tmp_path: Path, kind: Any) -> None:
    with pytest.raises(DataError, match="does not have"):
        Lake(tmp_path).sink.resolve_schema(spark_schema([*ID, ("odd", kind)]))


@pytest.mark.parametrize("kind", ["double", "binary", {"type": "array", "elementType": "long", "containsNull": True}])
def test_columns_that_cannot_partition_are_refused(tmp_path: Path, kind: Any) -> None:
    with pytest.raises(DataError, match="cannot partition"):
        Lake(tmp_path).with_options(partition_by=["p"]).sink.resolve_schema(spark_schema([("p", kind)]))


@pytest.mark.parametrize("columns", [[("id", "string")], [("ID", "long")], [("id", "decimal(9,2)")], [("a", "long"), ("A", "long")]])  # fmt: skip
def test_columns_that_do_not_fit_are_refused_before_the_commit(tmp_path: Path, columns: Any) -> None:
    lake = Lake(tmp_path)
    lake.publish(lake.batch(0, [0]))
    with pytest.raises(DataError):
        lake.sink.resolve_schema(spark_schema(columns))


def test_batch_that_does_not_fit_is_not_committed(tmp_path: Path) -> None:
    lake, fixture = Lake(tmp_path), PipelineFixture(tmp_path)
    fixture.arrive(4)
    pipeline = fixture.pipeline(sinks={"t": lake.sink})
    fixture.run("a", pipeline=pipeline)
    with pytest.raises(DataError, match="another type"):
        fixture.run("b", pipeline=pipeline.replace(transform=lambda rows: [{"id": "text"}]))
    assert fixture.opened().log.outcome(1) is None
    fixture.run("b", pipeline=pipeline)
    assert lake.rows() == list(range(12))


def test_renamed_column_is_refused_since_adding_it_again_would_split_it(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.publish(lake.batch(0, [0]))
    with lake.table().update_schema() as update:
        update.rename_column("id", "key")
    with pytest.raises(DataError, match="renamed or dropped"):
        lake.sink.resolve_schema(spark_schema(ID))


def test_table_with_a_required_field_is_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    with lake.catalog() as catalog:
        catalog.create_namespace("lake")
        catalog.create_table("lake.rows", Schema(NestedField(1, "id", LongType(), required=True)), location=f"file://{tmp_path}/table")  # fmt: skip
    with pytest.raises(DataError, match="id: must not be null"):
        lake.sink.resolve_schema(spark_schema(ID))


def test_existing_table_keeps_its_rows_and_location(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    schema = Schema(
        NestedField(7, "note", StringType(), required=False), NestedField(9, "id", LongType(), required=False)
    )
    with lake.catalog() as catalog:
        catalog.create_namespace("lake")
        table = catalog.create_table("lake.rows", schema, location=f"file://{tmp_path}/elsewhere")
        table.append(pyarrow.table({"note": ["existing"], "id": pyarrow.array([1], pyarrow.int64())}))
    lake.sink.resolve_schema(spark_schema(ID))
    lake.publish(lake.batch(0, [2]))
    assert {(row["id"], row["note"]) for row in lake.table().scan().to_arrow().to_pylist()} == {
        (1, "existing"),
        (2, None),
    }


def test_new_columns_are_added_in_the_commit_that_adds_their_rows(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.publish(lake.batch(0, [0]))
    inner = {"type": "struct", "fields": [{"name": "a", "type": "integer", "nullable": True, "metadata": {}}]}
    columns = [*ID, ("tags", {"type": "array", "elementType": "string", "containsNull": True}), ("inner", inner)]
    columns.append(("map", {"type": "map", "keyType": "string", "valueType": "date", "valueContainsNull": True}))
    table = pyarrow.table(
        {
            "id": [1],
            "tags": [["x", None]],
            "inner": pyarrow.array([{"a": 5}], pyarrow.struct([("a", pyarrow.int32())])),
            "map": pyarrow.array([[("k", date(2024, 1, 1))]], pyarrow.map_(pyarrow.string(), pyarrow.date32())),
        }
    )
    before = len(lake.table().metadata.metadata_log)
    lake.sink.resolve_schema(spark_schema(columns))
    lake.publish(lake.batch(1, [("", table)], columns=columns))
    assert len(lake.table().metadata.metadata_log) == before + 1
    read = {row["id"]: row for row in lake.table().scan().to_arrow().to_pylist()}
    assert read[0] == {"id": 0, "tags": None, "inner": None, "map": None}
    assert read[1] == {"id": 1, "tags": ["x", None], "inner": {"a": 5}, "map": [("k", date(2024, 1, 1))]}
    lake.publish(lake.batch(2, [2]))
    assert lake.rows() == [0, 1, 2]
    assert lake.table().scan(row_filter=EqualTo("inner.a", 5)).to_arrow()["id"].to_pylist() == [1]
    assert lake.table().scan(row_filter=EqualTo("inner.a", 6)).to_arrow().num_rows == 0


def struct_of(*fields: tuple[str, Any]) -> dict[str, Any]:
    return json.loads(spark_schema(fields))  # type: ignore[no-any-return]


def array_of(element: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": True}


def test_types_that_iceberg_promotes_are_promoted_in_the_commit_that_needs_it(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    narrow = [
        ("id", "long"),
        ("n", "integer"),
        ("f", "float"),
        ("d", "decimal(5,2)"),
        ("s", struct_of(("a", "integer"))),
        ("l", array_of(struct_of(("x", "integer")))),
    ]
    first = pyarrow.table(
        {
            "id": [0],
            "n": pyarrow.array([7], pyarrow.int32()),
            "f": pyarrow.array([1.5], pyarrow.float32()),
            "d": pyarrow.array([Decimal("1.25")], pyarrow.decimal128(5, 2)),
            "s": pyarrow.array([{"a": 1}], pyarrow.struct([("a", pyarrow.int32())])),
            "l": pyarrow.array([[{"x": 1}]], pyarrow.list_(pyarrow.struct([("x", pyarrow.int32())]))),
        }
    )
    lake.publish(lake.batch(0, [("", first)], columns=narrow))
    wide = [
        ("id", "long"),
        ("n", "long"),
        ("f", "double"),
        ("d", "decimal(12,2)"),
        ("s", struct_of(("a", "long"), ("b", "string"))),
        ("l", array_of(struct_of(("x", "long"), ("y", "string")))),
    ]
    second = pyarrow.table(
        {
            "id": [1],
            "n": [5_000_000_000],
            "f": [1.1],
            "d": pyarrow.array([Decimal("1234567890.25")], pyarrow.decimal128(12, 2)),
            "s": [{"a": 5_000_000_000, "b": "new"}],
            "l": [[{"x": 5_000_000_000, "y": "new"}]],
        }
    )
    assert lake.sink.resolve_schema(spark_schema(wide)) == spark_schema(wide)
    before = len(lake.table().metadata.metadata_log)
    lake.publish(lake.batch(1, [("", second)], columns=wide))
    assert len(lake.table().metadata.metadata_log) == before + 1
    expected = [
        {"id": 0, "n": 7, "f": 1.5, "d": Decimal("1.25"), "s": {"a": 1, "b": None}, "l": [{"x": 1, "y": None}]},
        {
            "id": 1,
            "n": 5_000_000_000,
            "f": 1.1,
            "d": Decimal("1234567890.25"),
            "s": {"a": 5_000_000_000, "b": "new"},
            "l": [{"x": 5_000_000_000, "y": "new"}],
        },
    ]
    assert sorted(lake.table().scan().to_arrow().to_pylist(), key=lambda row: row["id"]) == expected
    for row_filter, ids in [
        (EqualTo("n", 7), [0]),
        (GreaterThan("n", 8), [1]),
        (EqualTo("s.a", 1), [0]),
        (LessThan("d", Decimal("2.00")), [0]),
    ]:
        assert lake.table().scan(row_filter=row_filter).to_arrow()["id"].to_pylist() == ids
    # The next batch is as narrow as the first. It is staged with the types of the table.
    accepted = {
        field["name"]: field["type"] for field in json.loads(lake.sink.resolve_schema(spark_schema(narrow)))["fields"]
    }
    assert (accepted["n"], accepted["f"], accepted["d"]) == ("long", "double", "decimal(12,2)")
    assert [part["name"] for part in accepted["s"]["fields"]] == ["a", "b"]
    # A batch that was staged before the promotion is published unchanged, since readers promote it.
    lake.publish(lake.batch(2, [("", first)], columns=narrow))
    assert len([row for row in lake.table().scan().to_arrow().to_pylist() if row == expected[0]]) == 2


@pytest.mark.parametrize(
    ("stored", "staged"),
    [("integer", "double"), ("integer", "decimal(10,0)"), ("decimal(5,2)", "decimal(7,4)"), ("date", "timestamp_ntz"), ("string", "long")],
)  # fmt: skip
def test_type_that_iceberg_does_not_promote_is_refused_before_the_commit(
    tmp_path: Path, stored: str, staged: str
) -> None:
    lake = Lake(tmp_path)
    lake.sink._create_table(lake.catalog(), lake.batch(0, [], columns=[*ID, ("v", stored)]))
    with pytest.raises(DataError, match="another type"):
        lake.sink.resolve_schema(spark_schema([*ID, ("v", staged)]))


def test_partition_column_is_not_promoted(tmp_path: Path) -> None:
    lake = Lake(tmp_path).with_options(partition_by=["p"])
    lake.sink._create_table(lake.catalog(), lake.batch(0, [], columns=[*ID, ("p", "integer")]))
    with pytest.raises(DataError, match="another type"):
        lake.sink.resolve_schema(spark_schema([*ID, ("p", "long")]))


def test_untyped_column_gets_the_type_of_the_table(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.sink._create_table(lake.catalog(), lake.batch(0, [], columns=[*ID, ("v", "date")]))
    accepted = json.loads(lake.sink.resolve_schema(spark_schema([*ID, ("v", "void"), ("unknown", "void")])))["fields"]
    assert [field["type"] for field in accepted] == ["long", "date", "void"]


def test_dropped_struct_field_is_not_added_again(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    columns = [*ID, ("s", struct_of(("a", "long"), ("b", "long")))]
    lake.publish(lake.batch(0, [("", pyarrow.table({"id": [0], "s": [{"a": 1, "b": 2}]}))], columns=columns))
    with lake.table().update_schema() as update:
        update.delete_column(("s", "b"))
    with pytest.raises(DataError, match="renamed or dropped"):
        lake.sink.resolve_schema(spark_schema(columns))


def reuse_dropped(update: Any) -> None:
    update.delete_column("v")


def reuse_renamed(update: Any) -> None:
    update.rename_column("v", "w")


@pytest.mark.parametrize("reuse", [reuse_dropped, reuse_renamed])
def test_reused_column_name_is_refused_since_readers_would_read_the_old_values(tmp_path: Path, reuse: Any) -> None:
    lake = Lake(tmp_path)
    columns = [*ID, ("v", "long")]
    lake.publish(lake.batch(0, [("", pyarrow.table({"id": [0], "v": [1]}))], columns=columns))
    staged = lake.batch(1, [("", pyarrow.table({"id": [1], "v": [2]}))], columns=columns)
    with lake.table().update_schema() as update:
        reuse(update)
    with lake.table().update_schema() as update:
        update.add_column("v", LongType())
    for staged_columns in (
        columns,
        ID,
    ):  # readers return wrong values of earlier rows, whichever columns the sink writes now
        with pytest.raises(DataError, match="has the name that another column had"):
            lake.sink.resolve_schema(spark_schema(staged_columns))
    with pytest.raises(PublishError, match="was changed after the batch was staged"):
        lake.publish(staged)


def test_name_of_a_column_without_appended_values_may_be_reused(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.publish(lake.batch(0, [0]))
    for change in ("add", "delete", "add"):
        with lake.table().update_schema() as update:
            update.add_column("v", LongType()) if change == "add" else update.delete_column("v")
    lake.publish(lake.batch(1, [1]))
    assert lake.rows() == [0, 1]


@pytest.mark.parametrize(
    ("properties", "requires"),
    [
        ({"encryption.key-id": "k"}, "encryption.key-id"),
        ({"gc.enabled": "false"}, "gc.enabled=false, and expire_after_s is set"),
        ({"format-version": "3"}, "format-version 3"),
    ],
)
def test_table_that_requires_more_of_its_writers_is_refused_by_name(
    tmp_path: Path, properties: dict[str, str], requires: str
) -> None:
    lake = Lake(tmp_path).with_options(expire_after_s=60)
    lake.sink._create_table(lake.catalog(), lake.batch(0, []))
    stored = Path(lake.table().metadata_location.removeprefix("file://"))  # as a writer with more features leaves it
    metadata = {**json.loads(stored.read_text()), "properties": properties}
    if "format-version" in properties:
        metadata |= {"format-version": 3, "next-row-id": 0, "properties": {}}
    stored.write_text(json.dumps(metadata))
    with pytest.raises(DataError, match="requirements for writers") as caught:
        lake.sink.resolve_schema(spark_schema(ID))
    assert caught.value.fields["requires"] == [requires]


def test_sorted_format_1_table_accepts_rows(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    with lake.catalog() as catalog:
        catalog.create_namespace("lake")
        order = SortOrder(SortField(1, IdentityTransform()))
        catalog.create_table(
            "lake.rows", Schema(NestedField(1, "id", LongType(), required=False)), location=f"file://{tmp_path}/table",
            sort_order=order, properties={"format-version": "1", "write.distribution-mode": "range"},
        )  # fmt: skip
    lake.sink.resolve_schema(spark_schema(ID))
    lake.publish(lake.batch(0, [3, 1, 2]))
    assert lake.rows() == [1, 2, 3]


VALUES: dict[str, tuple[Any, list[Any]]] = {
    "long": (pyarrow.int64(), [-5, 0, 7]),
    "double": (pyarrow.float64(), [-1.5, 0.0, 1e15]),
    "float": (pyarrow.float32(), [-1.5, 0.0, 0.1]),
    "string": (pyarrow.string(), ["", "a" * 40, "z\ud7ff\ud7ff\ud7ff" + "\ud7ff" * 20, "\U0010ffff" * 20]),
    "date": (pyarrow.date32(), [date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31)]),
    "timestamp": (pyarrow.timestamp("us", "UTC"), [datetime(1969, 1, 1, 0, 0, 0, 1, UTC), datetime(2024, 1, 1, tzinfo=UTC)]),
    "decimal(7,2)": (pyarrow.decimal128(7, 2), [Decimal("-99999.99"), Decimal("0.01")]),
    "decimal(38,10)": (pyarrow.decimal128(38, 10), [Decimal("-1.0000000001"), Decimal("9999999999999999999999999999.0000000001")]),
    "boolean": (pyarrow.bool_(), [True, False]),
}  # fmt: skip


@pytest.mark.parametrize("kind", VALUES)
def test_readers_skip_no_file_that_matches_their_filter(tmp_path: Path, kind: str) -> None:
    arrow, values = VALUES[kind]
    lake = Lake(tmp_path)
    columns = [*ID, ("v", kind)]
    files = [
        ("", pyarrow.table({"id": [at], "v": pyarrow.array([value], arrow)}))
        for at, value in enumerate([*values, None])
    ]
    lake.publish(lake.batch(0, files, columns=columns))
    table = lake.table()
    read = {row["id"]: row["v"] for row in table.scan().to_arrow().to_pylist()}
    for at, value in list(read.items()):
        for row_filter in [IsNull("v")] if value is None else [EqualTo("v", value), *_around(value)]:
            assert at in table.scan(row_filter=row_filter).to_arrow()["id"].to_pylist(), row_filter
    assert len(list(table.scan(row_filter=IsNull("v")).plan_files())) == 1
    if kind not in ("boolean", "float", "double"):
        assert len(list(table.scan(row_filter=EqualTo("v", values[0])).plan_files())) == 1


def _around(value: Any) -> list[Any]:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return []
    return [GreaterThan("v", value - 1), LessThan("v", value + 1)]


def test_bound_that_one_row_group_lacks_is_omitted(tmp_path: Path) -> None:
    import pyarrow.parquet

    lake = Lake(tmp_path)
    location = Path(lake.sink.attempt_location(0, "a"))
    location.mkdir(parents=True)
    table = pyarrow.table({"id": [1, 2], "v": [1.0, float("nan")]})
    pyarrow.parquet.write_table(table, location / "p.parquet", row_group_size=1)
    (file,) = lake.sink.with_stats(lake.sink.collect(0, "a"))
    bounds = json.loads(file.stats)["columns"]
    assert bounds["v"][3:] == [None, None]
    assert bounds["id"][2:] == [0, 1, 2]


@pytest.mark.parametrize("name", ["token", "credential", "s3.secret-access-key", "adls.account-key", "header.Authorization"])  # fmt: skip
def test_secret_in_the_spec_is_refused_and_not_quoted(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidError, match="connection") as raised:
        IcebergSink(str(tmp_path), "a.b", properties={name: SECRET})
    assert SECRET not in str(raised.value)


def test_password_in_a_uri_is_refused_and_not_quoted(tmp_path: Path) -> None:
    with pytest.raises(InvalidError) as raised:
        IcebergSink(str(tmp_path), "a.b", properties={"uri": f"postgresql://me:{SECRET}@db/catalog"})
    assert SECRET not in str(raised.value)


def test_connection_secrets_never_appear_in_specs_logs_or_errors(tmp_path: Path, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    extra = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "token": SECRET, "echo": False}

    def resolve(conn_id: str) -> Connection:
        return Connection(conn_id=conn_id, login="me", password=SECRET, extra=extra)

    lake, fixture = Lake(tmp_path).with_options(properties={}, conn_id="lake"), PipelineFixture(tmp_path)
    fixture.arrive(3)
    pipeline = fixture.pipeline(sinks={"t": lake.sink})
    with use_resolver(resolve):
        fixture.run(drain=True, pipeline=pipeline)
        assert lake.rows() == list(range(9))
        extra["type"] = "no-such-type"
        with pytest.raises(StreamsemError) as raised:
            lake.marker()
    shown, error = f"{raised.value!r} {raised.value}", raised.value.__cause__
    assert SECRET not in shown
    assert error is None or SECRET not in str(error)
    assert SECRET not in pipeline.spec_bytes().decode()
    assert SECRET not in caplog.text
    assert all(SECRET.encode() not in (fixture.store.read(stat.key) or b"") for stat in fixture.store.list(""))
    assert not any(SECRET.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_connection_that_names_code_is_refused(tmp_path: Path) -> None:
    def resolve(conn_id: str) -> Connection:
        return Connection(conn_id=conn_id, extra={"py-catalog-impl": "os.system"})

    with use_resolver(resolve), pytest.raises(InvalidError, match="may load code"):
        Lake(tmp_path).with_options(conn_id="lake").marker()


@pytest.mark.parametrize("arguments", [{"table": "rows"}, {"table": "a..b"}, {"path": "/a#b"}, {"expire_after_s": 0}, {"properties": {"a": 1}}])  # fmt: skip
def test_invalid_arguments_are_refused(tmp_path: Path, arguments: Any) -> None:
    with pytest.raises(InvalidError):
        IcebergSink(**{"path": str(tmp_path), "table": "a.b", **arguments})


def test_spec_round_trips_and_its_immutable_config_includes_the_table(tmp_path: Path) -> None:
    from airflow_provider_streamsem.pipeline.spec.pipeline import from_json

    fixture = PipelineFixture(tmp_path)
    sink = IcebergSink(str(tmp_path / "t"), "a.b", properties={"type": "sql"}, partition_by=["id"], expire_after_s=60)
    pipeline = fixture.pipeline(sinks={"t": sink})
    assert from_json(json.loads(pipeline.spec_bytes())).sinks["t"] == sink
    other = IcebergSink(str(tmp_path / "t"), "a.c", partition_by=["id"])
    assert other.immutable_config() != sink.immutable_config()


def test_table_whose_properties_name_code_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.sink._create_table(lake.catalog(), lake.batch(0, []))
    stored = Path(lake.table().metadata_location.removeprefix("file://"))
    named = {"write.py-location-provider.impl": "os.path"}
    stored.write_text(json.dumps({**json.loads(stored.read_text()), "properties": named}))
    with pytest.raises(InvalidError, match=r"names code.*write\.py-location-provider\.impl"):
        lake.sink.resolve_schema(spark_schema(ID))


@pytest.mark.parametrize(
    ("first", "second"),
    [("a.b long", "a struct<b:long>"), ("m map<string,long>", "m.key string")],
    ids=["struct", "map"],
)
def test_columns_with_one_path_are_refused_by_name(first: str, second: str) -> None:
    fields = []
    for text in (first, second):
        name, kind = text.split(" ", 1)
        of: Any = {
            "long": "long", "string": "string",
            "struct<b:long>": {"type": "struct", "fields": [{"name": "b", "type": "long", "nullable": True, "metadata": {}}]},
            "map<string,long>": {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True},
        }[kind]  # fmt: skip
        fields.append({"name": name, "type": of, "nullable": True, "metadata": {}})
    with pytest.raises(DataError, match="two of them have one path"):
        iceberg_schema(json.dumps({"type": "struct", "fields": fields}), ())
