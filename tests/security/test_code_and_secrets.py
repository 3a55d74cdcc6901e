"""Code in a spec, a connection, a catalog or a table is refused, and no secret is stored in a spec."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import lazy_object_proxy
import pytest

from airflow_provider_streamsem import (
    AmqpQueue,
    FilesSink,
    FilesSource,
    HttpSink,
    IcebergSink,
    KafkaSource,
    Pipeline,
    QueueSource,
    SqsQueue,
    load_pipeline,
)
from airflow_provider_streamsem.connections import Connection, use_resolver
from airflow_provider_streamsem.connectors.parsing.decoders import Avro
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.operators.micro_batch import MicroBatchOperator
from airflow_provider_streamsem.secret_names import secret_settings
from airflow_provider_streamsem.spark.spark_engine import SparkEngine

SECRET = "5ecret"


class Loaded:
    """Records each time that pyiceberg imports and calls it."""

    calls: ClassVar[list[Any]] = []

    def __init__(self, properties: Any) -> None:
        self.calls.append(properties)


AVRO = '{"type": "record", "name": "r", "fields": []}'


# --- code


@pytest.mark.parametrize(
    "name",
    [
        "py-io-impl",
        "py-catalog-impl",
        "Py-IO-Impl",
        "s3.retry-strategy-impl",
        "write.py-location-provider.impl",
        "auth",
        "auth.impl",
        "gcs.session-kwargs",
        "unheard-of",
    ],
)
def test_iceberg_property_that_names_code_is_refused_in_specs_and_connections(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidError, match="may load code"):
        IcebergSink(str(tmp_path), "a.b", properties={"type": "sql", "uri": "sqlite://", name: "subprocess.Popen"})
    sink = IcebergSink(str(tmp_path), "a.b", conn_id="lake")
    connection = Connection(conn_id="lake", extra={"type": "sql", "uri": "sqlite://", name: "subprocess.Popen"})
    with use_resolver(lambda conn_id: connection), pytest.raises(InvalidError, match="may load code"):
        sink.marker("u", "s")


@pytest.mark.parametrize(
    "uri", ["mssql+pyodbc:///?odbc_connect=DRIVER%3D/tmp/x.so", "sqlite:///a?plugin=p", "mysql+pymysql://h/d?read_default_file=/x"]
)  # fmt: skip
def test_database_url_of_an_iceberg_catalog_with_settings_that_load_code_is_refused(tmp_path: Path, uri: str) -> None:
    with pytest.raises(InvalidError, match="database driver"):
        IcebergSink(str(tmp_path), "a.b", properties={"type": "sql", "uri": uri})


def test_ordinary_iceberg_properties_are_accepted(tmp_path: Path) -> None:
    for properties in (
        {
            "type": "rest",
            "uri": "https://c.example.com?x=1",
            "warehouse": "w",
            "header.X-Iceberg-Access-Delegation": "vended-credentials",
        },
        {
            "type": "glue",
            "glue.region": "eu-west-1",
            "client.role-arn": "arn:aws:iam::1:role/x",
            "s3.endpoint": "http://s3",
        },
        {"type": "hive", "uri": "thrift://a:9083,thrift://b:9083", "hive.kerberos-authentication": "true"},
        {"type": "sql", "uri": "postgresql+psycopg2://db/catalog?sslmode=require", "pool_pre_ping": "true"},
        {"oauth2-server-uri": "https://c.example.com/token", "rest.sigv4-enabled": "true", "scope": "x"},
    ):
        IcebergSink(str(tmp_path), "a.b", properties=properties)


def test_code_named_by_a_table_or_a_catalog_server_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.schema import Schema

    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    for name in ("py-io-impl", "s3.retry-strategy-impl", "write.py-location-provider.impl"):
        table = f"lake.{name.replace('.', '_')}"
        with SqlCatalog("default", **properties) as catalog:
            catalog.create_namespace_if_not_exists("lake")
            catalog.create_table(table, Schema(), location=str(tmp_path / name))
        (metadata,) = (tmp_path / name / "metadata").glob(
            "*.json"
        )  # if pyiceberg set the property, it would load the code here
        written = json.loads(metadata.read_text())
        metadata.write_text(json.dumps({**written, "properties": {name: f"{__name__}.Loaded"}}))
        with pytest.raises(InvalidError, match="names code"):
            IcebergSink(str(tmp_path / name), table, properties=properties).marker("u", "s")

    class CodeServingCatalog(SqlCatalog):
        def __init__(self, name: str, **given: str) -> None:
            super().__init__(name, **{**given, "py-io-impl": f"{__name__}.Loaded"})

    monkeypatch.setattr("pyiceberg.catalog.load_catalog", CodeServingCatalog)
    with pytest.raises(InvalidError, match="server names code"):
        IcebergSink(str(tmp_path), "a.b", properties=properties).marker("u", "s")
    assert Loaded.calls == []


# --- secrets


def pipeline(**changes: Any) -> Pipeline:
    values: dict[str, Any] = {
        "name": "p",
        "log": "/logs/p",
        "source": FilesSource(path="/in", format="text"),
        "sinks": {"out": FilesSink("/out")},
    }
    return Pipeline(**{**values, **changes})


SPECS_WITH_SECRETS: dict[str, Any] = {
    "api key in a URL": lambda: {"sinks": {"x": HttpSink("/staged", url=f"https://h/x?api_key={SECRET}")}},
    "api key in a URL with an invalid port": lambda: {"sinks": {"x": HttpSink("/staged", url=f"https://h:99999/x?api_key={SECRET}")}},
    "api key in a URL with a space": lambda: {"sinks": {"x": HttpSink("/staged", url=f"https://h/x y?api_key={SECRET}")}},
    "api key in an endpoint of a URL": lambda: {"sinks": {"x": HttpSink("/staged", url="https://h", endpoint=f"/x?api_key={SECRET}")}},
    "password and token in a URL": lambda: {"sinks": {"x": HttpSink("/staged", conn_id="c", endpoint=f"u:p@h x?token={SECRET}")}},
    "token in an endpoint": lambda: {"sinks": {"x": HttpSink("/staged", conn_id="c", endpoint=f"/x?token={SECRET}")}},
    "SAS token": lambda: {"sinks": {"x": HttpSink("/staged", url=f"https://a.blob.core.windows.net/c?sv=1&sig={SECRET}")}},
    "signed URL": lambda: {"sinks": {"x": HttpSink("/staged", url=f"https://b/k?X-Amz-Signature={SECRET}")}},
    "queue": lambda: {"source": QueueSource(queue=SqsQueue(url=f"https://q/1/x?password={SECRET}"), landing="/l", format="text")},
    "registry": lambda: {
        "source": KafkaSource(topics=["t"], bootstrap_servers="b:1", value=Avro(AVRO, registry=f"https://r/?apikey={SECRET}"))
    },
    "header": lambda: {"sinks": {"x": IcebergSink("/t", "a.b", properties={"header.X-Api-Key": SECRET})}},
    "cookie": lambda: {"sinks": {"x": IcebergSink("/t", "a.b", properties={"header.Cookie": SECRET})}},
    "database": lambda: {"sinks": {"x": IcebergSink("/t", "a.b", properties={"uri": f"postgresql://db/c?password={SECRET}"})}},
    "sas property": lambda: {"sinks": {"x": IcebergSink("/t", "a.b", properties={"adls.sas-token": SECRET})}},
}  # fmt: skip


@pytest.mark.parametrize("name", SPECS_WITH_SECRETS)
def test_secret_in_a_spec_is_refused_and_not_in_the_error(name: str) -> None:
    with pytest.raises(InvalidError) as raised:
        pipeline(**SPECS_WITH_SECRETS[name]())
    assert SECRET not in str(raised.value)


def test_values_that_only_resemble_secrets_are_accepted() -> None:
    pipeline(where="url like 'https://h/?token=x%'")
    pipeline(sinks={"token": HttpSink("/staged", url="https://h/x?version=2", key_header="X-Api-Key")})
    pipeline(sinks={"x": IcebergSink("/t", "a.b", properties={"oauth2-server-uri": "https://h/oauth/token"})})
    pipeline(source=FilesSource(path="/in", format="json", schema="token string, password string"))
    pipeline(source=QueueSource(queue=AmqpQueue(name="password", conn_id="c"), landing="/l", format="text"))


@pytest.mark.parametrize(
    "template",
    [
        "{{ conn.x.password }}",
        "{{ var.value.x }}",
        "{{var.json['x'].y}}",
        "{% set c = conn.get('x') %}{{ c.host }}",
        "{{ run_id ~ conn['x'].login }}",
        "{{ ti.get_template_context()['var'].value.x }}",
        "{{ task_instance['get_template_context']()['conn'] }}",
        "{{ (ti | attr('get_template_context'))() }}",
        "{% set t = ti %}{{ t.get_template_context()['var'] }}",
        "{{ ti.xcom_pull(task_ids='x') }}",
        "{{ task.dag.user_defined_macros }}",
        "{{ dag_run.get_task_instance('t') }}",
        "{{ macros.uuid.os.environ['AIRFLOW_CONN_X'] }}",
        "{{ macros['js' ~ 'on'].codecs }}",
        "{{ self._TemplateReference__context['var'] }}",
        "{{ params['_x'] }}",
        "{% for x in [ti] %}{{ x.get_template_context() }}{% endfor %}",
        "{{ [ti] | map(attribute='get_template_context') }}",
    ],
)
def test_template_that_reads_connections_or_variables_is_refused_when_the_dag_is_parsed(
    tmp_path: Path, template: str
) -> None:
    templated = pipeline(sinks={"out": FilesSink(f"/out/{template}")})
    with pytest.raises(InvalidError, match="must not read connections"):
        MicroBatchOperator(task_id="t", pipeline=templated)
    file = tmp_path / "p.toml"
    text = """name = "p"\nlog = "/logs/p"\n[source]\ntype = "files"\npath = "/in/%s"\nformat = "text"\n[sinks.out]\ntype = "files"\npath = '/out'\n"""
    file.write_text(text % template.replace('"', "'"))
    assert load_pipeline(str(file))
    with pytest.raises(InvalidError, match="must not read connections"):
        MicroBatchOperator(task_id="t", pipeline=str(file))


def test_templates_of_run_values_are_accepted_and_invalid_ones_are_reported() -> None:
    for text in (
        "{{ ds }}/{{ params.region }}",
        "{{ ti.try_number }}/{{ task_instance.map_index }}/{{ dag.dag_id }}/{{ task.task_id }}",
        "{{ dag_run.conf['x'] }}/{{ dag_run.conf.get('y') }}/{{ dag_run.run_id }}/{{ (data_interval_end or dag_run.run_after) }}",
        "{{ macros.ds_add(ds, 7) }}/{{ (logical_date + macros.timedelta(days=1)).strftime('%Y') }}/{{ ds | replace('-', '') }}",
    ):
        MicroBatchOperator(task_id="t", pipeline=pipeline(sinks={"out": FilesSink(f"/out/{text}")}))
    with pytest.raises(InvalidError, match="not valid Jinja"):
        MicroBatchOperator(task_id="t", pipeline=pipeline(sinks={"out": FilesSink("/out/{{ ds }")}))


@pytest.mark.parametrize("name", ["params.user", "dag_run.conf['x']", "run_id", "ds", "data_interval_end"])
def test_predicate_with_a_template_is_refused(name: str) -> None:
    with pytest.raises(InvalidError, match="`where` contains a template"):
        MicroBatchOperator(task_id="t", pipeline=pipeline(where="user = '{{ " + name + " }}'"))


@pytest.mark.parametrize(
    "text",
    ["{{ 'a' ~ day }}", "{{ day | string }}", "{{ n + day }}", "{{ 1 // n }}", "{{ nowhere }}", "{{ nowhere.x }}"],
)
def test_template_that_fails_or_hides_a_missing_value_stops_the_run(text: str) -> None:
    from jinja2 import Environment

    from airflow_provider_streamsem.pipeline.spec.templates import rendered

    templated = pipeline(sinks={"out": FilesSink(f"/out/{text}")})
    with pytest.raises(InvalidError, match="has no value in this run"):
        rendered(templated, Environment(), {"day": None, "n": 0}, where="w")


def test_templates_are_checked_with_the_delimiters_that_render_them() -> None:
    from jinja2 import Environment

    from airflow_provider_streamsem.pipeline.spec.templates import rendered

    templated = pipeline(sinks={"out": FilesSink("/out/<< var.p >>/{{ ds }}")})
    with pytest.raises(InvalidError, match="must not read connections"):
        rendered(templated, Environment(variable_start_string="<<", variable_end_string=">>"), {"var": {}}, where="w")


@pytest.mark.parametrize("value", [None, lazy_object_proxy.Proxy(lambda: None)])
def test_template_without_a_value_in_this_run_stops_the_run(value: object) -> None:
    from jinja2 import Environment, StrictUndefined

    from airflow_provider_streamsem.pipeline.spec.templates import rendered

    templated = pipeline(sinks={"out": FilesSink("/out/{{ prev_data_interval_end_success }}")})
    with pytest.raises(InvalidError, match="has no value in this run"):
        rendered(templated, Environment(), {"prev_data_interval_end_success": value}, where="w")
    with pytest.raises(InvalidError, match="has no value in this run") as caught:
        rendered(templated, Environment(undefined=StrictUndefined), {}, where="w")
    assert "prev_data_interval_end_success" in caught.value.fields["problem"]


def test_spec_of_a_template_is_the_same_in_every_rendering() -> None:
    from jinja2 import Environment

    from airflow_provider_streamsem.pipeline.spec.templates import rendered

    templated = pipeline(sinks={"out": FilesSink("/out/{{ ds }}")})
    once, again = (rendered(templated, Environment(), {"ds": "d"}, where="w") for _ in range(2))
    assert once.spec_sha256 == again.spec_sha256 == pipeline(sinks={"out": FilesSink("/out/d")}).spec_sha256


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.hadoop.fs.s3a.secret.key", "x"),
        ("spark.hadoop.fs.s3a.session.token", "x"),
        ("spark.hadoop.fs.s3a.encryption.key", "x"),
        ("spark.hadoop.fs.azure.account.key.acct.dfs.core.windows.net", "x"),
        ("spark.hadoop.fs.azure.account.oauth2.client.secret.acct.dfs.core.windows.net", "x"),
        ("spark.hadoop.fs.azure.sas.fixed.token.acct.dfs.core.windows.net", "x"),
        ("spark.hadoop.fs.azure.sas.container.acct.blob.core.windows.net", "x"),
        ("spark.yarn.appMasterEnv.DB_PASS", "x"),
        ("spark.authenticate.secret", "x"),
        ("spark.ssl.keyStorePassword", "x"),
        ("spark.driver.extraJavaOptions", "-Xmx1g -Djavax.net.ssl.trustStorePassword=x"),
        ("spark.jars.repositories", "https://user:x@jars.example/maven"),
        ("spark.mongodb.read.connection.uri", "mongodb://app:x@db/y"),
        ("spark.sql.catalog.c.uri", "jdbc:postgresql://h/db?user=u&password=x"),
        ("spark.any", "jdbc:sqlserver://h;user=u;password=x"),
        ("spark.any", "jdbc:postgresql://u:x@h/db"),
        ("spark.sql.catalog.c.header.Authorization", "Basic x"),
        ("spark.executorEnv.AZURE_STORAGE_CONNECTION_STRING", "x"),
        ("spark.redis.auth", "x"),
        ("spark.driver.extraJavaOptions", "-Ddb.pass=x"),
        ("spark.kafka.sasl.jaas.config", 'org.example.Module required username="u" password="x";'),
    ],
)
def test_spark_setting_with_a_secret_is_detected(name: str, value: str) -> None:
    assert secret_settings({name: value, "spark.ui.enabled": "false"}) == [name]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.kubernetes.driver.secretKeyRef.AWS_SECRET_ACCESS_KEY", "aws:secret"),
        ("spark.kubernetes.executor.secrets.spark-secret", "/etc/secrets"),
        ("spark.hadoop.fs.s3a.aws.credentials.provider", "org.example.Provider"),
        ("spark.hadoop.fs.s3a.delegation.token.binding", "org.example.Binding"),
        ("spark.hadoop.fs.azure.account.oauth.provider.type.acct.dfs.core.windows.net", "org.example.Provider"),
        (
            "spark.hadoop.fs.azure.account.oauth2.client.endpoint.acct.dfs.core.windows.net",
            "https://login/oauth2/token",
        ),
        ("spark.security.credentials.hive.enabled", "false"),
        ("spark.sql.shuffle.partitions", "2"),
        ("spark.driver.extraJavaOptions", "-Duser.timezone=UTC"),
    ],
)
def test_spark_setting_without_a_secret_is_accepted(name: str, value: str) -> None:
    assert secret_settings({name: value}) == []


SESSION = """
import pathlib, sys
from airflow_provider_streamsem import FilesSink, FilesSource, Pipeline, run_batch
from airflow_provider_streamsem.spark.spark_engine import SparkEngine

