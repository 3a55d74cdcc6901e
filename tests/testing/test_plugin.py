"""The pytest plugin: found by its entry point, loads nothing until it is used, leaves the environment as it was."""

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


def run_tests(place: Path, code: str, **environment: str) -> str:
    """Run a test file in a process of its own, as in an environment where the package is installed; returns pytest's report."""
    (place / "test_it.py").write_text(textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(place), "test_it.py"],
        cwd=place, env={**os.environ, **environment}, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_plugin_that_is_not_used_loads_nothing_heavy(tmp_path: Path) -> None:
    said = run_tests(
        tmp_path,
        """
        import sys

        def test_nothing(pytestconfig):
            assert pytestconfig.pluginmanager.has_plugin("streamsem")
            heavy = {"airflow", "pyspark", "boto3", "moto", "pyarrow", "confluent_kafka", "py4j"}
            assert not heavy & set(sys.modules)
            ours = {name for name in sys.modules if name.startswith("airflow_provider_streamsem.")}
            assert ours == {"airflow_provider_streamsem.testing", "airflow_provider_streamsem.testing.plugin"}
        """,
    )
    assert "1 passed" in said, said


def test_log_on_s3_is_each_tests_own_and_the_environment_is_put_back(tmp_path: Path) -> None:
    said = run_tests(
        tmp_path,
        """
        import os

        import pytest

        from airflow_provider_streamsem.commitlog.doctor import examine
        from airflow_provider_streamsem.commitlog.log import open_commit_log

        BEFORE = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        SEEN = set()


        @pytest.mark.parametrize("n", range(2))
        def test_log(streamsem_log, streamsem_s3_endpoint, n):
            assert os.environ["AWS_ENDPOINT_URL"] == streamsem_s3_endpoint
            assert not {"AWS_PROFILE", "AWS_ENDPOINT_URL_S3"} & set(os.environ)
            log = open_commit_log(streamsem_log)
            assert log.list_keys("") == ()
            assert examine(log).passed
            SEEN.add((streamsem_log, streamsem_s3_endpoint))


        def test_environment():
            assert {name: value for name, value in os.environ.items() if name.startswith("AWS_")} == BEFORE
            places, servers = zip(*SEEN)
            assert (len(set(places)), len(set(servers))) == (2, 1)
        """,
        AWS_PROFILE="production",
        AWS_ENDPOINT_URL_S3="http://127.0.0.1:1",
        AWS_ACCESS_KEY_ID="real",
    )
    assert "3 passed" in said, said


def test_log_on_s3_is_there_after_a_test_of_others_has_emptied_moto(tmp_path: Path) -> None:
    said = run_tests(
        tmp_path,
        """
        import pytest
        from moto import mock_aws

        from airflow_provider_streamsem.commitlog.log import open_commit_log


        @pytest.mark.parametrize("n", range(2))
        def test_log(streamsem_log, n):
            assert open_commit_log(streamsem_log).store.create("key", b"data")


        @mock_aws
        def test_of_others():
            pass


        def test_log_after_it(streamsem_log):
            assert open_commit_log(streamsem_log).store.create("key", b"data")
        """,
    )
    assert "4 passed" in said, said


@pytest.mark.parametrize(
    ("fixture", "setup", "message"),
    [
        ("streamsem_spark", "os.environ['JAVA_HOME'] = '/nowhere'", "Spark needs Java, and this machine has none JAVA_HOME='/nowhere'"),
        ("streamsem_spark", "sys.modules['pyspark'] = None", "pip install 'airflow-provider-streamsem[spark]'"),
        ("streamsem_log", "sys.modules['moto'] = None", "pip install 'airflow-provider-streamsem[testing]'"),
    ],
)  # fmt: skip
def test_what_a_fixture_needs_and_the_machine_lacks_is_said(
    tmp_path: Path, fixture: str, setup: str, message: str
) -> None:
    said = run_tests(tmp_path, f"import os, sys\n{setup}\ndef test_it({fixture}): pass\n")
    assert "1 error" in said
    assert message in said


@pytest.mark.spark
def test_session_that_is_active_already_is_used_and_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    with local_session(str(tmp_path)) as session:
        assert session is spark
    assert spark.range(3).count() == 3


def test_session_is_small_and_in_utc(tmp_path: Path) -> None:
    said = run_tests(
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
    assert "1 passed" in said, said


def test_java_is_looked_for_where_spark_looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InvalidError, match="Java 17 or 21"):
        with local_session(str(tmp_path)):
            pass
