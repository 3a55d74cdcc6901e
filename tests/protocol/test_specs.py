"""Stored specs are parsed as JSON, and nothing is built from them."""

from __future__ import annotations

import pytest

from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol.specs import stored_spec


def test_valid_spec_is_returned_as_json() -> None:
    assert stored_spec(b'{"immutable_config":{},"sinks":{}}') == {"sinks": {}, "immutable_config": {}}


@pytest.mark.parametrize("data", [b"[]", b"{}", b'{"sinks":{}}', b'{"immutable_config":{},"sinks":[]}'], ids=str)
def test_spec_without_its_tables_is_refused(data: bytes) -> None:
    with pytest.raises(LogDamagedError, match="a spec in the log is not valid"):
        stored_spec(data)


@pytest.mark.parametrize("value", ["1.5", "NaN", "-Infinity", "1e999", '"\\ud800"'])
def test_spec_with_a_value_that_no_writer_stores_is_refused(value: str) -> None:
    with pytest.raises(LogDamagedError):
        stored_spec(f'{{"sinks": {{}}, "immutable_config": {{"a": [{value}]}}}}'.encode())
