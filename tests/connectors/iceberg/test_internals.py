"""The non-public names of pyiceberg on which the connector relies. A release of pyiceberg may remove them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.table import Transaction
from pyiceberg.table.update.snapshot import _OverwriteFiles

from airflow_provider_streamsem.connectors.iceberg import internals
from airflow_provider_streamsem.connectors.iceberg.catalog import is_transient


def test_pyiceberg_has_the_non_public_names() -> None:
    message = "add this version of pyiceberg to connectors/iceberg/internals.py, or use its new names"
    assert hasattr(InMemoryCatalog, "_load_file_io"), message
    assert hasattr(_OverwriteFiles, "_summary"), message
    assert "_updates" in Transaction.__annotations__, message


def test_properties_of_a_table_are_checked_before_its_file_io_is_loaded() -> None:
    catalog = InMemoryCatalog("c")
    seen: list[object] = []
    internals.check_file_io(catalog, seen.append)
    catalog.create_namespace("n")
    catalog.create_table("n.t", pa.schema([("id", pa.int64())]), properties={"a": "b"})
    assert any(dict(properties).get("a") == "b" for properties in seen)  # type: ignore[call-overload]


def test_options_of_the_parquet_writer_are_accepted_by_pyarrow() -> None:
    options = internals.parquet_options({"write.parquet.compression-codec": "gzip"})
    pyarrow.parquet.write_table(pa.table({"a": [0]}), pa.BufferOutputStream(), **options)
    assert options["compression"] == "gzip"


def test_throttling_is_transient_also_for_releases_of_pyiceberg_without_its_exception(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr("pyiceberg.exceptions.TooManyRequestsError", raising=False)
    throttled = type("TooManyRequestsError", (Exception,), {"__module__": "pyiceberg.exceptions"})
    assert is_transient(throttled())
    assert not is_transient(ValueError())
