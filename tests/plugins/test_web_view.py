"""The web view in Airflow's API server: users see the pipelines of the DAGs that they may read, and nobody else sees anything."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.sdk import DAG, BaseOperator
from fastapi.testclient import TestClient

from airflow_provider_streamsem import FilesSink, FilesSource, Pipeline, actions_dag
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.hooks import settings
from airflow_provider_streamsem.observability.observed import LOG_KEY
from airflow_provider_streamsem.testing.dag_runs import initialise_airflow, run_dag
from airflow_provider_streamsem.web.pipelines import ServedLog
from tests.releases import since, store_dag
from tests.rows_operator import RunsRows

pytestmark = pytest.mark.airflow


class NamesLog(BaseOperator):
    """Pushes a value as the name of its log."""

    def __init__(self, *, value: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.value = value

    def execute(self, context: Any) -> None:
        context["ti"].xcom_push(key=LOG_KEY, value=self.value)


class PerDagAuthManager(SimpleAuthManager):
    """Users named ``orders`` may read only the DAG ``orders``, and so on. Users named ``all`` may read every DAG."""

    def is_authorized_dag(self, *, user: Any, details: Any = None, **others: Any) -> bool:
        is_own = user.username == "all" or (details is not None and details.id == user.username)
        return is_own and super().is_authorized_dag(user=user, details=details, **others)


def run(dag: Any) -> None:
    store_dag(dag, __file__)
    assert run_dag(dag, "first").state == "success"


@pytest.fixture(scope="module")
def dags(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The DAGs ``orders`` and ``payments`` have run a pipeline each. The DAG ``forger`` has named their logs, and other values."""
    initialise_airflow()
    root = tmp_path_factory.mktemp("dags")
    for name in ("orders", "payments"):
        (root / name / "in").mkdir(parents=True)
        (root / name / "in" / "a.json").write_text('{"id": 1}\n')
        pipeline = Pipeline(
            name=name, log=str(root / name / "log"), source=FilesSource(path=str(root / name / "in"), format="json", schema="id long"),
            sinks={"out": FilesSink(path=str(root / name / "out"), format="json")},
        )  # fmt: skip
        with DAG(name, schedule=None) as dag:
            RunsRows(task_id="load", pipeline=pipeline)
        run(dag)
        store_dag(actions_dag(pipeline), __file__)
    named = {"pipeline": "own", "conn_id": ""}
    values = [
        {**named, "log": str(root / "payments" / "log")},
        {**named, "log": str(root / "no-log")},
        {**named, "log": "s3://a b/c"},
        {**named, "log": str(root / "orders" / "log"), "conn_id": "no-connection"},
        {**named, "log": 1},
        "[" * 100_000,
    ]
    with DAG("forger", schedule=None) as dag:
        for number, value in enumerate(values):
            NamesLog(task_id=f"t{number}", value=value)
    run(dag)
    return root


@pytest.fixture
def server(dags: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Airflow's API server with this provider."""
    from airflow.api_fastapi.app import create_app, purge_cached_app

    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "0" * 64)
    monkeypatch.setenv("AIRFLOW__CORE__AUTH_MANAGER", f"{__name__}.PerDagAuthManager")
    purge_cached_app()
    yield create_app(apps="core")
    purge_cached_app()


def client_of(server: Any, user: str | None, role: str | None = "VIEWER") -> TestClient:
    from airflow.api_fastapi.app import get_auth_manager

    client = TestClient(server)
    if user is not None:
        token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=user, role=role))
        client.cookies.set("_token", token)
    return client


def pipelines(client: TestClient) -> list[dict[str, Any]]:
    response = client.get("/streamsem/api/pipelines")
    assert response.status_code == 200, response.text
    return response.json()


def names(client: TestClient) -> list[str]:
    return [pipeline["name"] for pipeline in pipelines(client) if pipeline["problem"] is None]


