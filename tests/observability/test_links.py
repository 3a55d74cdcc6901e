"""Extra links of a task instance."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_streamsem import MicroBatchOperator
from airflow_provider_streamsem.get_provider_info import get_provider_info
from airflow_provider_streamsem.observability.links import BatchLink, SparkUiLink
from airflow_provider_streamsem.observability.observed import LOG_KEY
from airflow_provider_streamsem.web.addresses import pipeline_id
from tests.observability.conftest import Ti
from tests.pipeline_fixture import PipelineFixture
from tests.releases import serialization

pytestmark = pytest.mark.airflow


def link(cls: Any, operator: Any) -> str:
    url: str = cls().get_link(operator, ti_key=None)
    return url


def test_batch_link_is_the_page_of_the_web_view_if_the_deployment_sets_no_page(
    disk_fixture: PipelineFixture, execute: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    executed, _ = execute()
    page = f"/streamsem/#/pipelines/{pipeline_id(disk_fixture.store.url, '')}/versions/1"
    assert link(BatchLink, executed) == page
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/team/")
    assert link(BatchLink, executed) == f"https://airflow.example/team{page}"
    assert link(SparkUiLink, executed) == ""


def test_batch_link_is_the_pattern_filled_with_the_last_version(
    disk_fixture: PipelineFixture, execute: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "AIRFLOW__STREAMSEM__BATCH_URL", "https://x/{pipeline}/{version}?log={log}&bucket={bucket}&key={key}"
    )
    executed, _ = execute()
    outcome = executed.account.result.outcome
    assert link(BatchLink, executed) == "https://x/world/1?log={0}&bucket=&key={0}%2F{1}".format(
        str(disk_fixture.root / "log").replace("/", "%2F"), outcome.replace("/", "%2F")
    )
    cleared, _ = execute()
    assert link(BatchLink, cleared) == link(BatchLink, executed)


def test_batch_link_of_a_log_on_s3_has_bucket_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__STREAMSEM__BATCH_URL", "https://console/{bucket}?prefix={key}")
    result = SimpleNamespace(log="s3://lake/_streamsem/orders", version=3, outcome="log/9/x.c.json", pipeline="orders")
    operator = SimpleNamespace(account=SimpleNamespace(result=result))
    assert link(BatchLink, operator) == "https://console/lake?prefix=_streamsem%2Forders%2Flog%2F9%2Fx.c.json"


def test_spark_link_points_to_the_spark_ui_during_the_task_and_to_the_history_server_afterwards(
    execute: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__STREAMSEM__SPARK_HISTORY_URL", "http://history:18080/")
    executed, ti = execute()
    assert ti.pushed[1:] == [(SparkUiLink().xcom_key, "http://worker:4040")]
    assert link(SparkUiLink, executed) == "http://history:18080/history/local-1/jobs/"


def test_run_names_its_log_for_the_web_view(disk_fixture: PipelineFixture, execute: Callable[..., Any]) -> None:
    _, ti = execute()
    assert ti.pushed[0] == (
        LOG_KEY,
        {"pipeline": "world", "log": disk_fixture.store.url, "conn_id": ""},
    )


def test_operators_that_did_not_run_have_no_links(
    disk_fixture: PipelineFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__STREAMSEM__BATCH_URL", "https://x/{version}")
    executed = MicroBatchOperator(task_id="t", pipeline=disk_fixture.pipeline())
    assert (link(BatchLink, executed), link(SparkUiLink, executed)) == ("", "")


def test_task_that_cannot_push_its_link_still_commits(
    disk_fixture: PipelineFixture, execute: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Any, key: str, value: Any) -> None:
        raise ConnectionError("no API server")

    monkeypatch.setattr(Ti, "xcom_push", refuse)
    executed, _ = execute()
    assert executed.account.result.status == "committed"
    disk_fixture.check()


def test_links_and_settings_are_registered_under_the_names_that_the_code_uses() -> None:
    from airflow.sdk import DAG

    info = get_provider_info()
    assert info["extra-links"] == [f"{cls.__module__}.{cls.__qualname__}" for cls in (BatchLink, SparkUiLink)]
    assert {"batch_url", "spark_history_url"} <= set(info["config"]["streamsem"]["options"])
    with DAG("d", schedule=None) as dag:
        MicroBatchOperator(task_id="plain", pipeline="p.toml")
        MicroBatchOperator.partial(task_id="mapped").expand(pipeline=["p.toml", "q.toml"])
    for task in serialization().to_dict(dag)["dag"]["tasks"]:
        assert task["__var"]["_operator_extra_links"] == {"Batch": "_link_BatchLink", "Spark UI": "_link_SparkUiLink"}
