"""The Spark that a connection names, and the functions that are sent to executors as code. No Spark is started."""

from __future__ import annotations

import subprocess
import sys
import types
from typing import Any

import pytest
from pyspark import cloudpickle

from airflow_provider_streamsem.connections import Connection
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.spark.shipping import by_value
from airflow_provider_streamsem.spark.spark_engine import SparkEngine, engine_of


def engine(**parts: Any) -> SparkEngine:
    return engine_of(Connection(conn_id="c", **parts), {"spark.x": "y"})


@pytest.mark.parametrize(
    ("parts", "master"),
    [
        ({"conn_type": "spark", "host": "local[3]"}, "local[3]"),
        ({"conn_type": "spark", "host": "spark://h", "port": 7077}, "spark://h:7077"),
        ({"conn_type": "spark", "host": "h", "port": 7077}, "spark://h:7077"),
        ({"conn_type": "spark", "host": "yarn"}, "yarn"),
        ({"conn_type": "spark", "host": "k8s://https://h", "port": 443}, "k8s://https://h:443"),
    ],
)
def test_connection_of_type_spark_names_a_master(parts: dict[str, Any], master: str) -> None:
    configured = engine(**parts)
    assert (configured._master, configured._remote, configured._conf) == (master, None, {"spark.x": "y"})


def test_connection_of_type_spark_sets_queue_and_namespace() -> None:
    configured = engine(conn_type="spark", host="yarn", extra={"queue": "q", "namespace": "n", "deploy-mode": "client"})
    assert configured._conf == {"spark.yarn.queue": "q", "spark.kubernetes.namespace": "n", "spark.x": "y"}


@pytest.mark.parametrize(
    ("parts", "remote"),
    [
        ({"host": "h", "port": 15002}, "sc://h:15002"),
        ({"host": "sc://h"}, "sc://h"),
        ({"host": "h", "port": 1, "login": "u@x", "password": "t;k", "extra": {"use_ssl": True}}, "sc://h:1/;user_id=u%40x;token=t%3Bk;use_ssl=true"),
    ],
)  # fmt: skip
def test_connection_of_type_spark_connect_names_a_server(parts: dict[str, Any], remote: str) -> None:
    assert engine(conn_type="spark_connect", **parts)._remote == remote


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"conn_type": "spark"}, "host"),
        ({"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}, "client"),
    ],
)
def test_connection_without_host_or_with_deploy_mode_cluster_is_refused(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        engine(**parts)


def test_remote_url_that_is_not_spark_connect_is_refused() -> None:
    with pytest.raises(InvalidError, match="sc://"):
        SparkEngine(remote="http://h")


def test_invalid_server_address_is_reported_without_its_token() -> None:
    url = "sc://127.0.0.1:1;token=S3CRET"
    program = f"""
import sys, traceback
from airflow_provider_streamsem.spark.spark_engine import SparkEngine
try:
    SparkEngine(remote={url!r}).session()
except Exception as error:
    traceback.print_exc(file=sys.stdout)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert "127.0.0.1" in done.stdout
    assert "S3CRET" not in done.stdout + done.stderr


def test_functions_of_modules_that_are_not_installed_are_pickled_by_value(tmp_path: Any) -> None:
    module = types.ModuleType("only_on_the_driver")
    module.__file__ = str(tmp_path / "only_on_the_driver.py")
    exec("def doubled(value):\n    return value * 2\n", module.__dict__)
    sys.modules[module.__name__] = module
    try:
        with by_value():
            sent = cloudpickle.dumps(module.doubled)
            assert "pytest" not in cloudpickle.list_registry_pickle_by_value()
            assert "airflow_provider_streamsem" not in cloudpickle.list_registry_pickle_by_value()
    finally:
        del sys.modules[module.__name__]
    assert cloudpickle.loads(sent)(21) == 42
    assert module.__name__ not in cloudpickle.list_registry_pickle_by_value()
