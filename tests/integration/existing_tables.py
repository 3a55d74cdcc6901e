"""Tables that Spark creates, each with a feature of its format, and what a pipeline does with them."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet
from pyiceberg.catalog import load_catalog
from pyiceberg.transforms import IdentityTransform
from pyspark.sql import SparkSession

from airflow_provider_streamsem import (
    DeltaSource,
    FilesSink,
    FilesSource,
    IcebergSource,
    Pipeline,
    read_committed,
    run_batch,
)
from airflow_provider_streamsem.connectors.delta.sink import DeltaSink
from airflow_provider_streamsem.connectors.iceberg.sink import IcebergSink
from airflow_provider_streamsem.errors import StreamsemError
from tests.integration.parts.iceberg import RestCatalog

DAY = "2026-03-08"
OPERATIONS = ("append", "append by Spark", "merge", "merge by Spark", "read", "compact")
NEW = {10: (100, "a"), 11: (110, None), 12: (120, "b c%=é")}
"""The rows that a pipeline writes: k → v, p. A merge also replaces the rows 1 and 3."""
REPLACED = {1: (101, "z"), 3: (103, None)}
YES = "yes"


@dataclass(frozen=True)
class Feature:
    """
    A feature of a table with the columns ``k bigint, v bigint, p string, at timestamp``.

    :param name: as in the documentation
    :param columns: more columns, as in ``CREATE TABLE``
    :param clauses: clauses of ``CREATE TABLE`` after the columns
    :param properties: properties of the table
    :param then: statements after the first rows; ``{t}`` stands for the table
    :param change: what is done with the table after these statements, by pyiceberg or by Iceberg's Java library
    :param holds: a condition that each row of the table meets at the end
    :param generated: column → the expression that computes its ``bigint`` values; ``""`` for an identity column
    :param replaces: column → its declaration in place of the usual one
    :param written: columns of the rows that the pipeline writes besides the usual ones: name → type
    :param partition_by: that of the sink
    """

    name: str
    columns: str = ""
    clauses: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    then: Sequence[str] = ()
    change: Callable[[Any], object] | None = None
    holds: str = "true"
    generated: Mapping[str, str] = field(default_factory=dict)
    replaces: Mapping[str, str] = field(default_factory=dict)
    partition_by: Sequence[str] = ()


def _delta(name: str, **more: Any) -> Feature:
    properties = {f"delta.{key}": value for key, value in more.pop("properties", {}).items()}
    return Feature(name, properties=properties, **more)


DELTA = (
    _delta("none"),
    _delta("partitions", clauses="PARTITIONED BY (p)", partition_by=["p"]),
    _delta("deletion vectors", properties={"enableDeletionVectors": "true"}, then=["DELETE FROM {t} WHERE k = 4"]),
    _delta(
        "column mapping by name",
        columns="old INT, gone INT",
        properties={"columnMapping.mode": "name"},
        then=["ALTER TABLE {t} RENAME COLUMN old TO renamed", "ALTER TABLE {t} DROP COLUMN gone"],
        holds="renamed IS NOT DISTINCT FROM IF(k < 6 AND v < 100, 1, renamed)",
    ),
    _delta("column mapping by id", properties={"columnMapping.mode": "id"}),
    _delta("row tracking", properties={"enableRowTracking": "true"}, holds="_metadata.row_id IS NOT NULL"),
    _delta("liquid clustering", clauses="CLUSTER BY (k)"),
    _delta("generated column", generated={"g": "k * 2"}, holds="g = k * 2"),
    _delta("identity column", generated={"i": ""}, holds="i IS NOT NULL"),
    _delta("CHECK constraint", then=["ALTER TABLE {t} ADD CONSTRAINT small CHECK (v < 1000)"]),
    _delta("NOT NULL column", replaces={"k": "k BIGINT NOT NULL"}),
    _delta("v2 checkpoints", properties={"checkpointPolicy": "v2", "checkpointInterval": "2"}),
    _delta(
        "type widening",
        replaces={"v": "v INT"},
        properties={"enableTypeWidening": "true"},
        then=["ALTER TABLE {t} ALTER COLUMN v TYPE BIGINT"],
    ),
    _delta("variant column", columns="x VARIANT"),
    _delta(
        "column default",
        columns="d STRING DEFAULT 'new'",
        properties={"feature.allowColumnDefaults": "supported"},
        holds="d IS NOT NULL",
    ),
    _delta("in-commit timestamps", properties={"enableInCommitTimestamps": "true"}),
    _delta("change data feed", properties={"enableChangeDataFeed": "true"}),
    _delta("append-only", properties={"appendOnly": "true"}),
    _delta("VARCHAR column", replaces={"p": "p VARCHAR(20)"}),
    _delta("Iceberg compatibility", properties={"columnMapping.mode": "name", "enableIcebergCompatV2": "true"}),
)


def _with_bucket(table: IcebergTable) -> None:
    with table.loaded.update_spec() as update:
        update.add_field("k", "bucket[4]")


def _sorted(table: IcebergTable) -> None:
    with table.loaded.update_sort_order() as update:
        update.desc("v", IdentityTransform())


def _with_branch(table: IcebergTable) -> None:
    snapshot = table.loaded.current_snapshot().snapshot_id
    table.loaded.manage_snapshots().create_branch(snapshot, "audit").create_tag(snapshot, "first").commit()


def _with_identifier(table: IcebergTable) -> None:
    with table.loaded.update_schema() as update:
        update.set_identifier_fields("k")


def _with_default(table: IcebergTable) -> None:
    java, own = table.java
    kind = java.types.Types.StringType.get()
    own.updateSchema().addColumn("d", kind, None, java.expressions.Literal.of("old")).commit()


def _with_equality_delete(table: IcebergTable) -> None:
    """Delete row 4 as Flink does."""
    java, own = table.java
    field_id = own.schema().findField("k").fieldId()
    named = pa.schema([pa.field("k", pa.int64(), metadata={"PARQUET:field_id": str(field_id)})])
    path = table.root / "table" / "data" / "deletes.parquet"
    pyarrow.parquet.write_table(pa.table({"k": [4]}, schema=named), path)
    ids = table.spark._sc._gateway.new_array(table.spark._jvm.int, 1)  # type: ignore[union-attr]
    ids[0] = field_id
    file = java.FileMetadata.deleteFileBuilder(own.spec()).ofEqualityDeletes(ids).withPath(f"file://{path}")
    file = file.withFormat("parquet").withFileSizeInBytes(path.stat().st_size).withRecordCount(1).build()
    own.newRowDelta().addDeletes(file).commit()


_V2, _V3 = {"format-version": "2"}, {"format-version": "3"}
ICEBERG = (
    Feature("none", properties=_V2),
    Feature("identity partitions", clauses="PARTITIONED BY (p)", properties=_V2, partition_by=["p"]),
    Feature("hidden partitions", clauses="PARTITIONED BY (days(at), bucket(4, k), truncate(1, p))", properties=_V2),
    Feature("partition evolution", properties=_V2, change=_with_bucket),
    Feature("sort order", properties=_V2, change=_sorted),
    Feature("branch and tag", properties=_V2, change=_with_branch),
    Feature("identifier fields", replaces={"k": "k BIGINT NOT NULL"}, properties=_V2, change=_with_identifier),
    Feature("required column", replaces={"k": "k BIGINT NOT NULL"}, properties=_V2),
    Feature(
        "position deletes",
        properties={**_V2, "write.delete.mode": "merge-on-read"},
        then=["DELETE FROM {t} WHERE k = 4"],
    ),
    Feature(
        "renamed and dropped columns",
        columns="old INT, gone INT",
        properties=_V2,
        then=["ALTER TABLE {t} RENAME COLUMN old TO renamed", "ALTER TABLE {t} DROP COLUMN gone"],
        holds="renamed IS NOT DISTINCT FROM IF(k < 6 AND v < 100, 1, renamed)",
    ),
    Feature(
        "promoted type", replaces={"v": "v INT"}, properties=_V2, then=["ALTER TABLE {t} ALTER COLUMN v TYPE BIGINT"]
    ),
    Feature("ORC files", properties={**_V2, "write.format.default": "orc"}),
    Feature("format 1", properties={"format-version": "1"}),
    Feature("equality deletes", properties=_V2, change=_with_equality_delete),
    Feature("format 3", properties=_V3),
    Feature("column default", properties=_V3, change=_with_default, holds="d IS NOT NULL"),
    Feature(
        "deletion vectors",
        properties={**_V3, "write.delete.mode": "merge-on-read"},
        then=["DELETE FROM {t} WHERE k = 4"],
    ),
    Feature("variant column", columns="x VARIANT", properties=_V3),
)


class ExistingTable:
    """A table that Spark has created, with the rows 0 to 5 in two files, without row 4."""

    format: ClassVar[str]
    columns: ClassVar[Mapping[str, str]] = {"k": "k BIGINT", "v": "v BIGINT", "p": "p STRING", "at": "at TIMESTAMP"}

    def __init__(self, spark: SparkSession, root: Path, feature: Feature) -> None:
        self.spark, self.root, self.feature = spark, root, feature
        self.id = f"t{uuid.uuid4().hex[:12]}"

    @property
    def name(self) -> str:
        raise NotImplementedError

    def change(self) -> None:
        """Do what Spark's SQL has no statement for."""

    def create(self) -> None:
        feature = self.feature
        self._create_table()
        names = "k, v, p, at" + (", old, gone" if "old" in feature.columns else "")
        for first in (0, 3):
            self.sql(
                f"INSERT INTO {{t}} ({names}) SELECT id, id, IF(id % 2 = 0, 'a', 'b'), timestamp'{DAY} 01:00:00Z'"
                + (", 1, 2" if "old" in feature.columns else "")
                + f" FROM range({first}, {first + 3})"
            )
        self.change()
        for statement in [*feature.then, *([] if self._keeps_row_4 else ["DELETE FROM {t} WHERE k = 4"])]:
            self.sql(statement)

    def _create_table(self) -> None:
        feature = self.feature
        columns = ", ".join([*{**self.columns, **feature.replaces}.values(), *filter(None, [feature.columns])])
        properties = ", ".join(f"'{key}'='{value}'" for key, value in feature.properties.items())
        self.sql(
            f"CREATE TABLE {{t}} ({columns}) USING {self.format} {feature.clauses}"
            + (f" TBLPROPERTIES ({properties})" if properties else "")
            + self.location
        )

    @property
    def location(self) -> str:
        return ""

    @property
    def _keeps_row_4(self) -> bool:
        return "delta.appendOnly" in self.feature.properties or self.feature.name == "equality deletes"

    @property
    def kept(self) -> dict[int, tuple[int, str | None]]:
        return {
            k: (k, "b" if k % 2 else "a") for k in range(6) if k != 4 or "delta.appendOnly" in self.feature.properties
        }

    def sql(self, statement: str) -> list[Any]:
        return self.spark.sql(statement.replace("{t}", self.name)).collect()

    def rows(self) -> Counter[tuple[Any, ...]]:
        """Read the table with Spark, and check what its feature promises."""
        assert self.sql(f"SELECT count(*) FROM {{t}} WHERE NOT ({self.feature.holds})")[0][0] == 0, self.feature.holds
        assert self.sql(f"SELECT count(*) FROM {{t}} WHERE at <> timestamp'{DAY} 01:00:00Z'")[0][0] == 0
        return Counter((row["k"], row["v"], row["p"]) for row in self.sql("SELECT k, v, p FROM {t}"))

    def state(self) -> dict[str, Any]:
        """Return the columns with their types, whether they accept null, and the properties of the table."""
        properties = {
            row["key"]: row["value"]
            for row in self.sql("SHOW TBLPROPERTIES {t}")
            if row["key"] != "current-snapshot-id"
        }
        return {**properties, "columns": self.spark.table(self.name).schema.json()}

    def sink(self, **more: Any) -> Any:
        raise NotImplementedError

    def source(self) -> Any:
        raise NotImplementedError


