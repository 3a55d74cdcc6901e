"""The conformance suite of lookup tables."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, ClassVar

import pytest

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.connectors.files.sink import FilesSink
from airflow_provider_streamsem.connectors.files.source import FilesSource
from airflow_provider_streamsem.connectors.lookup import Lookup
from airflow_provider_streamsem.errors import (
    LogDamagedError,
    LookupChangedError,
)
from airflow_provider_streamsem.pipeline.spec import pipeline as spec
from airflow_provider_streamsem.protocol.codec import canonical
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.testing.conformance.imports import CLIENTS, imported_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LookupSystem(ABC):
    """
    A table, and a lookup that reads it.

    :attr lookup: the lookup. It reads every row that :meth:`add` adds
    :attr column: name of a column with integers in which the rows have their ids
    :attr secrets: texts that must appear in no stored or printed value, such as passwords of the connection
    :attr rows: the rows that the lookup returns for a pin. ``"pinned"`` (default): the same rows, even after the table has grown. ``"unchanged"``: the same
        rows, and the check of the pin fails after any change of the table. ``"current"``: the current rows
    """

    lookup: Lookup
    column: str = "id"
    secrets: Sequence[str] = ()
    rows: str = "pinned"

    @abstractmethod
    def add(self, ids: Iterable[int]) -> None:
        """Add one row for each id. Another call adds to further items, such as another file."""

    @abstractmethod
    def damage(self) -> None:
        """Change or delete the rows of the first call of :meth:`add`, so that a pin of them cannot be read any more."""


class LookupContract:
    """
    Tests of the contract of every lookup table (:class:`airflow_provider_streamsem.connectors.lookup.Lookup`).

    :cvar clients: modules that the lookup may import only when it sends a request or reads rows
    """

    clients: ClassVar[Sequence[str]] = CLIENTS

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
        assert {*self.clients} & imported_by(type(system.lookup).__module__) == set()


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