def test_users_see_the_pipelines_of_the_dags_that_they_may_read(server: Any) -> None:
    assert names(client_of(server, "all")) == ["orders", "payments"]
    orders = client_of(server, "orders")
    (pipeline,) = orders.get("/streamsem/api/pipelines").json()
    assert (pipeline["name"], pipeline["tasks"]) == ("orders", [{"dag_id": "orders", "task_id": "load"}])
    assert pipeline["newest"][0]["counts"]["written.out"] == 1
    assert names(client_of(server, "another")) == []


@pytest.mark.parametrize(
    "path", ["", "/versions", "/versions/0", "/versions/0/quarantine", "/comparison?older=0&newer=1"]
)
def test_pipeline_of_another_dag_is_not_found(server: Any, path: str) -> None:
    every = {p["name"]: p["id"] for p in pipelines(client_of(server, "all")) if p["problem"] is None}
    orders = client_of(server, "orders")
    own = orders.get(f"/streamsem/api/pipelines/{every['orders']}{path}").status_code
    assert own == {"/versions/0/quarantine": 403, "/comparison?older=0&newer=1": 404}.get(path, 200), (
        "records are hidden"
    )
    assert orders.get(f"/streamsem/api/pipelines/{every['payments']}{path}").status_code == 404


@pytest.mark.parametrize(
    "path",
    ["/", "/index.html", "/none", "/api/settings", "/api/pipelines", "/api/pipelines/x", "/api/pipelines/x/versions"],
)
def test_request_without_a_valid_token_is_refused(server: Any, path: str) -> None:
    assert client_of(server, None).get(f"/streamsem{path}").status_code == 401
    forged = client_of(server, None)
    forged.cookies.set("_token", "forged")
    assert forged.get(f"/streamsem{path}").status_code == 403


@pytest.mark.parametrize(("role", "may_run"), [("VIEWER", False), ("USER", True), ("OP", True), ("ADMIN", True)])
def test_actions_are_offered_to_users_who_may_trigger_their_dag(server: Any, role: str, may_run: bool) -> None:
    actions = {p["name"]: p["actions"] for p in pipelines(client_of(server, "all", role)) if p["problem"] is None}
    assert actions == {
        name: [{"dag_id": f"{name}_actions", "may_run": may_run, "is_paused": False}] for name in ("orders", "payments")
    }
    response = client_of(server, "all", role).post(
        "/api/v2/dags/orders_actions/dagRuns", json={"logical_date": None, "conf": {"action": "verify"}}
    )
    assert response.status_code == (200 if may_run else 403)


@pytest.mark.parametrize(
    ("conf", "status"),
    [
        ({"keep_versions": 1, "keep_days": 0}, 200),
        ({"keep_versions": 0}, 400),
        ({"keep_versions": "1"}, 400),
        ({"keep_versions": 1, "keep_days": 36_501}, 400),
    ],
)
def test_run_that_keeps_an_invalid_number_of_versions_or_days_is_not_started(
    server: Any, conf: dict[str, Any], status: int
) -> None:
    response = client_of(server, "all", "OP").post(
        "/api/v2/dags/orders_actions/dagRuns", json={"logical_date": None, "conf": {"action": "vacuum", **conf}}
    )
    assert response.status_code == status, response.text


def test_actions_of_a_dag_that_the_user_may_not_read_are_not_shown(server: Any) -> None:
    (pipeline,) = pipelines(client_of(server, "orders", "ADMIN"))
    assert (pipeline["name"], pipeline["actions"]) == ("orders", [])


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
def test_web_view_accepts_no_request_that_changes_something(server: Any, method: str) -> None:
    client = client_of(server, "all", "ADMIN")
    (pipeline, *_) = pipelines(client)
    for path in (
        "/",
        "/api/pipelines",
        f"/api/pipelines/{pipeline['id']}",
        f"/api/pipelines/{pipeline['id']}/versions/0",
    ):
        assert getattr(client, method)(f"/streamsem{path}").status_code == 405


