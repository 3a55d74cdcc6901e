"""The conformance suite of every sink: ownership of its dataset, and the files of attempts."""

from __future__ import annotations

import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest

from airflow_provider_streamsem.connectors.rate.source import RateSource
from airflow_provider_streamsem.connectors.sink import Sink
from airflow_provider_streamsem.delivery import LABELS
from airflow_provider_streamsem.errors import ConflictError, DatasetOwnedError, LogDamagedError, StageError
from airflow_provider_streamsem.pipeline.spec import pipeline as spec
from airflow_provider_streamsem.protocol.codec import canonical
from airflow_provider_streamsem.protocol.entries import Committable
from airflow_provider_streamsem.protocol.keys import data_prefix
from airflow_provider_streamsem.stores.dataset import open_dataset
from airflow_provider_streamsem.testing.conformance.imports import CLIENTS, imported_by

LOG = "memory://conformance"
NAME = "conformance"
UUID = "0" * 32
ATTEMPT, OTHER_ATTEMPT = "a" * 32, "b" * 32


class DatasetSystem(ABC):
    """
    An empty dataset, and a sink that stages rows in it.

    :attr schema: the columns of a row, as schema JSON in Spark's form
    :attr secrets: texts that must appear in no stored or printed value, such as passwords of the connection
    """

    schema = '{"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": true, "metadata": {}}]}'
    secrets: Sequence[str] = ()

    @abstractmethod
    def sink(self) -> Sink:
        """Return the sink, as another process would create it."""

    def table(self, ids: Sequence[int]) -> Any:
        """Return a pyarrow table with one row for each id, with the columns of :attr:`schema`."""
        import pyarrow

        return pyarrow.table({"id": pyarrow.array(ids, pyarrow.int64())})

    def staged_file(self, ids: Sequence[int]) -> bytes:
        """Return a file in the sink's format with one row for each id. Default: Parquet."""
        import pyarrow.parquet

        written = io.BytesIO()
        pyarrow.parquet.write_table(self.table(ids), written)
        return written.getvalue()

    def stage(self, version: int, ids: Sequence[int], attempt_id: str = ATTEMPT, name: str = "part-00000") -> None:
        """Write one file of an attempt without an engine, with one row for each id."""
        sink = self.sink()
        key = f"{data_prefix(version, attempt_id)}{name}.{sink.format}"
        open_dataset(sink.location).create(key, self.staged_file(ids))


