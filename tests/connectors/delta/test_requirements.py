"""Requirements that Delta tables set for their writers: the sink meets them, or refuses the table before the commit and names the requirement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from deltalake import CommitProperties, DeltaTable, QueryBuilder

from airflow_provider_streamsem.connectors.delta.sink import DeltaSink
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.errors import DataError, InvalidError, PublishError, UnavailableError
from airflow_provider_streamsem.pipeline.run.reprocess import reprocess_run
from airflow_provider_streamsem.pipeline.versions.publish import skip
from airflow_provider_streamsem.testing.rows import RowsEngine
from tests.connectors.batches import schema_of, staged
from tests.connectors.delta.delta_fixture import DeltaFixture

ID = {"name": "id", "type": "long", "nullable": True, "metadata": {}}


def field(name: str, kind: Any, *, nullable: bool = True, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


def struct(*fields: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def sink_for_table(
    path: Path, *fields: Any, features: tuple[str, ...] = (), readers: tuple[str, ...] = (), protocol: tuple[int, int] = (1, 2), **properties: str
) -> DeltaSink:  # fmt: skip
    """Create a table as another writer leaves it: the first entry of its log."""
    versions: dict[str, Any] = {"minReaderVersion": protocol[0], "minWriterVersion": protocol[1]}
    if features:
        versions = {"minReaderVersion": 3 if readers else 1, "minWriterVersion": 7, "writerFeatures": [*features]}
        versions |= {"readerFeatures": [*readers]} if readers else {}
    if "columnMapping" in features or properties.get("columnMapping__mode") == "id":
        fields = ({**ID, "metadata": {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"}},)
    metadata = {
        "id": "t", "format": {"provider": "parquet", "options": {}}, "schemaString": json.dumps(struct(*(fields or (ID,)))),
        "partitionColumns": [], "configuration": {f"delta.{name.replace('__', '.')}": value for name, value in properties.items()}, "createdTime": 0,
    }  # fmt: skip
    log = path / "table" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text(json.dumps({"protocol": versions}) + "\n" + json.dumps({"metaData": metadata}))
    return DeltaSink(str(path / "table"))


def publish(sink: DeltaSink, batch: SinkCommit) -> Any:
    return sink.publish(batch)


def rows(sink: DeltaSink) -> list[dict[str, Any]]:
    result = QueryBuilder().register("t", DeltaTable(sink.path)).execute("SELECT * FROM t").read_all()
    return pyarrow.table(result).to_pylist()  # type: ignore[no-any-return]


REFUSED: dict[str, dict[str, Any]] = {
    "deletionVectors": {"features": ("deletionVectors",), "readers": ("deletionVectors",)},
    "rowTracking": {"features": ("rowTracking", "domainMetadata")},
    "clustering": {"features": ("clustering", "domainMetadata")},
    "columnMapping": {"features": ("columnMapping",), "readers": ("columnMapping",)},
    "identityColumns": {"protocol": (1, 6)},
    "delta.enableRowTracking": {"enableRowTracking": "true"},
    "inCommitTimestamp": {"features": ("inCommitTimestamp",)},
    "typeWidening": {"features": ("typeWidening",), "readers": ("typeWidening",)},
    "allowColumnDefaults": {"features": ("allowColumnDefaults",)},
    "icebergCompatV2": {"features": ("icebergCompatV2",)},
    "delta.columnMapping.mode": {"protocol": (2, 5), "columnMapping__mode": "id"},
    "delta.constraints.small": {"protocol": (1, 3), "constraints__small": "id < 10"},
    "delta.constraints.never": {"protocol": (1, 3), "constraints__never": "false"},
    "delta.compatibility.symlinkFormatManifest.enabled": {"compatibility__symlinkFormatManifest__enabled": "true"},
    "delta.universalFormat.enabledFormats": {"universalFormat__enabledFormats": "iceberg"},
    "delta.setTransactionRetentionDuration": {"setTransactionRetentionDuration": "interval 1 days"},
    "delta.appendonly": {"appendonly": "true"},
    "delta.notKnownYet": {"notKnownYet": "true"},
}


@pytest.mark.parametrize("feature", REFUSED)
def test_table_with_an_unsupported_feature_or_property_is_refused_by_name(tmp_path: Path, feature: str) -> None:
    sink = sink_for_table(tmp_path, **REFUSED[feature])
    with pytest.raises(DataError, match="requirements for writers") as caught:
        sink.resolve_schema(schema_of(id="long"))
    assert feature in caught.value.fields["requires"]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("column", "requires"),
    [
        (field("c", "long", **{"delta.generationExpression": "id + 1"}), "c: delta.generationExpression"),
        (field("c", "long", **{"delta.identity.start": 1}), "c: delta.identity.start"),
        (field("c", "long", CURRENT_DEFAULT="7"), "c: CURRENT_DEFAULT"),
        (field("c", "long", **{"delta.typeChanges": []}), "c: delta.typeChanges"),
        (field("s", struct(field("a", "long", **{"delta.invariants": "{}"}))), "s.a: delta.invariants"),
        (field("s", struct(field("a", "string")), __CHAR_VARCHAR_TYPE_STRING="struct<a:varchar(2)>"), "s: struct<a:varchar(2)> inside another type"),
        (field("l", {"type": "array", "elementType": "long", "containsNull": False}), "l: NOT NULL inside an array or map"),
        (field("l", {"type": "array", "elementType": struct(field("a", "long", nullable=False)), "containsNull": True}), "l: NOT NULL inside an array or map"),
    ],
)  # fmt: skip
def test_column_that_a_writer_must_compute_or_check_is_refused_by_name(
    tmp_path: Path, column: dict[str, Any], requires: str
) -> None:
    with pytest.raises(DataError) as caught:
        sink_for_table(tmp_path, ID, column).resolve_schema(schema_of(id="long"))
    assert caught.value.fields["requires"] == [requires]


def test_table_whose_features_need_nothing_for_added_files_accepts_rows(tmp_path: Path) -> None:
    accepted: list[dict[str, Any]] = [
        {"features": ("changeDataFeed", "appendOnly", "invariants"), "enableChangeDataFeed": "true"},
        {"features": ("v2Checkpoint",), "readers": ("v2Checkpoint",), "checkpointPolicy": "v2"},
        {"features": ("timestampNtz",), "readers": ("timestampNtz",), "enableRowTracking": "false"},
        {"protocol": (2, 5), "columnMapping__mode": "none", "autoOptimize__optimizeWrite": "true", "parquet__compression__codec": "zstd"},
        {"appendOnly": "true", "checkpointInterval": "10"},
    ]  # fmt: skip
    for number, kind in enumerate(accepted):
        sink = sink_for_table(tmp_path / str(number), **kind)
        publish(sink, staged(sink, pyarrow.table({"id": [number]}), schema=schema_of(id="long")))
        assert rows(sink) == [{"id": number}]


REQUIRED = (
    field("id", "long", nullable=False),
    field("s", struct(field("a", "integer", nullable=False), field("b", "integer"))),
    field("g", struct(field("a", "integer")), nullable=False),
    field("l", {"type": "array", "elementType": "long", "containsNull": True}, nullable=False),
)
KINDS = {
    "id": "long",
    "s": struct(field("a", "integer"), field("b", "integer")),
    "g": struct(field("a", "integer")),
    "l": {"type": "array", "elementType": "long", "containsNull": True},
}
ACCEPTED = {"id": 1, "s": {"a": 1, "b": None}, "g": {"a": None}, "l": [None]}
ARROW = pyarrow.schema(
    [
        ("id", pyarrow.int64()),
        ("s", pyarrow.struct([("a", pyarrow.int32()), ("b", pyarrow.int32())])),
        ("g", pyarrow.struct([("a", pyarrow.int32())])),
        ("l", pyarrow.list_(pyarrow.int64())),
    ]
)


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize(
    ("change", "column"), [({"id": None}, "id"), ({"s": {"a": None}}, "s.a"), ({"s": None}, "s.a"), ({"g": None}, "g"), ({"l": None}, "l")]
)  # fmt: skip
def test_null_in_a_not_null_column_is_refused_before_the_commit_with_and_without_footer_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], column: str, statistics: bool
) -> None:
    sink = sink_for_table(tmp_path, *REQUIRED)
    write = pyarrow.parquet.write_table
    monkeypatch.setattr(pyarrow.parquet, "write_table", lambda *a, **k: write(*a, write_statistics=statistics, **k))
    table = pyarrow.Table.from_pylist([ACCEPTED, {**ACCEPTED, **change}], schema=ARROW)
    with pytest.raises(DataError, match="NOT NULL") as caught:
        staged(sink, table, schema=schema_of(**KINDS))
    assert caught.value.fields["columns"] == [column]


def test_rows_without_nulls_in_not_null_columns_are_published(tmp_path: Path) -> None:
    sink = sink_for_table(tmp_path, *REQUIRED)
    table = pyarrow.Table.from_pylist([ACCEPTED, {**ACCEPTED, "id": 2}], schema=ARROW)
    publish(sink, staged(sink, table, schema=schema_of(**KINDS)))
    assert len(rows(sink)) == 2
    with pytest.raises(DataError, match="NOT NULL"):
        sink.resolve_schema(schema_of(id="long"))  # the rows lack required columns


def test_publishing_to_a_column_that_became_not_null_fails_and_names_streamsem_skip(tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path / "table"))
    batch = staged(sink, pyarrow.table({"id": [1, None]}), schema=schema_of(id="long"))
    sink_for_table(tmp_path, field("id", "long", nullable=False))
    with pytest.raises(PublishError, match="streamsem skip"):
        publish(sink, batch)
    assert rows(sink) == []


@pytest.mark.parametrize(
    ("kind", "text", "fits"),
    [("varchar(3)", "äöü", True), ("varchar(3)", "abcd", False), ("char(3)", "abc", True), ("char(3)", "ab", False), ("char(3)", None, True)],
)  # fmt: skip
def test_text_that_does_not_fit_char_or_varchar_is_refused_before_the_commit(
    tmp_path: Path, kind: str, text: str | None, fits: bool
) -> None:
    sink = sink_for_table(tmp_path, ID, field("c", "string", __CHAR_VARCHAR_TYPE_STRING=kind))
    table = pyarrow.table({"id": [1, 2], "c": pyarrow.array([None, text], pyarrow.string())})
    if fits:
        publish(sink, staged(sink, table, schema=schema_of(id="long", c="string")))
        assert [row["c"] for row in rows(sink)] == [None, text]
    else:
        with pytest.raises(DataError, match="VARCHAR") as caught:
            staged(sink, table, schema=schema_of(id="long", c="string"))
        assert caught.value.fields["columns"] == {"c": kind}


class AppendOnlyFixture(DeltaFixture):
    """Two published versions in a table that then becomes append-only."""

    def begin(self) -> None:
        self.arrive(4)
        self.run("run", drain=True)
        self.set_append_only("true")

    def set_append_only(self, value: str) -> None:
        DeltaTable(self.table).alter.set_table_properties({"delta.appendOnly": value})


@pytest.fixture
def fixture(tmp_path: Path) -> AppendOnlyFixture:
    fixture = AppendOnlyFixture(tmp_path)
    fixture.begin()
    return fixture


def test_reprocessing_in_an_append_only_table_is_refused_before_the_plan(fixture: AppendOnlyFixture) -> None:
    with pytest.raises(InvalidError, match="accepts only appends"):
        fixture.run("reprocess", reprocessed=0)
    with pytest.raises(
        InvalidError, match="accepts only appends"
    ):  # the call that MicroBatchOperator(rerun="reprocess") makes
        reprocess_run(fixture.pipeline(), run_key="run", request="1", engine=RowsEngine(), log=fixture.log())
    assert fixture.log().plan(2) is None
    fixture.arrive(1)
    fixture.run("next")
    fixture.check_exactly_once()


def test_reprocessing_into_a_table_that_became_append_only_fails_and_names_streamsem_skip(
    fixture: AppendOnlyFixture,
) -> None:
    fixture.set_append_only("false")

    class TableTurnsAppendOnly(RowsEngine):
        def stage(self, *given: Any) -> Any:
            fixture.set_append_only("true")
            return super().stage(*given)

    from airflow_provider_streamsem import reprocess

    with pytest.raises(PublishError, match="streamsem skip"):
        reprocess(fixture.pipeline(), 0, engine=TableTurnsAppendOnly(), log=fixture.log())
    skip(fixture.pipeline(), 2, sink="table", reason="append-only", log=fixture.log())
    fixture.arrive(1)
    fixture.run("next")
    fixture.check_exactly_once()


def test_table_errors_are_permanent_and_store_errors_are_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_waits: None
) -> None:
    from deltalake.exceptions import CommitFailedError, DeltaError

    sink = DeltaSink(str(tmp_path / "table"))
    publish(sink, staged(sink, pyarrow.table({"id": [0]}), schema=schema_of(id="long")))
    batch = staged(sink, pyarrow.table({"id": [1]}), 1, schema=schema_of(id="long"))
    commit = DeltaTable.create_write_transaction
    for error, raised, tries in [
        (CommitFailedError("The table is append-only"), PublishError, 1),
        (DeltaError("Kernel error: unsupported"), PublishError, 1),
        (ValueError("no such column"), PublishError, 1),
        (OSError("Generic S3 error: Access is Forbidden: 403"), PublishError, 1),
        (OSError("Generic S3 error: connection reset"), UnavailableError, 12),
        (CommitFailedError("Error in object store: operation timed out"), UnavailableError, 12),
    ]:
        calls: list[int] = []

        def fail(*given: Any, error: Exception = error, calls: list[int] = calls, **named: Any) -> None:
            calls.append(1)
            raise error

        monkeypatch.setattr(DeltaTable, "create_write_transaction", fail)
        with pytest.raises(raised):
            publish(sink, batch)
        assert len(calls) == tries, error
    conflicts_so_far: list[int] = []

    def conflicts(table: DeltaTable, *given: Any, **named: Any) -> None:
        if len(conflicts_so_far) < 3:  # another writer commits first each time
            conflicts_so_far.append(1)
            commit(DeltaTable(sink.path), [], "append", table.schema(), commit_properties=CommitProperties())
            raise CommitFailedError("Failed to commit transaction: 0")
        commit(table, *given, **named)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", conflicts)
    assert publish(sink, batch).result == "applied"
    assert len(rows(sink)) == 2


def test_rows_are_staged_with_the_types_of_the_table(tmp_path: Path) -> None:
    s = struct(field("a", "long"), field("c", "string"))
    sink = sink_for_table(
        tmp_path, field("id", "long"), field("d", "decimal(12,2)"), field("s", s), field("v", "string")
    )
    rows_schema = schema_of(id="integer", d="decimal(5,2)", s=struct(field("a", "byte"), field("b", "string")), v="void", more="void")  # fmt: skip
    accepted = {column["name"]: column["type"] for column in json.loads(sink.resolve_schema(rows_schema))["fields"]}
    inside = {part["name"]: part["type"] for part in accepted.pop("s")["fields"]}
    assert accepted == {"id": "long", "d": "decimal(12,2)", "v": "string", "more": "void"}
    assert inside == {"a": "long", "c": "string", "b": "string"}
    for kinds in ({"id": "decimal(20,0)"}, {"d": "decimal(13,2)"}, {"s": struct(field("a", "string"))}, {"s": struct(field("A", "long"))}):  # fmt: skip
        with pytest.raises(DataError, match="nothing became visible"):
            sink.resolve_schema(schema_of(**kinds))


def test_added_struct_field_is_null_in_old_rows(tmp_path: Path) -> None:
    inner = field("l", {"type": "array", "elementType": struct(field("a", "long")), "containsNull": True})
    sink = sink_for_table(
        tmp_path, field("id", "long", nullable=False), field("s", struct(field("a", "long", nullable=False))), inner
    )
    before = pyarrow.table({"id": [0], "s": [{"a": 0}], "l": [[{"a": 0}]]})
    kind = {"type": "array", "elementType": struct(field("a", "long")), "containsNull": True}
    publish(sink, staged(sink, before, schema=schema_of(id="long", s=struct(field("a", "long")), l=kind)))
    kind = {**kind, "elementType": struct(field("a", "long"), field("b", "string"))}
    wider = schema_of(id="long", s=struct(field("a", "long"), field("b", "string")), l=kind)
    after = pyarrow.table({"id": [1], "s": [{"a": 1, "b": "x"}], "l": [[{"a": 1, "b": "y"}]]})
    publish(sink, staged(sink, after, 1, schema=wider))
    assert sorted(rows(sink), key=lambda row: row["id"]) == [
        {"id": 0, "s": {"a": 0, "b": None}, "l": [{"a": 0, "b": None}]},
        {"id": 1, "s": {"a": 1, "b": "x"}, "l": [{"a": 1, "b": "y"}]},
    ]
    schema = json.loads(DeltaTable(sink.path).schema().to_json())
    nullable = {
        column["name"]: column["nullable"] for column in [*schema["fields"], *schema["fields"][1]["type"]["fields"]]
    }
    assert nullable == {"id": False, "s": True, "l": True, "a": False, "b": True}


def test_files_narrower_than_the_changed_column_type_are_not_published(tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path / "table"))
    batch = staged(sink, pyarrow.table({"id": pyarrow.array([1], pyarrow.int32())}), schema=schema_of(id="integer"))
    sink_for_table(tmp_path)
    with pytest.raises(PublishError, match="no longer accepts its rows"):
        publish(sink, batch)
    assert rows(sink) == []
