"""
Conformance suites for stores, sources and lookup tables. To test a store, subclass its suite in a test module and define its fixtures:

.. code-block:: python

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self): return MyStore(...)      # empty

        @pytest.fixture
        def fresh(self): return lambda: MyStore(...)   # empty, a new one at each call

To test a source, write a class with the members of :class:`SourceSystem`, which adds records to the external system:

.. code-block:: python

    class TestMySource(SourceContract):
        @pytest.fixture
        def system(self): return MySystem()       # empty, a new one for each test

To test a lookup table, write a class with the members of :class:`LookupSystem`, and subclass :class:`LookupContract` with the fixture ``system``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_streamsem import extras
from airflow_provider_streamsem.clock import SYSTEM_CLOCK, Clock
from airflow_provider_streamsem.commitlog import doctor
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.contract import Planner, Source, SourceSlice
from airflow_provider_streamsem.connectors.files.sink import FilesSink
from airflow_provider_streamsem.connectors.files.source import FilesSource
from airflow_provider_streamsem.connectors.lookup import Lookup
from airflow_provider_streamsem.connectors.times import offsets_for_time
from airflow_provider_streamsem.errors import (
    InvalidError,
    LogDamagedError,
    LookupChangedError,
    SourceChangedError,
)
from airflow_provider_streamsem.limits import Limits
from airflow_provider_streamsem.pipeline.run.run import run_batch
from airflow_provider_streamsem.pipeline.spec import pipeline as spec
from airflow_provider_streamsem.protocol.codec import canonical, plain
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.offsets import Offsets, advance, ends, position, reached
from airflow_provider_streamsem.readers.files import open_log
from airflow_provider_streamsem.stores.contract import Store, open_store
from airflow_provider_streamsem.stores.memory import MemoryStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PARTS = st.text("ab-_.~0é", min_size=1, max_size=3).filter(lambda part: part not in (".", ".."))
_KEYS = st.lists(_PARTS, min_size=1, max_size=3).map("/".join)
_CLIENTS = ("boto3", "pandas", "pyarrow", "pyspark", *extras.MODULES.values())


class StoreContract:
    """Tests of the contract of every store (:class:`airflow_provider_streamsem.stores.contract.Store`)."""

    def test_created_object_is_read_back_whole(self, store: Store) -> None:
        data = bytes(range(256)) * 1000
        assert store.create("a/b/c.json", data)
        assert store.read("a/b/c.json") == data

    def test_absent_object_reads_as_none(self, store: Store) -> None:
        assert store.read("absent") is None
        assert store.stat("absent") is None

    def test_second_create_is_refused_and_changes_nothing(self, store: Store) -> None:
        assert store.create("k", b"first")
        assert not store.create("k", b"second")
        assert not store.create("k", b"first")
        assert store.read("k") == b"first"

    def test_empty_object_exists(self, store: Store) -> None:
        assert store.create("empty", b"")
        assert not store.create("empty", b"x")
        assert store.read("empty") == b""

    @pytest.mark.parametrize("writers", [2, 8])
    def test_of_concurrent_creates_exactly_one_wins_and_is_read_back(self, store: Store, writers: int) -> None:
        with ThreadPoolExecutor(writers) as pool:
            for round_number in range(10):
                barrier = Barrier(writers)

                def race(writer: int, key: str = f"race/{round_number}", barrier: Barrier = barrier) -> bool:
                    barrier.wait()
                    return store.create(key, b"writer %d" % writer)

                won = [writer for writer, created in enumerate(pool.map(race, range(writers))) if created]
                assert len(won) == 1
                assert store.read(f"race/{round_number}") == b"writer %d" % won[0]

    def test_listing_is_in_the_order_of_the_keys_bytes(self, store: Store) -> None:
        names = ["p/a-b", "p/a/b", "p/a0", "p/b", "p/~", "p/é", "q/a"]
        for name in reversed(names):
            store.create(name, name.encode())
        listed = list(store.list("p/"))
        assert [stat.key for stat in listed] == sorted(names[:-1], key=str.encode)
        assert [stat.bytes for stat in listed] == [len(stat.key.encode()) for stat in listed]

    def test_listing_stops_at_its_limit_and_starts_after_a_key(self, store: Store) -> None:
        for name in "abcde":
            store.create(f"p/{name}", b"")
        assert [stat.key for stat in store.list("p/", limit=2)] == ["p/a", "p/b"]
        assert [stat.key for stat in store.list("p/", start_after="p/b")] == ["p/c", "p/d", "p/e"]
        assert [stat.key for stat in store.list("p/", limit=0)] == []

    def test_listing_goes_over_page_borders(self, store: Store) -> None:
        for number in range(1_050):
            store.create(f"many/{number:05d}", b"")
        assert [stat.key for stat in store.list("many/")] == [f"many/{number:05d}" for number in range(1_050)]

    def test_prefix_is_a_prefix_of_text_not_a_directory(self, store: Store) -> None:
        for name in ("log/1", "log/12", "log2/1", "lo"):
            store.create(name, b"")
        assert [stat.key for stat in store.list("log/1")] == ["log/1", "log/12"]
        assert [stat.key for stat in store.list("log")] == ["log/1", "log/12", "log2/1"]

    def test_identity_changes_with_the_content(self, store: Store) -> None:
        store.create("one", b"1")
        stat = store.stat("one")
        assert stat is not None
        assert (stat.bytes, bool(stat.etag) or stat.mtime_ns > 0) == (1, True)

    def test_deleted_object_is_missing_and_a_second_delete_does_nothing(self, store: Store) -> None:
        store.create("d/x", b"1")
        store.delete("d/x")
        store.delete("d/x")
        assert store.read("d/x") is None
        assert list(store.list("d/")) == []

    def test_doctor_finds_nothing_wrong_and_leaves_only_its_report(self, store: Store) -> None:
        report = doctor.examine(CommitLog(store))
        assert report.passed, report
        assert [stat.key for stat in store.list("doctor/")] == [report.key]

    # Hypothesis rejects function-scoped fixtures, because it does not reset them between examples. `fresh` returns a new store for each example instead.
    @settings(
        max_examples=25,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    @given(
        made=st.lists(_KEYS, max_size=8),
        prefix=_KEYS | st.just(""),
        after=_KEYS | st.just(""),
        limit=st.none() | st.integers(0, 5),
    )
    def test_listing_equals_the_naive_one(
        self, fresh: object, made: list[str], prefix: str, after: str, limit: int | None
    ) -> None:
        store: Store = fresh()  # type: ignore[operator]
        stored: set[str] = set()
        for key in made:
            # A file system cannot store both "a" and "a/b". The log never uses such keys.
            if not any(key.startswith(other + "/") or other.startswith(key + "/") for other in stored):
                assert store.create(key, b"") == (key not in stored)
                stored.add(key)
        expected = sorted((k for k in stored if k.startswith(prefix) and k.encode() > after.encode()), key=str.encode)
        assert [stat.key for stat in store.list(prefix, limit, after)] == expected[:limit]


class SourceSystem(Protocol):
    """
    An external system without records, and a source that reads it from its beginning.

    :attr source: the source. It reads every record that :meth:`add` adds
    :attr column: an SQL expression that returns the id of a record, such as the name of a column with integers
    :attr secrets: texts that must appear in no stored or printed value, such as passwords of the connection
    :attr clock: the clock of the pipeline
    """

    source: Source
    column: str
    secrets: Sequence[str]
    clock: Clock

    def add(self, ids: Iterable[int]) -> None:
        """
        Add one record for each id. Another call adds to further items of the source, such as another file.

        :param ids: consecutive integers. The first call begins with 0, and each later call continues
        """
        ...

    def expire(self) -> list[int]:
        """Delete the oldest records, as retention does. Return their ids; an empty list if the system keeps all records."""
        ...

    def change(self) -> bool:
        """Change the oldest records, for example overwrite their file. Return whether the system permits this."""
        ...


class SystemFixture:
    """Defaults of :class:`SourceSystem`."""

    column = "id"
    secrets: Sequence[str] = ()
    clock: Clock = SYSTEM_CLOCK

    def expire(self) -> list[int]:
        """Delete nothing."""
        return []

    def change(self) -> bool:
        """Change nothing."""
        return False


class SourceContract:
    """
    Tests of the contract of every source (:class:`airflow_provider_streamsem.connectors.contract.Source`).

    :cvar clients: modules that the source may import only when it sends a request or reads records
    """

    clients: ClassVar[Sequence[str]] = _CLIENTS

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
            later = offsets_for_time(system.source, progress.log, system.clock.now_ms() + 1)
        except InvalidError:  # this source has no times
            return
        assert reached(later, end)
        assert planner.lag(later, None) == 0
        earliest = offsets_for_time(system.source, progress.log, 0)
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
            progress.offsets = offsets_for_time(system.source, progress.log, arrived_ms)
        except InvalidError:  # this source has no times
            return
        progress.hint = None
        read = [id for planned in progress.slices(Limits()) for id in _read(system, streamsem_spark, planned.pins)]
        assert {3, 4, 5} <= {*read}
        assert len(read) == len({*read})

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
        assert {*self.clients} & _imported_by(type(system.source).__module__) == set()

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


class LookupSystem(Protocol):
    """
    A table, and a lookup that reads it.

    :attr lookup: the lookup. It reads every row that :meth:`add` adds
    :attr column: name of a column with integers in which the rows have their ids
    :attr secrets: texts that must appear in no stored or printed value, such as passwords of the connection
    :attr rows: the rows that the lookup returns for a pin. ``"pinned"`` (default): the same rows, even after the table has grown. ``"unchanged"``: the same
        rows, and the check of the pin fails after any change of the table. ``"current"``: the current rows
    """

    lookup: Lookup
    column: str
    secrets: Sequence[str]
    rows: str

    def add(self, ids: Iterable[int]) -> None:
        """Add one row for each id. Another call adds to further items, such as another file."""
        ...

    def damage(self) -> None:
        """Change or delete the rows of the first call of :meth:`add`, so that a pin of them cannot be read any more."""
        ...


class LookupFixture:
    """Defaults of :class:`LookupSystem`."""

    column = "id"
    secrets: Sequence[str] = ()
    rows = "pinned"


class LookupContract:
    """
    Tests of the contract of every lookup table (:class:`airflow_provider_streamsem.connectors.lookup.Lookup`).

    :cvar clients: modules that the lookup may import only when it sends a request or reads rows
    """

    clients: ClassVar[Sequence[str]] = _CLIENTS

    @pytest.fixture
    def system(self) -> LookupSystem:
        raise NotImplementedError

    def test_pin_gives_its_rows_although_the_table_has_grown(
        self, system: LookupSystem, streamsem_spark: SparkSession
    ) -> None:
        system.add(range(3))
        pin = _pin(system.lookup)
        assert _looked_up(system, system.lookup, streamsem_spark, pin) == [0, 1, 2]
        system.add(range(3, 5))
        if system.rows == "unchanged":
            with pytest.raises(LookupChangedError):
                system.lookup.check_pin(pin)
        else:
            expected = range(5) if system.rows == "current" else range(3)
            assert _looked_up(system, system.lookup, streamsem_spark, pin) == [*expected]
        assert _looked_up(system, system.lookup, streamsem_spark, _pin(system.lookup)) == [*range(5)]

    def test_lookup_from_stored_arguments_reads_the_same_pin(
        self, system: LookupSystem, streamsem_spark: SparkSession
    ) -> None:
        system.add(range(3))
        pin = _pin(system.lookup)
        stored = json.loads(canonical(_with_lookup(system.lookup).to_json()))
        rebuilt = spec.from_json(stored).lookups["table"]
        assert rebuilt == system.lookup
        assert _looked_up(system, rebuilt, streamsem_spark, pin) == [0, 1, 2]

    def test_damaged_rows_fail_the_check_of_their_pin(self, system: LookupSystem) -> None:
        system.add(range(3))
        pin = _pin(system.lookup)
        system.lookup.check_pin(pin)
        system.damage()
        with nullcontext() if system.rows == "current" else pytest.raises(LookupChangedError):
            system.lookup.check_pin(pin)

    def test_lookup_that_promises_less_than_pinned_rows_says_so(self, system: LookupSystem) -> None:
        reasons = system.lookup.reasons
        assert reasons
        assert any("not pinned" in reason for reason in reasons) == (system.rows == "current")

    @pytest.mark.parametrize("pin", [{"other": 1}, [{"other": 1}], [1], "text", None, 1], ids=str)
    def test_pin_of_another_form_is_refused(self, system: LookupSystem, pin: Json) -> None:
        with pytest.raises(LogDamagedError):
            system.lookup.check_pin(pin)

    def test_secrets_are_in_no_stored_value(self, system: LookupSystem) -> None:
        system.add(range(3))
        lookup = system.lookup
        stored = [repr(_pin(lookup)), repr(_with_lookup(lookup).to_json()), str(lookup.lineage()), *lookup.reasons]
        for secret in system.secrets:
            assert not [text for text in (repr(lookup), *stored) if secret in text]

    def test_module_of_the_lookup_imports_no_client_library(self, system: LookupSystem) -> None:
        assert {*self.clients} & _imported_by(type(system.lookup).__module__) == set()


def _pin(lookup: Lookup) -> Json:
    """Return the pin of the current rows as a later process reads it from the plan."""
    return json.loads(canonical(lookup.pin(SYSTEM_CLOCK.now_ms())))


def _looked_up(system: LookupSystem, lookup: Lookup, spark: SparkSession, pin: Json) -> list[int]:
    lookup.check_pin(pin)
    ids = sorted(row[0] for row in lookup.load(spark, pin).select(system.column).collect())
    lookup.check_pin(pin)
    return ids


def _with_lookup(lookup: Lookup) -> spec.Pipeline:
    return spec.Pipeline(
        name="conformance",
        log="memory://conformance",
        source=FilesSource(path="/in", format="json", schema="id long"),
        sinks={"out": FilesSink(path="/out")},
        lookups={"table": lookup},
        transform="conformance:join",
    )


def _imported_by(module: str) -> set[str]:
    """Return the names of the modules that the import of a module loads, in a new process."""
    code = "import importlib, sys; importlib.import_module(sys.argv[1]); print(*sys.modules)"
    process = subprocess.run([sys.executable, "-c", code, module], capture_output=True, text=True, check=True)
    return {*process.stdout.split()}


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
