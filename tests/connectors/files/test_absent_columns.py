"""A column of the schema that no JSON or CSV record of a batch has is reported, and not silently null."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_streamsem import open_log
from airflow_provider_streamsem.errors import DataError, InvalidError
from tests.spark_location import Location

pytestmark = pytest.mark.spark

RENAMED = '{"id": 1, "usr": "ann"}\n{"id": 2, "usr": "bob"}\n{broken\n'
JSON = {"format": "json", "schema": "id long, user string"}


def test_renamed_json_key_is_refused_with_the_column(location: Location) -> None:
    location.put("a.json", RENAMED)
    with pytest.raises(DataError, match="null in every record") as raised:
        location.run(location.pipeline(source={**JSON, "missing_columns": "refuse"}))
    assert (raised.value.fields["columns"], raised.value.fields["records"]) == (["user"], 2)
    assert open_log(str(location.root / "log")).head == -1


@pytest.mark.parametrize("missing", [None, "null"])
@pytest.mark.parametrize("transform", [None, lambda frame: frame.orderBy("id")], ids=["one pass", "two passes"])
def test_renamed_json_key_is_a_warning_unless_null_is_chosen(
    location: Location, caplog: pytest.LogCaptureFixture, missing: str | None, transform: Any
) -> None:
    location.put("a.json", RENAMED)
    with caplog.at_level(logging.WARNING):
        location.run(location.pipeline(source={**JSON, "missing_columns": missing}, transform=transform))
    warnings = [message for message in caplog.messages if "null in every record" in message]
    assert len(warnings) == (1 if missing is None else 0)
    assert all("batch: user (2 records" in message for message in warnings)


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        (JSON, '{"id": 1, "user": null}\n{"id": null, "user": "ann"}\n'),
        ({"format": "csv", "schema": "id long, user string"}, "1,\n,ann\n"),
        (JSON, ""),
        (JSON, "{broken\n"),
    ],
    ids=["json", "csv", "no record", "no parsed record"],
)
def test_column_that_some_record_has_is_not_reported(
    location: Location, caplog: pytest.LogCaptureFixture, source: dict[str, Any], lines: str
) -> None:
    location.put("a.txt", lines + "\n")
    location.run(location.pipeline(source={**source, "missing_columns": "refuse"}))


def test_each_of_many_columns_is_reported_by_its_name(location: Location, spark: SparkSession) -> None:
    names = [f"c`{n}" for n in range(130)]
    quoted = ", ".join(f"`{name.replace('`', '``')}` int" for name in names)
    present = {n for n in range(130) if n not in (0, 59, 60, 119, 120, 129)}
    location.put("a.json", "{" + ", ".join(f'"{names[n]}": {n}' for n in sorted(present)) + "}\n")
    with pytest.raises(DataError) as raised:
        location.run(location.pipeline(source={"format": "json", "schema": quoted, "missing_columns": "refuse"}))
    assert raised.value.fields["columns"] == [names[n] for n in (0, 59, 60, 119, 120, 129)]


def test_other_value_of_missing_columns_is_refused(location: Location) -> None:
    with pytest.raises(InvalidError, match="missing_columns"):
        location.pipeline(source={**JSON, "missing_columns": "warn"})
