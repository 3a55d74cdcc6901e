"""The pytest plugin: it is found by its entry point, loads nothing until it is used, and restores the environment."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.testing.spark import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_tests(location: Path, code: str, **environment: str) -> str:
    """Run a test file in a separate process, as with the package installed, and return pytest's report."""
    (location / "test_it.py").write_text(textwrap.dedent(code))
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(location), "test_it.py"],
        cwd=location, env={**os.environ, **environment}, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    return process.stdout + process.stderr


def test_unused_plugin_loads_nothing_heavy(tmp_path: Path) -> None:
    pytest_report = run_tests(
        tmp_path,
        """
        import sys

        def test_nothing(pytestconfig):
            assert pytestconfig.pluginmanager.has_plugin("streamsem")
            heavy = {"airflow", "pyspark", "boto3", "moto", "pyarrow", "confluent_kafka", "py4j"}
            assert not heavy & set(sys.modules)
            ours = {name for name in sys.modules if name.startswith("airflow_provider_streamsem.")}
            named = ("testing", "testing.plugin", "version")
            assert ours == {f"airflow_provider_streamsem.{name}" for name in named}
        """,
    )
    assert "1 passed" in pytest_report, pytest_report


@pytest.mark.slow
def test_each_test_has_a_separate_log_on_s3_and_the_environment_is_restored(tmp_path: Path) -> None:
    pytest_report = run_tests(
        tmp_path,
        """
        import os

        import pytest

        from airflow_provider_streamsem.commitlog.doctor import examine
        from airflow_provider_streamsem.commitlog.log import commit_log_at

        BEFORE = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        SEEN = set()


        @pytest.mark.parametrize("n", range(2))
        def test_log(streamsem_log, streamsem_s3_endpoint, n):
            assert os.environ["AWS_ENDPOINT_URL"] == streamsem_s3_endpoint
            assert not {"AWS_PROFILE", "AWS_ENDPOINT_URL_S3"} & set(os.environ)
            log = commit_log_at(streamsem_log)
            assert log.list_keys("") == ()
            assert examine(log).passed
            SEEN.add((streamsem_log, streamsem_s3_endpoint))


        def test_environment():
            assert {name: value for name, value in os.environ.items() if name.startswith("AWS_")} == BEFORE
            locations, servers = zip(*SEEN)
            assert (len(set(locations)), len(set(servers))) == (2, 1)
        """,
        AWS_PROFILE="production",
        AWS_ENDPOINT_URL_S3="http://127.0.0.1:1",
        AWS_ACCESS_KEY_ID="real",
    )
    assert "3 passed" in pytest_report, pytest_report


@pytest.mark.prove
@pytest.mark.slow
def test_log_on_s3_exists_after_another_test_has_reset_moto(tmp_path: Path) -> None:
    pytest_report = run_tests(
        tmp_path,
        """
        import pytest
        from moto import mock_aws

        from airflow_provider_streamsem.commitlog.log import commit_log_at


        @pytest.mark.parametrize("n", range(2))
        def test_log(streamsem_log, n):
            assert commit_log_at(streamsem_log).store.create("key", b"data")


        @mock_aws
        def test_of_others():
            pass


        def test_log_after_it(streamsem_log):
            assert commit_log_at(streamsem_log).store.create("key", b"data")
        """,
    )
    assert "4 passed" in pytest_report, pytest_report


@pytest.mark.parametrize(
    ("fixture", "setup", "message"),
    [
        ("streamsem_spark", "os.environ['JAVA_HOME'] = '/nowhere'", "Java was not found, and Spark needs it; nothing was staged (java_home='/nowhere'"),
        ("streamsem_spark", "sys.modules['pyspark'] = None", "pip install 'airflow-provider-streamsem[spark]'"),
        ("streamsem_log", "sys.modules['moto'] = None", "pip install 'airflow-provider-streamsem[testing]'"),
    ],
)  # fmt: skip
def test_missing_requirement_of_a_fixture_is_reported(tmp_path: Path, fixture: str, setup: str, message: str) -> None:
    pytest_report = run_tests(tmp_path, f"import os, sys\n{setup}\ndef test_it({fixture}): pass\n")
    assert "1 error" in pytest_report
    assert message in pytest_report


@pytest.mark.spark
def test_active_session_is_used_and_left_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    with local_session(str(tmp_path)) as session:
        assert session is spark
    assert spark.range(3).count() == 3


@pytest.mark.prove
@pytest.mark.slow
def test_session_is_small_and_in_utc(tmp_path: Path) -> None:
    pytest_report = run_tests(
        tmp_path,
        """
        def test_session(streamsem_spark):
            settings = {
                "spark.master": "local[2]",
                "spark.ui.enabled": "false",
                "spark.sql.session.timeZone": "UTC",
                "spark.sql.shuffle.partitions": "2",
            }
            assert {name: streamsem_spark.conf.get(name) for name in settings} == settings
        """,
    )
    assert "1 passed" in pytest_report, pytest_report


def test_java_is_searched_where_spark_searches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InvalidError, match="Java 17 or 21"):
        with local_session(str(tmp_path)):
            pass
