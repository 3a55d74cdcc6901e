"""Deduplication on Spark: selects the records that pass, and writes the layer of their ids. Imports pyspark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, BooleanType, DataType, DateType, DecimalType, IntegralType, StringType

from airflow_provider_streamsem import dedup as layers_
from airflow_provider_streamsem.connectors.data_files.write import quoted
from airflow_provider_streamsem.dedup import AT, BUCKET, BUCKETS, ID, Dedup
from airflow_provider_streamsem.errors import DataError, StageError
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.stores.contract import spark_path

_KINDS = (StringType, IntegralType, DecimalType, DateType, BooleanType, BinaryType)
_ID = "__streamsem_id"
_SEEN = "__streamsem_seen_ms"
_SENT_IDS = 500_000
"""The largest number of records for which the batch's ids are broadcast to the tasks that read the deduplication state: about 50 MB."""


@dataclass(slots=True)
class Deduplication:
    """
    Deduplicates the records of one attempt.

    :param location: the log's URL, under which the layers are stored
    :param now_ms: when the batch was planned, in milliseconds
    :param state: the deduplication state before the batch
    :param keep: persists a DataFrame until the attempt ends
    """

    session: SparkSession
    dedup: Dedup
    location: str
    now_ms: int
    state: Json
    keep: Callable[[DataFrame], DataFrame]
    counts: dict[str, int] = field(default_factory=dict)
    _passed: DataFrame | None = None
    _ids: int = 0

    def passing(self, records: DataFrame) -> DataFrame:
        """Return the records that pass, with unchanged columns. Evaluates the input, and stores the counts in ``counts``."""
        columns = records.columns
        marked = self.keep(records.withColumn(_ID, self._id(records)))
        given = marked.count()
        named = marked.where(F.col(_ID).isNotNull())
        once = named.dropDuplicates([_ID])
        seen = self._seen(named)
        if seen is None:
            once = once.withColumn(_SEEN, F.lit(None).cast("long"))
        else:
            # The state may be much larger than the batch. If the batch's ids are broadcast, the state is scanned without a shuffle.
            ids = named.select(F.col(_ID).alias(ID))
            asked = seen.join(F.broadcast(ids) if given <= _SENT_IDS else ids, ID, "left_semi")
            last = asked.groupBy(F.col(ID).alias(_ID)).agg(F.max(AT).alias(_SEEN))
            cutoff = self.dedup.cutoff_ms(self.now_ms)
            once = once.join(last, _ID, "left").where(F.col(_SEEN).isNull() | (F.col(_SEEN) < cutoff))
        nameless = marked.where(F.col(_ID).isNull()).withColumn(_SEEN, F.lit(None).cast("long"))
        passed = self._passed = self.keep(
            once.select(*[quoted(name) for name in marked.columns], _SEEN).unionByName(nameless)
        )
        row = passed.agg(
            F.count(F.lit(1)).alias("passed"), F.count(_SEEN).alias("late_duplicates"), F.count(_ID).alias("ids")
        ).first()
        assert row is not None
        self._ids = row["ids"]
        self.counts = {
            "duplicates": given - row["passed"],
            "late_duplicates": row["late_duplicates"],
            "without_id": row["passed"] - row["ids"],
        }
        return passed.select(*[quoted(name) for name in columns])

    def write_state(self, version: int, attempt_id: str) -> Json:
        """Write the layer of the ids that passed. Returns the deduplication state after the batch."""
        if not self.dedup.keeps_state or self._passed is None:
            return self.state
        layers = layers_.layers_of(self.state, self.dedup, self.now_ms)
        ids = self._passed.where(F.col(_ID).isNotNull()).select(F.col(_ID).alias(ID), F.lit(self.now_ms).alias(AT))
        rows = self._ids
        if rows == 0:
            return layers_.state_of(layers)
        kept, older = layers_.split(layers, rows)
        if older:
            before = self._read([key for layer in older for key in layer.files_of(None)])
            ids = ids.unionByName(before.where(F.col(AT) >= self.dedup.cutoff_ms(self.now_ms)))
            rows += sum(layer.rows for layer in older)
        bucketed = rows >= layers_.BUCKETED_ROWS
        location = layers_.state_files(self.location, bucketed=bucketed)
        ids = ids.withColumn(BUCKET, _bucket(F.col(ID)))
        accepted = location.stage(
            ids.repartition(BUCKETS if bucketed else 1, BUCKET).sortWithinPartitions(BUCKET, ID), version, attempt_id
        )
        written = location.collect(version, attempt_id, accepted)
        if not self._ids <= written.rows <= rows:
            what = "the number of stored ids does not match the batch; nothing became visible"
            raise StageError(what, version=version, passed=self._ids, expected=rows, written=written.rows)
        return layers_.state_after(kept, older, written, self.now_ms)

    def _seen(self, records: DataFrame) -> DataFrame | None:
        """Read the stored ids that may equal ids of the records; ``None`` if there are none."""
        layers = layers_.layers_of(self.state, self.dedup, self.now_ms) if self.dedup.keeps_state else []
        if not layers:
            return None
        buckets = None
        if any(BUCKET in file.partition for layer in layers for file in layer.files):
            buckets = {row[0] for row in records.select(_bucket(F.col(_ID))).distinct().collect()}
        keys = [key for layer in layers for key in layer.files_of(buckets)]
        return self._read(keys) if keys else None

    def _read(self, keys: list[str]) -> DataFrame:
        state = layers_.state_files(self.location).location
        return self.session.read.schema(f"{ID} binary, {AT} long").parquet(*[spark_path(state, key) for key in keys])

    def _id(self, records: DataFrame) -> Column:
        kinds = {f.name: f.dataType for f in records.schema.fields}
        missing = [name for name in self.dedup.keys if name not in kinds]
        if missing:
            raise DataError("the records lack key columns of dedup", missing=missing, columns=list(kinds))
        odd = [name for name in self.dedup.keys if not isinstance(kinds[name], _KINDS)]
        if odd:
            raise DataError(
                "dedup does not accept key columns of these types, because equal values may have different text forms",
                columns=odd,
            )
        some_null = F.lit(False)
        for name in self.dedup.keys:
            some_null = some_null | quoted(name).isNull()
        # Each value is preceded by its length, so that two different lists of values never give the same bytes.
        parts = [part for name in self.dedup.keys for part in _counted(quoted(name), kinds[name])]
        return F.when(~some_null, F.substring(F.unhex(F.sha2(F.concat(*parts), 256)), 1, 16))


def _counted(value: Column, kind: DataType) -> list[Column]:
    data = value if isinstance(kind, BinaryType) else _text(value, kind).cast("binary")
    return [F.octet_length(data).cast("string").cast("binary"), F.lit(b":"), data]


def _text(value: Column, kind: DataType) -> Column:
    """
    The canonical text of a value, independent of the width of its type: 5, 5.0 and 5.00 are one id.

    A cast of a decimal to string depends on the session's settings and on the scale.
    """
    if not isinstance(kind, DecimalType):
        return value.cast("string")
    digits = F.replace(F.format_number(value, kind.scale), F.lit(","))
    return F.rtrim(F.rtrim(digits, F.lit("0")), F.lit(".")) if kind.scale else digits


def _bucket(id: Column) -> Column:
    """The bucket of an id. It is computed from the id's bytes, so that it is the same in every release of Spark."""
    return F.conv(F.hex(F.substring(id, 1, 1)), 16, 10).cast("int") % BUCKETS
