"""Two versions of Spark in one environment and missing client libraries are detected before anything is read or written."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import DeltaSink, KafkaSource, Limits, extras
from airflow_provider_streamsem.cli import spark_check
from airflow_provider_streamsem.cli.main import main
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.spec.binding import read_head
from airflow_provider_streamsem.spark import gateway, versions
from airflow_provider_streamsem.spark.spark_engine import SparkEngine
from airflow_provider_streamsem.testing.rows import RowsEngine
from tests.pipeline_fixture import PipelineFixture

ROOT = Path(__file__).parents[2]


def test_pyspark_and_pyspark_client_in_two_versions_are_refused_before_a_session_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(versions, "installed", lambda: {"pyspark": "4.3.0", "pyspark-client": "4.2.0"})
    with pytest.raises(InvalidError, match=r"pyspark='4.3.0', pyspark_client='4.2.0'.*pip uninstall -y") as refused:
        SparkEngine().session()
    assert not refused.value.retryable


def test_spark_extras_give_both_distributions_the_same_bounds() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    for extra in ("spark", "spark40", "spark42"):
        listed = json.loads(text.split(f"\n{extra} = ")[1].split("\n")[0])
        pyspark, client = (
            part.removeprefix(name) for part, name in zip(listed, ("pyspark", "pyspark-client"), strict=True)
        )
        assert pyspark == client
        assert any(minor in pyspark for minor in versions.TESTED)


@pytest.mark.parametrize(
    ("version", "keeps"),
    [("4.1.1", True), ("4.2.0", True), ("4.3.0", True), ("4.0.2", False), ("4.4.0", False), ("4.10.0", False), ("5.1.0", False)],
)  # fmt: skip
def test_state_is_kept_only_by_tested_versions_of_spark(
    monkeypatch: pytest.MonkeyPatch, version: str, keeps: bool
) -> None:
    """State uses non-public classes of Spark, so a newer version that was not tested is refused, too."""
    monkeypatch.setattr(versions, "installed", lambda: {"pyspark": version})
    if keeps:
        versions.check_state(remote=False)
    else:
        with pytest.raises(InvalidError, match=rf"given='Spark {version}', accepted='classic Spark 4.1") as refused:
            versions.check_state(remote=False)
        assert not refused.value.retryable
    with pytest.raises(InvalidError, match="given='Spark Connect'"):
        versions.check_state(remote=True)


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide confluent-kafka and deltalake, as if they were not installed."""
    hidden = ("confluent_kafka", "deltalake")
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name in hidden else find_spec(name))


def without_libraries(fixture: PipelineFixture) -> Any:
    source = KafkaSource(topics=["t"], bootstrap_servers="127.0.0.1:1")
    return fixture.pipeline(limits=Limits(), source=source, sinks={"table": DeltaSink(str(fixture.root / "table"))})


@pytest.mark.usefixtures("lacking")
def test_missing_libraries_are_one_error_before_anything_is_written(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    pipeline = without_libraries(fixture)
    message = r"missing=\['deltalake', 'confluent_kafka'\].*pip install 'airflow-provider-streamsem\[delta,kafka\]'"
    with pytest.raises(InvalidError, match=message) as refused:
        fixture.run("a", pipeline=pipeline, engine=RowsEngine())
    assert not refused.value.retryable
    assert [*fixture.store.list("")] == []
    of_the_source = r"missing=\['confluent_kafka'\].*pip install 'airflow-provider-streamsem\[kafka\]'"
    with pytest.raises(InvalidError, match=of_the_source):
        read_head(pipeline, fixture.log())


@pytest.mark.usefixtures("lacking")
def test_lag_is_read_without_the_libraries_of_sinks(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    pipeline = fixture.pipeline(sinks={"table": DeltaSink(str(tmp_path / "table"))})
    assert read_head(pipeline, fixture.log()).closed == -1


@pytest.mark.usefixtures("lacking")
def test_explain_names_the_command_that_installs_missing_libraries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.toml"
    file.write_text(
        f'name = "p"\nlog = "{tmp_path}/log"\n[source]\ntype = "kafka"\ntopics = ["t"]\nbootstrap_servers = "k:9092"\n'
        f'[sinks.out]\ntype = "delta"\npath = "{tmp_path}/table"\n'
    )
    assert main(["explain", str(file)]) == 0
    assert "not installed here: pip install 'airflow-provider-streamsem[delta,kafka]'" in capsys.readouterr().out


@pytest.mark.spark
def test_doctor_spark_passes_and_detects_wrong_counts(
    spark: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["doctor-spark", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"]
    assert [check["name"] for check in report["checks"][-2:]] == [
        "counts of a batch: with state",
        "counts of the next batch, which needs this state",
    ]
    assert len(report["checks"]) == 9
    monkeypatch.setattr(gateway, "reads_input_once", lambda frame: True)
    assert main(["doctor-spark"]) == 1
    assert "FAILED" in capsys.readouterr().out


def test_class_archive_keeps_the_java_options_of_the_user() -> None:
    given = ["spark.ui.enabled=false", "spark.driver.extraJavaOptions=-Xss4m -Da=b"]
    settings = spark_check.with_class_archive(given, "/opt/spark.jsa")
    assert dict(text.split("=", 1) for text in settings) == {
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": '-Xss4m -Da=b -Xlog:disable "-XX:ArchiveClassesAtExit=/opt/spark.jsa.'
        f'{os.getpid()}"',
    }


def test_class_archive_of_a_connect_server_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_REMOTE", "spark-connect://host:15002")
    assert main(["doctor-spark", "--spark-conn-id", "remote", "--class-archive", "/opt/spark.jsa"]) != 0
    assert "cannot write a class archive of the server" in capsys.readouterr().err