class DeltaTable(ExistingTable):
    """A Delta table in Spark's own catalog, because a table without a name cannot have generated columns."""

    format = "delta"

    @property
    def name(self) -> str:
        return f"spark_catalog.default.{self.id}"

    @property
    def location(self) -> str:
        return f" LOCATION '{self.root}/table'"

    def _create_table(self) -> None:
        """Spark's SQL has no syntax for generated columns of Delta."""
        if not self.feature.generated:
            super()._create_table()
            return
        builder = self.spark._jvm.io.delta.tables.DeltaTable  # type: ignore[union-attr]
        created = (
            builder.create(self.spark._jsparkSession)
            .tableName(self.name.removeprefix("spark_catalog."))
            .location(f"{self.root}/table")
        )
        for column in self.columns.values():
            created = created.addColumn(*column.split())
        for name, expression in self.feature.generated.items():
            column = builder.columnBuilder(self.spark._jsparkSession, name).dataType("BIGINT")
            created = created.addColumn(
                (column.generatedAlwaysAs(expression) if expression else column.generatedAlwaysAsIdentity()).build()
            )
        created.execute()

    def sink(self, **more: Any) -> DeltaSink:
        return DeltaSink(f"{self.root}/table", partition_by=self.feature.partition_by, **more)

    def source(self) -> DeltaSource:
        return DeltaSource(path=f"{self.root}/table", changes="skip")