root = pathlib.Path(sys.argv[1])
(root / "in").mkdir()
(root / "in" / "a.txt").write_text("x")

def record_settings(frame):
    spark = frame.sparkSession
    pid = spark.sparkContext._gateway.proc.pid
    (root / "cmdline").write_bytes(pathlib.Path(f"/proc/{pid}/cmdline").read_bytes())
    (root / "setting").write_text(spark._jsparkSession.sessionState().newHadoopConf().get("fs.s3a.secret.key"))
    return frame

pipeline = Pipeline(
    name="p", log=f"{root}/log", source=FilesSource(path=f"{root}/in", format="text"), sinks={"out": FilesSink(f"{root}/out")}, transform=record_settings
)
run_batch(pipeline, run_key="r", engine=SparkEngine(master="local[1]", conf={"spark.hadoop.fs.s3a.secret.key": "hush", "spark.ui.enabled": "false"}))
"""


@pytest.mark.spark
def test_secret_setting_is_passed_to_hadoop_and_not_on_a_command_line(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", SESSION, str(tmp_path)], capture_output=True, text=True, timeout=200, check=False
    )
    assert process.returncode == 0, process.stderr[-3000:]
    assert b"spark.ui.enabled=false" in (tmp_path / "cmdline").read_bytes()
    assert b"hush" not in (tmp_path / "cmdline").read_bytes()
    assert (tmp_path / "setting").read_text() == "hush"
    assert "hush" not in process.stdout + process.stderr


def test_secret_that_requires_a_command_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "getActiveSession", classmethod(lambda cls: None))
    with pytest.raises(InvalidError, match=r"given=\['spark.authenticate.secret'\].*spark-defaults.conf") as refused:
        SparkEngine(conf={"spark.authenticate.secret": "hush"}).session()
    assert "hush" not in str(refused.value)
