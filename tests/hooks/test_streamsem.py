"""The connection type `streamsem`: where logs are stored, how S3 is reached, and that its secrets appear nowhere else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import FilesSource, Pipeline, open_log, run_batch, verify
from airflow_provider_streamsem.commitlog.log import commit_log_at
from airflow_provider_streamsem.connections import Connection, use_resolver
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.spec.binding import bind
from airflow_provider_streamsem.pipeline.spec.location import access, located, root
from airflow_provider_streamsem.readers.conditions import Freshness
from airflow_provider_streamsem.readers.lag import lag
from airflow_provider_streamsem.readers.waiting import waiting
from airflow_provider_streamsem.stores import s3
from airflow_provider_streamsem.stores.contract import open_store
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.s3 import environment, s3_server
from tests.pipeline_fixture import PipelineFixture
from tests.releases import since

pytestmark = pytest.mark.airflow
SECRET = "the-secret-of-the-aws-connection"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Start an S3 server that only the connections name. Its objects survive from test to test, so each test uses a separate root."""
    with s3_server(bucket="lake") as address:
        monkeypatch.setenv("NO_PROXY", environment(address)["NO_PROXY"])
        aws = {"conn_type": "aws", "login": "testing", "password": SECRET, "extra": {"region_name": "us-east-1"}}
        monkeypatch.setenv("AIRFLOW_CONN_MY_AWS", json.dumps(aws))
        extra = {"aws_conn_id": "my_aws", "endpoint_url": address}
        logs = {"conn_type": "streamsem", "host": f"s3://lake/{tmp_path.name}/", "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_MY_LOGS", json.dumps(logs))
        yield address


@pytest.fixture
def fixture(tmp_path: Path) -> PipelineFixture:
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(3)
    return fixture


def on_connection(fixture: PipelineFixture, **changes: Any) -> Pipeline:
    return fixture.pipeline(log="", log_conn_id="my_logs", **changes)


def test_log_is_stored_below_the_root_of_its_connection_and_records_its_location_only(
    fixture: PipelineFixture, endpoint: str
) -> None:
    pipeline = on_connection(fixture)
    result = run_batch(pipeline, run_key="r", drain=True, engine=RowsEngine())
    assert (result.log, result.counts["read"]) == (f"s3://lake/{fixture.root.name}/world", 9)
    assert run_batch(pipeline, run_key="r", drain=True, engine=RowsEngine()) == result
    assert verify(pipeline).clean
    assert lag(pipeline).lag == 0
    with located(pipeline):
        opened = open_log(f"s3://lake/{fixture.root.name}/world")
        stored = json.loads(opened.log.read_spec(opened.record.spec))
        assert stored["log"] == f"s3://lake/{fixture.root.name}/world"
        texts = [opened.log.store.read(stat.key) or b"" for stat in opened.log.store.list("")]
    assert "log_conn_id" not in stored
    assert all(SECRET.encode() not in text and b"my_logs" not in text for text in texts)


def test_s3_is_reached_through_the_connection_only_while_the_pipeline_uses_its_log(
    fixture: PipelineFixture, endpoint: str
) -> None:
    before = s3.access()
    with located(on_connection(fixture)) as located_pipeline:
        assert located_pipeline.log_conn_id is None
        assert s3.access().endpoint_url == endpoint
        assert SECRET not in repr(s3.access())
    assert s3.access() == before


def test_inspection_of_a_source_on_s3_uses_the_connection_until_its_end(
    fixture: PipelineFixture, endpoint: str
) -> None:
    location = f"s3://lake/{fixture.root.name}-in"
    pipeline = on_connection(fixture, source=FilesSource(path=location, format="json", schema="id long"))
    with located(pipeline):
        for name in ("a.json", "b.json"):
            assert open_store(location).create(name, b'{"id": 1}\n')
    assert Freshness(pipeline=pipeline, max_lag=0, max_age_s=3600).check().observed["lag"] == 2
    assert waiting(pipeline).lag == lag_of_new_log(pipeline) == 2


def lag_of_new_log(pipeline: Pipeline) -> int:
    """Return the lag by the function that needs a log. The log is created."""
    with located(pipeline) as located_pipeline:
        bind(located_pipeline, commit_log_at(located_pipeline.log))
    return lag(pipeline).lag