class IcebergTable(ExistingTable):
    """An Iceberg table in a REST catalog."""

    format = "iceberg"

    def __init__(self, spark: SparkSession, root: Path, feature: Feature, catalog: RestCatalog) -> None:
        super().__init__(spark, root, feature)
        self._properties = {"type": "rest", "uri": catalog.url}
        self._catalog = catalog.in_spark
        for name, value in catalog.spark_conf(catalog.in_spark).items():
            spark.conf.set(name, value)
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog.in_spark}.db")

    @property
    def name(self) -> str:
        return f"{self._catalog}.db.{self.id}"

    @property
    def location(self) -> str:
        return f" LOCATION 'file://{self.root}/table'"

    def change(self) -> None:
        if self.feature.change is not None:
            self.feature.change(self)

    @property
    def loaded(self) -> Any:
        """The table in pyiceberg."""
        return load_catalog("default", **self._properties).load_table(f"db.{self.id}")

    @property
    def java(self) -> tuple[Any, Any]:
        """The packages of Iceberg's Java library, and the table in it."""
        java = self.spark._jvm.org.apache.iceberg  # type: ignore[union-attr]
        return java, java.spark.Spark3Util.loadIcebergTable(self.spark._jsparkSession, self.name)

    def sink(self, **more: Any) -> IcebergSink:
        return IcebergSink(
            f"{self.root}/staged",
            f"db.{self.id}",
            properties=self._properties,
            partition_by=self.feature.partition_by,
            **more,
        )

    def source(self) -> IcebergSource:
        return IcebergSource(
            path=f"file://{self.root}/table", table=f"db.{self.id}", properties=self._properties, changes="skip"
        )


