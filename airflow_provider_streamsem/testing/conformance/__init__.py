"""
Conformance suites for stores, sources, sinks and lookup tables. To test a store, subclass its suite in a test module and define its fixtures:

.. code-block:: python

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self): return MyStore(...)      # empty

        @pytest.fixture
        def fresh(self): return lambda: MyStore(...)   # empty, a new one at each call

To test a source, extend :class:`SourceSystem`, which adds records to the external system:

.. code-block:: python

    class TestMySource(SourceContract):
        @pytest.fixture
        def system(self): return MySystem()       # empty, a new one for each test

To test a lookup table, extend :class:`LookupSystem`, and subclass :class:`LookupContract` with the fixture ``system``. To test a
sink outside the log, extend :class:`SinkSystem`, and subclass :class:`TransactionalSinkContract` or :class:`SinkContract` with the fixture ``fresh``. For a
sink in the log, these are :class:`DatasetSystem` and :class:`StagingContract`.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{name}" for name in ("stores", "sources", "lookups", "sinks", "staging"))
)  # before the imports below

from airflow_provider_streamsem.testing.conformance.lookups import LookupContract, LookupSystem  # noqa: E402
from airflow_provider_streamsem.testing.conformance.sinks import (  # noqa: E402
    Commits,
    SinkContract,
    SinkSystem,
    TransactionalSinkContract,
)
from airflow_provider_streamsem.testing.conformance.sources import (  # noqa: E402
    SourceContract,
    SourceSystem,
)
from airflow_provider_streamsem.testing.conformance.staging import DatasetSystem, StagingContract  # noqa: E402
from airflow_provider_streamsem.testing.conformance.stores import StoreContract  # noqa: E402

__all__ = [
    "Commits",
    "DatasetSystem",
    "LookupContract",
    "LookupSystem",
    "SinkContract",
    "SinkSystem",
    "SourceContract",
    "SourceSystem",
    "StagingContract",
    "StoreContract",
    "TransactionalSinkContract",
]