@since("3.2", "teams")
def test_log_is_opened_with_the_connection_of_the_team_of_its_dag(dags: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.models.connection import Connection
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.team import Team
    from airflow.utils.session import create_session
    from sqlalchemy import delete, select

    from airflow_provider_streamsem.plugins import access

    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "True")
    host = str(dags / "orders")
    with create_session() as session:
        team = Team(name="blue")
        bundle = session.scalar(select(DagBundleModel).where(DagBundleModel.name == "dags-folder"))
        bundle.teams.append(team)
        session.flush()  # the connection refers to the team
        session.add(Connection(conn_id="lake", conn_type="streamsem", host=host, team_name="blue"))
    try:
        assert access._teams({"orders"}) == {"orders": "blue"}
        opened = ServedLog(f"{host}/log", access._store_access(f"{host}/log", "lake", "blue"))
        assert opened.history.opened.record.name == "orders"
        for log, team_name, message in (
            (f"{host}/log", None, "no connection"),
            (f"{dags}/payments/log", "blue", "not below the root"),
        ):
            with pytest.raises(InvalidError, match=message):
                assert ServedLog(log, access._store_access(log, "lake", team_name)).history
    finally:
        with create_session() as session:
            session.execute(delete(Connection).where(Connection.conn_id == "lake"))
            bundle = session.scalar(select(DagBundleModel).where(DagBundleModel.name == "dags-folder"))
            bundle.teams.clear()
            session.flush()
            session.execute(delete(Team))


def test_user_without_a_role_sees_no_pipeline(server: Any) -> None:
    assert names(client_of(server, "all", role=None)) == []


def test_airflow_shows_the_view_in_its_navigation_and_on_each_dag(server: Any) -> None:
    plugins = client_of(server, "all", role="ADMIN").get("/api/v2/plugins").json()["plugins"]
    (plugin,) = [plugin for plugin in plugins if plugin["name"] == "streamsem"]
    assert {view["destination"]: view["href"] for view in plugin["external_views"]} == {
        "nav": "streamsem/",
        "dag": "streamsem/#/dags/{DAG_ID}",
        "dag_run": "streamsem/#/dags/{DAG_ID}",
        "task_instance": "streamsem/#/dags/{DAG_ID}",
    }


def test_loading_the_plugin_imports_neither_the_application_nor_its_libraries() -> None:
    code = (
        "import sys; import airflow.plugins_manager; before = {*sys.modules}; import airflow_provider_streamsem.plugins.web_view; "
        "print(sorted(name for name in {*sys.modules} - before if name.split('.')[0] in ('boto3', 'pyspark', 'uvicorn') or name.endswith('.web.app')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "value",
    [
        '{"pipeline": "\\ud800", "log": "/log", "conn_id": ""}',
        {"pipeline": "p", "log": "/\ud800", "conn_id": ""},
        {"pipeline": "p", "log": "/" + "x" * 5_000, "conn_id": ""},
        {"pipeline": "p", "log": 1, "conn_id": ""},
        {"pipeline": "p", "log": "/log"},
        "[" * 100_000,
        "{",
        [],
        None,
    ],
    ids=range(9),
)
def test_value_that_no_run_has_named_is_ignored(value: Any) -> None:
    from airflow_provider_streamsem.plugins import access

    named = {"pipeline": "p", "log": "/log", "conn_id": ""}
    assert access._parsed(json.dumps(named)) == access._parsed(named) == named
    assert access._parsed(value) is None


@pytest.mark.parametrize(("value", "expected"), [("", 256), ("16", 16), ("1024", 1024)])
def test_memory_of_the_web_view_is_a_setting(monkeypatch: pytest.MonkeyPatch, value: str, expected: int) -> None:
    monkeypatch.setenv("AIRFLOW__STREAMSEM__WEB_MEMORY", value)
    assert settings.web_memory() == expected


@pytest.mark.parametrize("value", ["15", "-1", "1.5", "much", "9" * 30])
def test_invalid_memory_of_the_web_view_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("AIRFLOW__STREAMSEM__WEB_MEMORY", value)
    with pytest.raises(InvalidError, match="web_memory"):
        settings.web_memory()