def outcome(table: ExistingTable, operation: str) -> str:
    """
    Create the table, do an operation with it, and return ``yes``; if the pipeline refuses the table: the names in the error. In both cases, check every row.

    The error of a refused table names what is refused, and nothing was planned.
    """
    table.create()
    before, state = table.rows(), table.state()
    assert before == Counter((k, *row) for k, row in table.kept.items())
    refusal: StreamsemError | None = None
    try:
        expected = _OPERATIONS[operation](table)
    except StreamsemError as error:
        refusal, expected = error, before
    assert table.rows() == expected
    assert state.items() <= table.state().items()
    if refusal is None:
        return YES
    assert not refusal.retryable, refusal
    found = [refusal.fields[name] for name in _NAMES if name in refusal.fields]
    assert found, refusal
    is_of_rows = "missing" in refusal.fields  # known only when the transform has returned
    assert is_of_rows or not [*(table.root / "log").rglob("*.p.json")], refusal
    return ", ".join(found[0]) if isinstance(found[0], list) else str(found[0])


_NAMES = ("requires", "features", "types", "found", "missing", "columns", "format")


def write(
    table: ExistingTable,
    rows: Mapping[int, tuple[int, str | None]],
    *,
    run_key: str = "first",
    transform: Any = None,
    **sink: Any,
) -> None:
    """Write rows to the table by a pipeline."""
    arrivals = table.root / "in"
    arrivals.mkdir(exist_ok=True)
    lines = [json.dumps({"k": k, "v": v, "p": p, "at": f"{DAY}T01:00:00Z"}) for k, (v, p) in rows.items()]
    (arrivals / f"{run_key}.json").write_text("\n".join(lines))
    pipeline = Pipeline(
        name="existing",
        log=str(table.root / "log"),
        source=FilesSource(path=str(arrivals), format="json", schema="k long, v long, p string, at timestamp"),
        sinks={"t": table.sink(**sink)},
        transform=transform,
    )
    run_batch(pipeline, run_key=run_key)


