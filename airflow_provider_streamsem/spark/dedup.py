"""
Deduplication on Spark: drops duplicate records, and writes the ids of the others to the deduplication state.

A record *passes* if it has no id, or if its id is new: not in the deduplication state, and not that of another record of the batch that passes. This module
imports pyspark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, BooleanType, DataType, DateType, DecimalType, IntegralType, StringType

from airflow_provider_streamsem import dedup as layers_
from airflow_provider_streamsem.connectors.data_files.write import quoted
from airflow_provider_streamsem.dedup import AT, BUCKET, BUCKETS, ID, ChainStates, Dedup, Layer
from airflow_provider_streamsem.errors import DataError, StageError
from airflow_provider_streamsem.protocol.entries import Committable, Json
from airflow_provider_streamsem.stores.contract import spark_path

_KEY_TYPES = (StringType, IntegralType, DecimalType, DateType, BooleanType, BinaryType)
_ID = "__streamsem_id"
_PASSED_AT = "__streamsem_passed_at_ms"
_MAX_BROADCAST_IDS = 500_000
"""
The ids of a batch are broadcast to the tasks that read the deduplication state, if the batch has at most this many records. The broadcast then has about
50 MB.
"""


@dataclass(slots=True)
class Deduplication:
    """
    Deduplicates the records of one attempt.

    :param session: the session of the attempt
    :param dedup: the deduplication settings
    :param location: URL of the log, below which the files of the deduplication state are stored
    :param now_ms: when the batch was planned, in milliseconds since the epoch
    :param state: the deduplication state before the batch; for reprocessing, before the batch at the root of the chain
    :param keep: persists a DataFrame until the attempt ends
    :param chain: for reprocessing: the states of the chain and of the log's head
    :attr counts: row counts by name, after :meth:`passing`
    """

    session: SparkSession
    dedup: Dedup
    location: str
    now_ms: int
    state: Json
    keep: Callable[[DataFrame], DataFrame]
    chain: ChainStates | None = None
    counts: dict[str, int] = field(default_factory=dict)
    _passed: DataFrame | None = None
    _ids: int = 0

    def passing(self, records: DataFrame) -> DataFrame:
        """
        Return the records that pass, with unchanged columns. The method evaluates the input, and stores the counts in ``counts``.

        :raises DataError: a key column is missing, or its type is not supported
        """
        columns = records.columns
        marked = self.keep(records.withColumn(_ID, self._id(records)))
        found = marked.agg(
            F.count(F.lit(1)).alias("records"), F.collect_set(_bucket(F.col(_ID))).alias("buckets")
        ).first()
        assert found is not None
        count = found["records"]
        with_id = marked.where(F.col(_ID).isNotNull())
        unique = with_id.dropDuplicates([_ID])
        stored = self._passed_elsewhere(set(found["buckets"]))
        if stored is None:
            unique = unique.withColumn(_PASSED_AT, F.lit(None).cast("long"))
        else:
            # The state may be much larger than the batch. With a broadcast of the batch's ids, Spark scans the state without a shuffle.
            ids = with_id.select(F.col(_ID).alias(ID))
            candidates = stored.join(F.broadcast(ids) if count <= _MAX_BROADCAST_IDS else ids, ID, "left_semi")
            last_passed = candidates.groupBy(F.col(ID).alias(_ID)).agg(F.max(AT).alias(_PASSED_AT))
            cutoff = self.dedup.cutoff_ms(self.now_ms)
            unique = unique.join(last_passed, _ID, "left").where(
                F.col(_PASSED_AT).isNull() | (F.col(_PASSED_AT) < cutoff)
            )
        without_id = marked.where(F.col(_ID).isNull()).withColumn(_PASSED_AT, F.lit(None).cast("long"))
        passed = self._passed = self.keep(
            unique.select(*[quoted(name) for name in marked.columns], _PASSED_AT).unionByName(without_id)
        )
        row = passed.agg(
            F.count(F.lit(1)).alias("passed"), F.count(_PASSED_AT).alias("late_duplicates"), F.count(_ID).alias("ids")
        ).first()
        assert row is not None
        self._ids = row["ids"]
        self.counts = {
            "duplicates": count - row["passed"],
            "late_duplicates": row["late_duplicates"],
            "without_id": row["passed"] - row["ids"],
        }
        return passed.select(*[quoted(name) for name in columns])

    def write_state(self, version: int, attempt_id: str) -> Json:
        """
        Write the ids of the records that passed, and return the deduplication state after the batch.

        :raises StageError: the number of stored ids differs from the number of ids that passed
        """
        if not self.dedup.keeps_state or self._passed is None:
            return self.state
        ids = self._passed.where(F.col(_ID).isNotNull()).select(F.col(_ID).alias(ID), F.lit(self.now_ms).alias(AT))
        if self.chain is not None:
            return self._write_change(ids, self.chain, version, attempt_id)
        layers = layers_.layers_of(self.state, self.dedup, self.now_ms)
        if self._ids == 0:
            return layers_.state_of(layers)
        return self._add_layer(layers, ids, self._ids, version, attempt_id)

    def _write_change(self, ids: DataFrame, chain: ChainStates, version: int, attempt_id: str) -> Json:
        """Return the current state with the changes of the reprocessing run: ids that pass now are added, and ids that no longer pass are removed."""
        before = self._passed_in_chain(chain)
        added = self.keep(ids.join(before, ID, "left_anti"))
        removed = self.keep(before.join(ids, ID, "left_anti"))
        adds, layers = added.count(), layers_.stored_layers(chain.current)
        if removed.isEmpty():
            return self._add_layer(layers, added, adds, version, attempt_id) if adds else chain.current
        current = self._read(_keys(layers)) if layers else added.limit(0)
        others = current.where(F.col(AT) != self.now_ms)
        own = current.where(F.col(AT) == self.now_ms).join(removed, ID, "left_anti")
        left = self.keep(others.unionByName(own).unionByName(added))
        count = left.count()
        written = self._write_layer(left, (count, count), version, attempt_id)
        return layers_.state_after([], layers, written, self.now_ms)

    def _add_layer(self, layers: Sequence[Layer], ids: DataFrame, count: int, version: int, attempt_id: str) -> Json:
        """Write a layer with ``count`` ids and the ids of all layers that are not larger, and return the state with it."""
        kept, older = layers_.split(layers, count)
        rows = count
        if older:
            before = self._read(_keys(older))
            ids = ids.unionByName(before.where(F.col(AT) >= self.dedup.cutoff_ms(self.now_ms)))
            rows += sum(layer.rows for layer in older)
        written = self._write_layer(ids, (count, rows), version, attempt_id)
        return layers_.state_after(kept, older, written, self.now_ms)

    def _write_layer(self, ids: DataFrame, counts: tuple[int, int], version: int, attempt_id: str) -> Committable:
        """
        Write the files of a layer.

        :param counts: the smallest and the largest number of ids that the layer may have
        :raises StageError: the layer has another number
        """
        least, most = counts
        bucketed = most >= layers_.BUCKETED_ROWS
        location = layers_.layers_dataset(self.location, bucketed=bucketed)
        ids = ids.withColumn(BUCKET, _bucket(F.col(ID)))
        accepted = location.stage(
            ids.repartition(BUCKETS if bucketed else 1, BUCKET).sortWithinPartitions(BUCKET, ID), version, attempt_id
        )
        written = location.collect(version, attempt_id, accepted)
        if not least <= written.rows <= most:
            summary = "the number of stored ids differs from the number of ids that passed; nothing became visible"
            raise StageError(summary, version=version, passed=least, expected=most, written=written.rows)
        return written

    def _passed_in_chain(self, chain: ChainStates) -> DataFrame:
        """Return the ids that passed in the newest commit of the chain."""
        passed = self.session.createDataFrame([], f"{ID} binary")
        for states in chain.commits:
            before, after = map(self._ids_at_plan, states)
            added, removed = after.join(before, ID, "left_anti"), before.join(after, ID, "left_anti")
            passed = passed.unionByName(added).join(removed, ID, "left_anti")
        return passed.distinct()

    def _ids_at_plan(self, state: Json) -> DataFrame:
        layers = layers_.stored_layers(state)
        rows = self._read(_keys(layers)) if layers else self.session.createDataFrame([], f"{ID} binary, {AT} long")
        return rows.where(F.col(AT) == self.now_ms).select(ID)

    def _passed_elsewhere(self, buckets: set[int]) -> DataFrame | None:
        """
        Return the ids that passed in other versions, in the buckets of the records' ids; ``None`` if there are none.

        For reprocessing, these are the ids of the current state, except those of the reprocessed version, and the ids before the version that have expired
        since. The order of the versions does not matter, so neither do the clocks of the machines that planned them.
        """
        if not self.dedup.keeps_state:
            return None
        before = self._in_buckets(layers_.layers_of(self.state, self.dedup, self.now_ms), buckets)
        if self.chain is None:
            return before
        current = self._in_buckets(layers_.stored_layers(self.chain.current), buckets)
        at = F.col(AT)
        expired = None if before is None else before.where(at < self._expired_before_ms(self.chain))
        if current is None:
            return expired
        others = current.where(at == self.now_ms).join(self._passed_in_chain(self.chain), ID, "left_anti")
        others = others.unionByName(current.where(at != self.now_ms))
        if self.dedup.ttl_s is not None:  # later, an id of the reprocessed version would have expired
            others = others.where(at <= self.now_ms + self.dedup.ttl_s * 1000)
        return others if expired is None else others.unionByName(expired)

    def _expired_before_ms(self, chain: ChainStates) -> int:
        """Return the time before which ids may have expired from the current state, in milliseconds UTC."""
        oldest = None
        layers = layers_.stored_layers(chain.current)
        if self.dedup.rows is not None and layers:
            found = self._read(_keys(layers)).agg(F.min(AT).alias(AT)).first()
            oldest = None if found is None else found[AT]
        return chain.expired_before_ms(self.dedup, oldest)

    def _in_buckets(self, layers: Sequence[Layer], buckets: set[int]) -> DataFrame | None:
        keys = [key for layer in layers for key in layer.files_of(buckets)]
        return self._read(keys) if keys else None

    def _read(self, keys: list[str]) -> DataFrame:
        state = layers_.layers_dataset(self.location).location
        return self.session.read.schema(f"{ID} binary, {AT} long").parquet(*[spark_path(state, key) for key in keys])

    def _id(self, records: DataFrame) -> Column:
        types = {f.name: f.dataType for f in records.schema.fields}
        missing = [name for name in self.dedup.keys if name not in types]
        if missing:
            raise DataError(
                "the records lack key columns of dedup; nothing became visible", missing=missing, columns=list(types)
            )
        unsupported = [name for name in self.dedup.keys if not isinstance(types[name], _KEY_TYPES)]
        if unsupported:
            raise DataError(
                "dedup does not accept key columns of these types, because equal values may have different text forms; nothing became visible",
                columns=unsupported,
            )
        any_null = F.lit(False)
        for name in self.dedup.keys:
            any_null = any_null | quoted(name).isNull()
        # Each value is preceded by its length, so that different lists of values have different bytes.
        parts = [part for name in self.dedup.keys for part in _length_prefixed(quoted(name), types[name])]
        return F.when(~any_null, F.substring(F.unhex(F.sha2(F.concat(*parts), 256)), 1, 16))


def _keys(layers: Sequence[Layer]) -> list[str]:
    return [key for layer in layers for key in layer.files_of(None)]


def _length_prefixed(value: Column, kind: DataType) -> list[Column]:
    """Return the bytes of a value, after their number and a colon."""
    data = value if isinstance(kind, BinaryType) else _text(value, kind).cast("binary")
    return [F.octet_length(data).cast("string").cast("binary"), F.lit(b":"), data]


def _text(value: Column, kind: DataType) -> Column:
    """
    Return the canonical text of a value, which does not depend on the width of its type: 5, 5.0 and 5.00 have one id.

    A decimal is not cast to string, because the result would depend on the session's settings and on the scale.
    """
    if not isinstance(kind, DecimalType):
        return value.cast("string")
    digits = F.replace(F.format_number(value, kind.scale), F.lit(","))
    return F.rtrim(F.rtrim(digits, F.lit("0")), F.lit(".")) if kind.scale else digits


def _bucket(id: Column) -> Column:
    """Return the bucket of an id. It is computed from the bytes of the id, because Spark's hash function may differ between releases."""
    return F.conv(F.hex(F.substring(id, 1, 1)), 16, 10).cast("int") % BUCKETS
