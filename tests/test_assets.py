"""``streamsem://`` URIs as asset URIs of Airflow."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any
from urllib.parse import urlsplit

import pytest

from airflow_provider_streamsem import log_uri
from airflow_provider_streamsem.assets import create_asset, log_of, normalise, to_openlineage
from airflow_provider_streamsem.errors import InvalidError

pytestmark = pytest.mark.airflow


@pytest.mark.parametrize(
    ("log", "uri"),
    [
        ("s3://lake/_streamsem/orders", "streamsem://s3/lake/_streamsem/orders"),
        ("s3://lake/a/", "streamsem://s3/lake/a"),
        ("/data/log", "streamsem://file/data/log"),
        ("file:///data//x/../log/", "streamsem://file/data/log"),
        ("/data/a b#c?d%e", "streamsem://file/data/a%20b%23c%3Fd%25e"),
        ("/data/é", "streamsem://file/data/%C3%A9"),
        ("memory://name", "streamsem://memory/name"),
    ],
)
def test_log_and_uri_are_converted_one_to_one(log: str, uri: str) -> None:
    assert log_uri(log) == uri
    assert log_uri(log_of(uri)) == uri
    assert normalise(urlsplit(uri)).geturl() == uri


def test_airflow_normalizes_all_forms_of_a_uri_to_one() -> None:
    from airflow.sdk import Asset

    for uri in ("streamsem://s3/lake/log", "streamsem://s3/lake/log/", "STREAMSEM://s3/lake/log//"):
        asset = Asset("orders", uri=uri)
        assert asset.uri == asset.normalized_uri == "streamsem://s3/lake/log"
    assert create_asset(log="s3://lake/log", extra={"a": 1}).uri == "streamsem://s3/lake/log"


@pytest.mark.parametrize(
    "uri",
    ["streamsem://s3", "streamsem://s3/", "streamsem://ftp/x/y", "streamsem://s3/lake/log?version=1", "streamsem:lake"],
)
def test_uri_without_a_log_is_refused_when_the_dag_is_parsed(uri: str) -> None:
    from airflow.sdk import Asset

    with pytest.raises(ValueError, match="Do:"):
        Asset("orders", uri=uri)


def test_uri_with_another_scheme_is_refused() -> None:
    with pytest.raises(InvalidError, match="commit log"):
        log_of("s3://lake/log")


def test_provider_registers_handler_factory_and_converter_with_airflow() -> None:
    try:
        from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime as ProvidersManager
    except ImportError:  # Airflow 3.1
        from airflow.providers_manager import ProvidersManager

    manager: Any = ProvidersManager()
    assert manager.asset_uri_handlers["streamsem"] is normalise
    assert manager.asset_factories["streamsem"] is create_asset
    assert manager.asset_to_openlineage_converters["streamsem"] is to_openlineage


@pytest.mark.parametrize(
    ("log", "namespace", "name"),
    [
        ("s3://lake/_streamsem/orders", "s3://lake", "_streamsem/orders"),
        ("s3://lake", "s3://lake", "/"),
        ("/data/log", "file", "/data/log"),
    ],
)
def test_openlineage_dataset_follows_the_naming_rules_of_openlineage(
    monkeypatch: pytest.MonkeyPatch, log: str, namespace: str, name: str
) -> None:
    from airflow.providers.common.compat.openlineage import facet

    monkeypatch.setattr(facet, "Dataset", lambda **arguments: arguments, raising=False)
    assert to_openlineage(create_asset(log=log), None) == {"namespace": namespace, "name": name}


def test_assets_module_imports_no_heavy_package() -> None:
    code = textwrap.dedent("""
        import sys
        import airflow_provider_streamsem.assets
        heavy = {"airflow", "pyspark", "boto3", "botocore", "pyarrow", "rich", "confluent_kafka"}
        print(sorted(heavy & set(sys.modules)))
    """)
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "[]\n"