def _append(table: ExistingTable, **sink: Any) -> Counter[tuple[Any, ...]]:
    write(table, NEW, **sink)
    return Counter((k, *row) for k, row in {**table.kept, **NEW}.items())


def _merge(table: ExistingTable, **sink: Any) -> Counter[tuple[Any, ...]]:
    rows = {**NEW, **REPLACED}
    write(table, rows, mode="upsert", keys=["k"], **sink)
    return Counter((k, *row) for k, row in {**table.kept, **rows}.items())


def _read(table: ExistingTable) -> Counter[tuple[Any, ...]]:
    pipeline = Pipeline(
        name="existing",
        log=str(table.root / "log"),
        source=table.source(),
        sinks={"t": FilesSink(str(table.root / "out"), format="parquet")},
    )
    run_batch(pipeline, run_key="first", drain=True)
    frame = read_committed(table.spark, str(table.root / "log"))
    found = frame.collect()
    if "_metadata" not in table.feature.holds:  # no column of the rows
        assert frame.where(f"NOT ({table.feature.holds})").isEmpty(), table.feature.holds
    expected = Counter((k, *row) for k, row in table.kept.items())
    assert Counter((row["k"], row["v"], row["p"]) for row in found) == expected
    return expected


def _compact(table: ExistingTable) -> Counter[tuple[Any, ...]]:
    rewritten = table.sink().compact_table(
        target_file_bytes=2**20, max_bytes=2**30, dry_run=False, before_commit=lambda: None
    )
    assert rewritten or table.feature.name != "none"
    return Counter((k, *row) for k, row in table.kept.items())


_OPERATIONS: dict[str, Callable[[ExistingTable], Counter[tuple[Any, ...]]]] = {
    "append": _append,
    "append by Spark": lambda table: _append(table, engine="spark"),
    "merge": lambda table: _merge(table, engine="library"),
    "merge by Spark": lambda table: _merge(table, engine="spark"),
    "read": _read,
    "compact": _compact,
}


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "existing-tables.md"


def stated(title: str) -> dict[str, dict[str, bool]]:
    """Return feature → operation → whether the documentation says that it is possible."""
    head = f"| {title} | "
    lines = PAGE.read_text().partition(head)[2].split("\n\n")[0].splitlines()
    operations = [cell.strip() for cell in lines[0].strip("|").split("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return {
        feature: {operation: cell == YES for operation, cell in zip(operations, cells, strict=True)}
        for feature, *cells in rows
    }


def markdown(title: str, outcomes: Mapping[str, Mapping[str, str]]) -> str:
    """Return feature → operation → outcome as a table of the documentation."""
    lines = [f"| {title} | {' | '.join(OPERATIONS)} |", "|---" * (len(OPERATIONS) + 1) + "|"]
    for feature, of_feature in outcomes.items():
        cells = [YES if of_feature[operation] == YES else "no" for operation in OPERATIONS]
        lines.append(f"| {feature} | {' | '.join(cells)} |")
    return "\n".join(lines)
