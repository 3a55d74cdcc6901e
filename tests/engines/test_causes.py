"""An error names its cause: the module, the column or the program that is missing."""

from __future__ import annotations

import shutil
import traceback

import pytest

from airflow_provider_streamsem import open_log
from airflow_provider_streamsem.engines.spark import SparkEngine
from airflow_provider_streamsem.errors import DataError, InvalidError, StoreRefusedError
from tests.engines.places import Place


def test_transform_that_cannot_be_imported_says_why(place: Place) -> None:
    (place.root / "broken_transform.py").write_text("import pandaz\n")
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(place.root))
        with pytest.raises(InvalidError, match="No module named 'pandaz'"):
            place.run(place.pipeline(source={"format": "text"}, transform="broken_transform:f"))


@pytest.mark.spark
@pytest.mark.parametrize(
    ("where", "fact"),
    [("amuont > 1", "name='`amuont`'"), ("id >", "PARSE_SYNTAX_ERROR"), ("nofunction(id)", "`nofunction`")],
)
def test_predicate_that_does_not_fit_the_columns_is_named_with_them(
    place: Place, where: str, fact: str, capfd: pytest.CaptureFixture[str]
) -> None:
    place.put("a.json", '{"id": 1, "amount": 2}\n')
    with pytest.raises(DataError, match="the predicate `where`") as raised:
        place.run(place.pipeline(source={"format": "json", "schema": "id long, amount int"}, where=where))
    assert fact in str(raised.value)
    assert raised.value.fields["columns"] == ["id", "amount"]
    assert raised.value.fields["where"] == where
    assert len("".join(traceback.format_exception(raised.value.__cause__))) < 5_000, "Spark's plan is not in it"
    assert "QueryContextLogger" not in capfd.readouterr().err


@pytest.mark.spark
def test_transform_that_names_a_column_that_is_not_there_is_told_which(place: Place) -> None:
    place.put("a.json", '{"id": 1}\n')
    with pytest.raises(DataError, match="the transform does not fit the columns") as raised:
        place.run(
            place.pipeline(
                source={"format": "json", "schema": "id long"}, transform=lambda frame: frame.select("amuont")
            )
        )
    assert raised.value.fields["name"] == "`amuont`"
    told = "".join(traceback.format_exception(raised.value))
    assert 'frame.select("amuont")' in told, "the line of the transform"
    assert "Project [" not in told


@pytest.mark.parametrize("home", ["/nowhere", None])
def test_missing_java_is_named_and_not_retried(monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "getActiveSession", classmethod(lambda cls: None))
    monkeypatch.setenv("PATH", "/nowhere")
    if home is None:
        monkeypatch.delenv("JAVA_HOME", raising=False)
    else:
        monkeypatch.setenv("JAVA_HOME", home)
    with pytest.raises(InvalidError, match="Java was not found") as raised:
        SparkEngine().session()
    assert not raised.value.retryable


@pytest.mark.spark
def test_place_that_spark_cannot_write_to_is_named_and_not_retried(place: Place) -> None:
    place.put("a.txt", "x")
    pipeline = place.pipeline(source={"format": "text"})
    place.run(pipeline)
    data = place.root / "out" / "data"
    shutil.move(data, place.root / "moved")
    data.write_text("no directory")
    place.put("b.txt", "y")
    with pytest.raises(StoreRefusedError, match=str(data)) as raised:
        place.run(pipeline)
    assert not raised.value.retryable
    assert open_log(str(place.root / "log")).head == 0
