"""The conformance suite of sources."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from airflow_provider_streamsem.clock import SYSTEM_CLOCK, Clock
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.files.sink import FilesSink
from airflow_provider_streamsem.connectors.source import Planner, Source, SourceSlice
from airflow_provider_streamsem.errors import (
    InvalidError,
    LogDamagedError,
    SourceChangedError,
)
from airflow_provider_streamsem.limits import Limits
from airflow_provider_streamsem.pipeline.run.interval import run_interval
from airflow_provider_streamsem.pipeline.run.plan_interval import TimeInterval
from airflow_provider_streamsem.pipeline.run.run import run_batch
from airflow_provider_streamsem.pipeline.spec import pipeline as spec
from airflow_provider_streamsem.protocol.codec import canonical, plain
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.offsets import Offsets, advance, ends, position, reached
from airflow_provider_streamsem.readers.files import open_log
from airflow_provider_streamsem.stores.contract import open_store
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.conformance.imports import CLIENTS, imported_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SourceSystem(ABC):
    """
    An external system without records, and a source that reads it from its beginning.

    :attr source: the source. It reads every record that :meth:`add` adds
    :attr column: an SQL expression that returns the id of a record, such as the name of a column with integers
    :attr secrets: texts that must appear in no stored or printed value, such as passwords of the connection
    :attr clock: the clock of the pipeline
    """

    source: Source
    column: str = "id"
    secrets: Sequence[str] = ()
    clock: Clock = SYSTEM_CLOCK

    @abstractmethod
    def add(self, ids: Iterable[int]) -> None:
        """
        Add one record for each id. Another call adds to further items of the source, such as another file.

        :param ids: consecutive integers. The first call begins with 0, and each later call continues
        """

    def expire(self) -> list[int]:
        """Delete the oldest records, as retention does. Return their ids; an empty list (default) if the system keeps all records."""
        return []

    def change(self) -> bool:
        """Change the oldest records, for example overwrite their file. Return whether the system permits this; default: no."""
        return False


class SourceContract:
    """
    Tests of the contract of every source (:class:`airflow_provider_streamsem.connectors.source.Source`).

    :cvar clients: modules that the source may import only when it sends a request or reads records
    """

    clients: ClassVar[Sequence[str]] = CLIENTS

    @pytest.fixture
    def system(self) -> SourceSystem:
        raise NotImplementedError

    def test_batches_of_one_item_read_every_record_once(
        self, system: SourceSystem, streamsem_spark: SparkSession
    ) -> None:
        progress = _Progress(system)
        read: list[int] = []
        for ids in (range(3), range(3, 5), range(5, 6)):
            system.add(ids)
            for planned in progress.slices(_smallest(system.source)):
                read += _read(system, streamsem_spark, planned.pins)
        assert sorted(read) == list(range(6))

    def test_limited_slice_ends_before_the_end_of_the_source(self, system: SourceSystem) -> None:
        system.add(range(3))
        system.add(range(3, 6))
        progress = _Progress(system)
        limited = next(progress.slices(_smallest(system.source)))
        assert progress.planner.lag(progress.offsets, progress.hint) > 0
        assert limited.rows > 0

    def test_plan_read_again_has_the_same_records(self, system: SourceSystem, streamsem_spark: SparkSession) -> None:
        system.add(range(4))
        planned = next(_Progress(system).slices(Limits()))
        first = _read(system, streamsem_spark, planned.pins)
        system.add(range(4, 8))
        system.source.check_pins(_stored(system.source, planned.pins), was_read=True)
        assert _read(system, streamsem_spark, planned.pins) == first == list(range(4))

    def test_source_from_stored_arguments_reads_the_same_plan(
        self, system: SourceSystem, streamsem_spark: SparkSession
    ) -> None:
        system.add(range(4))
        planned = next(_Progress(system).slices(Limits()))
        pipeline = spec.Pipeline(
            name="conformance", log="memory://conformance", source=system.source, sinks={"out": FilesSink(path="/out")}
        )
        rebuilt = spec.from_json(json.loads(canonical(pipeline.to_json()))).source
        assert rebuilt.immutable_config() == system.source.immutable_config()
        pins = _stored(rebuilt, planned.pins)
        rebuilt.check_pins(pins, was_read=False)
        assert _ids(system, rebuilt.load(streamsem_spark, pins)) == list(range(4))

    def test_source_without_new_records_has_no_slice_and_no_lag(self, system: SourceSystem) -> None:
        system.add(range(3))
        progress = _Progress(system)
        assert [*progress.slices(Limits())]
        assert progress.slice(Limits()) is None
        assert progress.planner.lag(progress.offsets, progress.hint) == 0
        assert progress.planner.minimum_clock(progress.offsets) is None

    def test_unread_items_have_arrival_times(self, system: SourceSystem) -> None:
        system.add(range(3))
        progress = _Progress(system)
        progress.planner.poll(None)
        arrived_ms = progress.planner.minimum_clock(progress.offsets)
        assert arrived_ms is not None
        assert progress.planner.unread_before(progress.offsets, arrived_ms) == 0
        assert (
            progress.planner.unread_before(progress.offsets, system.clock.now_ms() + 3_600_000)
            == progress.planner.lag(progress.offsets, None)
            > 0
        )

    def test_deleted_records_fail_the_run_or_become_a_gap(
        self, system: SourceSystem, streamsem_spark: SparkSession
    ) -> None:
        system.add(range(3))
        system.add(range(3, 6))
        progress = _Progress(system)
        progress.planner.poll(None)
        deleted = system.expire()
        if not deleted:
            assert progress.slice(Limits()) is not None
            return
        with pytest.raises(SourceChangedError):
            progress.slice(Limits())
        planned = progress.slice(Limits(), on_data_loss="record_gap")
        assert planned is not None
        assert planned.gaps
        for partition, gaps in planned.gaps.items():
            start, end = planned.ranges[partition]
            assert all(start <= first < last <= end for first, last in gaps)
        assert _read(system, streamsem_spark, planned.pins) == [id for id in range(6) if id not in deleted]

    def test_deleted_records_of_a_plan_fail_its_check(self, system: SourceSystem) -> None:
        system.add(range(3))
        system.add(range(3, 6))
        planned = next(_Progress(system).slices(Limits()))
        pins = _stored(system.source, planned.pins)
        with pytest.raises(SourceChangedError) if system.expire() else nullcontext():
            system.source.check_pins(pins, was_read=False)

    def test_changed_records_of_a_plan_fail_its_check(self, system: SourceSystem) -> None:
        system.add(range(3))
        planned = next(_Progress(system).slices(Limits()))
        pins = _stored(system.source, planned.pins)
        with pytest.raises(SourceChangedError) if system.change() else nullcontext():
            system.source.check_pins(pins, was_read=False)

    @pytest.mark.parametrize("pins", [[{"other": 1}], [1], "text", {"other": []}], ids=str)
    def test_pins_of_another_form_are_refused(self, system: SourceSystem, pins: Json) -> None:
        with pytest.raises(LogDamagedError):
            system.source.read_pins(pins)

    def test_plan_without_pins_has_the_columns_of_the_source_and_no_rows(
        self, system: SourceSystem, streamsem_spark: SparkSession
    ) -> None:
        system.add(range(1))
        planned = next(_Progress(system).slices(Limits()))
        full, empty = (system.source.load(streamsem_spark, pins) for pins in (_stored(system.source, planned.pins), ()))
        assert _columns(empty) == _columns(full)
        assert _ids(system, empty) == []

    def test_offsets_for_a_time_are_those_of_the_records_that_arrived_later(self, system: SourceSystem) -> None:
        system.add(range(3))
        progress = _Progress(system)
        planner = progress.planner
        end = planner.poll(None).offsets
        try:
            later = system.source.offsets_for_time_in(progress.log, system.clock.now_ms() + 1)
        except InvalidError:  # this source has no times
            return
        assert reached(later, end)
        assert planner.lag(later, None) == 0
        earliest = system.source.offsets_for_time_in(progress.log, 0)
        assert planner.lag(earliest, None) == planner.lag(system.source.initial_offsets(), None)

    def test_every_record_since_a_time_is_read_from_the_offsets_of_this_time(
        self, system: SourceSystem, streamsem_spark: SparkSession
    ) -> None:
        system.add(range(3))
        progress = _Progress(system)
        assert [*progress.slices(Limits())]
        system.add(range(3, 6))
        progress.planner.poll(progress.hint)
        arrived_ms = progress.planner.minimum_clock(progress.offsets)
        assert arrived_ms is not None
        try:
            progress.offsets = system.source.offsets_for_time_in(progress.log, arrived_ms)
        except InvalidError:  # this source has no times
            return
        progress.hint = None
        read = [id for planned in progress.slices(Limits()) for id in _read(system, streamsem_spark, planned.pins)]
        assert {3, 4, 5} <= {*read}
        assert len(read) == len({*read})

    def test_intervals_in_any_order_read_every_record_once(
        self, system: SourceSystem, streamsem_spark: SparkSession, tmp_path: Path
    ) -> None:
        system.add(range(3))
        progress = _Progress(system)
        try:
            system.source.offsets_for_time_in(progress.log, 0)
        except InvalidError:  # this source has no times
            return
        if not system.source.reads_intervals:
            return
        assert [*progress.slices(Limits())]
        system.add(range(3, 6))
        progress.planner.poll(progress.hint)
        middle_ms = progress.planner.minimum_clock(progress.offsets)
        assert middle_ms is not None
        system.clock.sleep(0.01)
        end_ms = system.clock.now_ms()
        pipeline = spec.Pipeline(
            name="conformance",
            log=str(tmp_path / "log"),
            source=system.source,
            sinks={"out": FilesSink(path=str(tmp_path / "out"), format="parquet")},
            intervals=True,
        )
        log = CommitLog(open_store(pipeline.log), system.clock)
        for request, (first_ms, last_ms) in {
            "late": (middle_ms, end_ms),
            "early": (0, middle_ms),
            "again": (0, middle_ms),
        }.items():
            run_interval(pipeline, TimeInterval(first_ms, last_ms), request=request, log=log)
        files = [file.path for file in open_log(log).files()]
        rows = streamsem_spark.read.parquet(*files).selectExpr(system.column).collect()
        assert sorted(int(row[0]) for row in rows) == list(range(6))

    def test_secrets_are_in_no_stored_value(self, system: SourceSystem) -> None:
        system.add(range(3))
        planned = next(_Progress(system).slices(Limits()))
        source: Any = system.source
        stored = [source.immutable_config(), planned.ranges, [plain(pin) for pin in planned.pins], planned.hint]
        texts = [
            repr(source),
            repr(planned),
            str(source.lineage(planned.ranges)),
            *map(str, source.reasons),
            *map(repr, stored),
        ]
        for secret in system.secrets:
            assert not [text for text in texts if secret in text]

    def test_module_of_the_source_imports_no_client_library(self, system: SourceSystem) -> None:
        assert {*self.clients} & imported_by(type(system.source).__module__) == set()

    def test_run_commits_every_record_once_and_its_retry_nothing(
        self, system: SourceSystem, streamsem_spark: SparkSession, tmp_path: Path
    ) -> None:
        system.add(range(3))
        system.add(range(3, 6))
        sink = FilesSink(path=str(tmp_path / "out"), format="parquet")
        pipeline = spec.Pipeline(
            name="conformance", log=str(tmp_path / "log"), source=system.source, sinks={"out": sink}
        )
        log = CommitLog(open_store(pipeline.log), system.clock)
        result = run_batch(pipeline, run_key="conformance", drain=True, log=log)
        again = run_batch(pipeline, run_key="conformance", drain=True, log=log)
        assert again == result
        files = [file.path for file in open_log(log).files()]
        rows = streamsem_spark.read.parquet(*files).selectExpr(system.column).collect()
        assert sorted(row[0] for row in rows) == list(range(6))


class _Progress:
    """Plans one slice after another of a source, as the runs of a pipeline do."""

    def __init__(self, system: SourceSystem) -> None:
        self.source = system.source
        self.log = CommitLog(MemoryStore(), system.clock)
        self.planner: Planner = system.source.open(self.log, None)
        self.offsets: Offsets = system.source.initial_offsets()
        self.hint: Json = None

    def slice(self, limits: Limits, *, on_data_loss: str = "fail") -> SourceSlice | None:
        until = self.planner.poll(self.hint)
        planned = self.planner.slice(self.offsets, until, limits, self.hint, on_data_loss=on_data_loss)
        if planned is None:
            return None
        for partition, (start, stop) in planned.ranges.items():
            assert start == position(self.offsets, partition)
            assert start < stop <= position(until.offsets, partition)
        self.offsets = advance(self.offsets, ends(planned.ranges))
        counts = {"read": planned.rows, "parsed": planned.rows, "quarantined": 0}
        self.hint = self.source.next_hint(planned.hint, _stored(self.source, planned.pins), counts)
        return planned

    def slices(self, limits: Limits) -> Iterator[SourceSlice]:
        while planned := self.slice(limits):
            yield planned


def _smallest(source: Source) -> Limits:
    """Return limits that permit one item per batch."""
    return Limits(**{name: 1 for name in source.limits if name.startswith("max_")})


def _stored(source: Source, pins: Sequence[Any]) -> Sequence[Any]:
    """Return pins as a later process decodes them from the plan."""
    return source.read_pins(json.loads(canonical(plain([*pins]))))


def _read(system: SourceSystem, spark: SparkSession, pins: Sequence[Any]) -> list[int]:
    return _ids(system, system.source.load(spark, _stored(system.source, pins)))


def _columns(loaded: Any) -> set[str]:
    frame = loaded.frame if loaded.bad is None else loaded.frame.where(~loaded.bad)
    return {*frame.drop(*loaded.drop).columns}


def _ids(system: SourceSystem, loaded: Any) -> list[int]:
    parsed = loaded.frame if loaded.bad is None else loaded.frame.where(~loaded.bad)
    return sorted(row[0] for row in parsed.selectExpr(system.column).collect())