class StagingContract:
    """
    Tests of the contract of every sink (:class:`airflow_provider_streamsem.connectors.sink.Sink`).

    A sink outside the log also passes :class:`SinkContract`.

    :cvar clients: modules that the sink may import only when it sends a request
    """

    clients: ClassVar[Sequence[str]] = CLIENTS

    @pytest.fixture
    def fresh(self) -> Callable[[], Any]:
        """Return a function that creates an empty system at each call."""
        raise NotImplementedError

    def test_staged_rows_are_counted_and_discarded(self, fresh: Callable[[], DatasetSystem]) -> None:
        system = fresh()
        sink = _claimed(system)
        sink.resolve_schema(system.schema)
        system.stage(0, [1, 2, 3])
        committable = sink.collect(0, ATTEMPT)
        (file,) = committable.files
        assert (committable.rows, file.rows, sink.count(file.key, sink.format)) == (3, 3, 3)
        assert sink.file_identity(file.key, sink.format) == (file.bytes, file.checksum)
        assert sink.is_complete(committable)
        assert sink.attempts() == sink.attempts(0) == {(0, ATTEMPT)}
        assert sink.attempts(1) == set()
        assert sink.discard(0, ATTEMPT, dry_run=True) == file.bytes
        assert sink.is_complete(committable)
        assert sink.discard(0, ATTEMPT) == file.bytes
        assert not sink.is_complete(committable)
        assert sink.attempts() == set()
        assert (sink.file_identity(file.key, sink.format), sink.count(file.key, sink.format)) == (None, 0)

    def test_attempts_of_a_version_are_separate(self, fresh: Callable[[], DatasetSystem]) -> None:
        system = fresh()
        sink = _claimed(system)
        system.stage(0, [1, 2])
        system.stage(0, [1, 2, 3], OTHER_ATTEMPT)
        first, second = sink.collect(0, ATTEMPT), sink.collect(0, OTHER_ATTEMPT)
        assert (first.rows, second.rows, {*_keys(first)} & {*_keys(second)}) == (2, 3, set())
        assert sink.attempts() == {(0, ATTEMPT), (0, OTHER_ATTEMPT)}
        sink.discard(0, ATTEMPT)
        assert (sink.is_complete(first), sink.is_complete(second)) == (False, True)
        assert sink.attempts() == {(0, OTHER_ATTEMPT)}

    def test_only_accepted_files_are_collected_and_all_of_them_must_exist(
        self, fresh: Callable[[], DatasetSystem]
    ) -> None:
        system = fresh()
        sink = _claimed(system)
        system.stage(0, [1, 2])
        system.stage(0, [3], name="part-00001")  # of a Spark task that the driver did not accept
        accepted = f"part-00000.{sink.format}"
        assert sink.collect(0, ATTEMPT, frozenset({accepted})).rows == 2
        with pytest.raises(StageError):
            sink.collect(0, ATTEMPT, frozenset({accepted, f"part-00002.{sink.format}"}))

    def test_changed_file_is_not_complete(self, fresh: Callable[[], DatasetSystem]) -> None:
        system = fresh()
        sink = _claimed(system)
        system.stage(0, [1, 2])
        committable = sink.collect(0, ATTEMPT)
        sink.discard(0, ATTEMPT)
        system.stage(0, [1, 3])
        assert not sink.is_complete(committable)

    def test_dataset_has_one_owner(self, fresh: Callable[[], DatasetSystem]) -> None:
        system = fresh()
        sink = system.sink()
        sink.refuse_existing_output(LOG)
        with pytest.raises(LogDamagedError):
            sink.claim(UUID, LOG, new=False)
        for new in (True, True, False):
            sink.claim(UUID, LOG, new=new)
        for uuid, log in (("1" * 32, LOG), (UUID, "memory://another")):
            with pytest.raises(DatasetOwnedError):
                system.sink().claim(uuid, log, new=True)
        with pytest.raises(DatasetOwnedError):
            sink.refuse_existing_output("memory://another")

    def test_dataset_with_files_and_without_an_owner_is_refused(self, fresh: Callable[[], DatasetSystem]) -> None:
        system = fresh()
        sink = system.sink()
        system.stage(0, [1])
        with pytest.raises(ConflictError):
            sink.claim(UUID, LOG, new=True)
        with pytest.raises(ConflictError):
            sink.refuse_existing_output(LOG)

    def test_sink_from_stored_arguments_has_the_same_identity_and_no_secrets(
        self, fresh: Callable[[], DatasetSystem]
    ) -> None:
        system = fresh()
        sink = system.sink()
        stored = canonical(_pipeline(sink).to_json()).decode()
        assert spec.from_json(json.loads(stored)).sinks[NAME].immutable_config() == sink.immutable_config()
        for secret in system.secrets:
            assert secret not in stored + repr(sink) + str(sink.immutable_config())

    def test_guarantee_has_reasons(self, fresh: Callable[[], DatasetSystem]) -> None:
        sink = fresh().sink()
        assert sink.delivery in LABELS
        assert sink.reasons

    def test_module_of_the_sink_imports_no_client_library(self, fresh: Callable[[], DatasetSystem]) -> None:
        assert {*self.clients} & imported_by(type(fresh().sink()).__module__) == set()


def _claimed(system: DatasetSystem) -> Sink:
    sink = system.sink()
    sink.claim(UUID, LOG, new=True)
    return sink


def _keys(committable: Committable) -> list[str]:
    return [file.key for file in committable.files]


def _pipeline(sink: Sink) -> spec.Pipeline:
    return spec.Pipeline(name="conformance", log=LOG, source=RateSource(rows_per_second=1), sinks={NAME: sink})