def test_connection_is_tested_by_the_doctor(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_provider_streamsem.hooks.streamsem import StreamsemHook

    passed, detail = StreamsemHook("my_logs").test_connection()
    assert passed, detail
    assert "create-if-absent" in detail
    extra = {"aws_conn_id": "my_aws", "endpoint_url": endpoint}
    nowhere = {"conn_type": "streamsem", "host": "s3://no-such-bucket/x", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_NO_BUCKET", json.dumps(nowhere))
    passed, detail = StreamsemHook("no_bucket").test_connection()
    assert not passed
    assert "NoSuchBucket" in detail
    assert SECRET not in detail


def test_connection_of_the_metadata_database_is_found_outside_of_tasks() -> None:
    """This is the API server's case. Its *Test connection* resolves the connection that another one names."""
    from airflow.models.connection import Connection as StoredConnection
    from airflow.utils.session import create_session

    from airflow_provider_streamsem.testing.dag_runs import initialise_airflow

    initialise_airflow()
    with create_session() as session:
        session.add(StoredConnection(conn_id="kept", conn_type="streamsem", host="/logs"))
    code = "from airflow_provider_streamsem.hooks.connections import airflow_connection; print(airflow_connection('kept').host)"
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "_AIRFLOW_PROCESS_CONTEXT": "server"}, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert process.stdout.splitlines()[-1:] == ["/logs"], process.stderr[-2000:]


def test_airflow_finds_the_connection_type() -> None:
    from airflow.providers_manager import ProvidersManager

    manager = ProvidersManager()
    hook = manager.hooks["streamsem"]
    assert hook is not None
    assert (hook.hook_name, hook.connection_id_attribute_name) == ("Streamsem", "log_conn_id")


@since("3.2", "connection forms of the fields that a provider names")
def test_airflow_shows_the_fields_of_the_connection_type() -> None:
    from airflow.providers_manager import ProvidersManager

    manager = ProvidersManager()
    widgets = [name for name in manager.connection_form_widgets if "streamsem" in name]
    assert {name.rpartition("__")[2] for name in widgets} >= {"aws_conn_id", "endpoint_url", "region_name"}


def log_connection(conn_type: str = "streamsem", host: str = "s3://lake/logs", **extra: Any) -> Connection:
    return Connection(conn_id="c", conn_type=conn_type, host=host, extra=extra)


@pytest.mark.parametrize(
    ("connection", "message"),
    [
        (log_connection(conn_type="aws"), "of type streamsem"),
        (log_connection(host=""), "must have the root"),
        (log_connection(aws_conn_id="other"), "of type aws"),
        (log_connection(aws_conn_id="role"), "does not support"),
    ],
)
def test_connections_that_cannot_store_a_log_are_reported(connection: Connection, message: str) -> None:
    connections = {
        "other": Connection(conn_id="other", conn_type="http"),
        "role": Connection(conn_id="role", conn_type="aws", extra={"role_arn": "arn:aws:iam::1:role/x"}),
    }
    with use_resolver(connections.__getitem__), pytest.raises(InvalidError, match=message):
        _ = (access(connection), root(connection))


def test_settings_of_the_connection_override_those_of_its_aws_connection() -> None:
    extra = {
        "region_name": "eu-west-1", "endpoint_url": "http://a", "service_config": {"s3": {"endpoint_url": "http://b"}},
        "aws_session_token": "t",
    }  # fmt: skip
    aws = Connection(conn_id="a", conn_type="aws", login="k", password="s", extra=extra)
    with use_resolver(lambda conn_id: aws):
        assert access(log_connection(aws_conn_id="a")) == s3.S3Access(
            endpoint_url="http://b",
            region_name="eu-west-1",
            access_key_id="k",
            secret_access_key="s",
            session_token="t",
        )
        assert (
            access(log_connection(aws_conn_id="a", endpoint_url="http://c", region_name="r")).endpoint_url == "http://c"
        )


@pytest.mark.parametrize("log", [{"log": "", "log_conn_id": None}, {"log": "/x", "log_conn_id": "c"}])
def test_pipeline_has_exactly_one_of_log_and_connection(fixture: PipelineFixture, log: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match="exactly one"):
        fixture.pipeline(**log)


def test_source_and_log_of_a_toml_file_use_the_connection(
    fixture: PipelineFixture, endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from airflow_provider_streamsem.cli.main import main

    run_batch(on_connection(fixture), run_key="r", engine=RowsEngine())
    path = fixture.root / "p.toml"
    path.write_text(
        f'name = "world"\nlog_conn_id = "my_logs"\n[source]\ntype = "files"\npath = "{fixture.root}/in"\nformat = "json"\n'
        f'schema = "id long"\n[sinks.out]\ntype = "files"\npath = "{fixture.root}/out"\nformat = "json"\n'
    )
    for command in (["log"], ["verify"], ["lag"], ["vacuum", "--dry-run"], ["show", "0"], ["files"], ["doctor"]):
        assert main([command[0], str(path), *command[1:], "--json"]) == 0
        assert SECRET not in capsys.readouterr().out
    assert isinstance(on_connection(fixture).source, FilesSource)
