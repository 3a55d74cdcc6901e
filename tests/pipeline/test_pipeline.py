"""The pipeline spec: it is validated once, is the same from Python, TOML and the log, and each invalid argument gives one error that names it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_streamsem import (
    FilesSink,
    FilesSource,
    Limits,
    Pipeline,
    arguments,
    guarantee,
    load_pipeline,
    registry,
)
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.spec.pipeline import from_json, load_spark_conf

SOURCE = FilesSource(path="/data/in", format="csv", schema="id long", options={"header": "true"})
SINK = FilesSink(path="/data/out", partition_by=["day"])


def pipeline(**changes: Any) -> Pipeline:
    values: dict[str, Any] = {"name": "orders", "log": "s3://lake/log/orders", "source": SOURCE, "sinks": {"out": SINK}}
    return Pipeline(**{**values, **changes})


def transform(frame: Any) -> Any:
    return frame


INVALID_PIPELINES: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "name"), ({"name": "Orders"}, "name"), ({"name": 5}, "name"), ({"name": "x" * 65}, "name"),
    ({"log": ""}, "log"), ({"log": "orders"}, "location"), ({"log": None}, "log"), ({"log": "ftp://x"}, "accepted"),
    ({"source": "files"}, "sources"), ({"source": None}, "sources"),
    ({"sinks": {}}, "sinks"), ({"sinks": [SINK]}, "sinks"), ({"sinks": {"Out": SINK}}, "sink name"), ({"sinks": {"out": "x"}}, "sinks"),
    ({"sinks": {"out": FilesSink(path="/data/out"), "two": FilesSink(path="/data/out/two")}}, "separate locations"),
    ({"log": "/data/out/log"}, "separate locations"), ({"log": "/data/out"}, "separate locations"),
    ({"log": "/data/in/log"}, "separate locations"), ({"sinks": {"out": FilesSink(path="/data/in/out")}}, "separate locations"), ({"sinks": {"out": FilesSink(path="/data")}}, "separate locations"),
    ({"transform": 5}, "transform"), ({"transform": "no colon"}, "transform"), ({"transform": ""}, "transform"),
    ({"where": ""}, "where"), ({"where": 5}, "where"), ({"rows": "map"}, "rows"), ({"rows": None}, "rows"),
    ({"limits": {"max_files": 3}}, "limits"), ({"where": "\ud800"}, "where"), ({"on_data_loss": "ignore"}, "on_data_loss"), ({"require": "perfect"}, "require"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), INVALID_PIPELINES, ids=str)
def test_invalid_argument_of_a_pipeline_is_reported_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        pipeline(**changes)


@pytest.mark.parametrize(("part", "base"), [("source", "source.Source"), ("sinks", "sink.Sink")])
def test_registered_class_that_does_not_extend_its_base_class_is_refused(
    part: str, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "name_of", lambda kind, value: "other")
    other = SimpleNamespace(location=None)
    with pytest.raises(InvalidError, match=rf"SimpleNamespace.*extends airflow_provider_streamsem.connectors.{base}"):
        pipeline(**{part: other if part == "source" else {"out": other}})


INVALID_SOURCES: list[tuple[dict[str, Any], str]] = [
    ({"path": "in"}, "location"), ({"path": ""}, "path"), ({"format": "avro"}, "format"), ({"format": None}, "format"), ({"schema": None}, "schema is required"),
    ({"schema": " "}, "schema"), ({"format": "text"}, "not accepted"), ({"options": []}, "options"), ({"options": {"header": True}}, "options"),
    ({"options": {"mode": "DROPMALFORMED"}}, "which records"), ({"options": {"MultiLine": "true"}}, "which records"), ({"options": {"comment": "#"}}, "which records"), ({"glob": ""}, "glob"), ({"glob": "a/*"}, "glob"),
    ({"start_after": None}, "start_after"), ({"lookback_days": -1}, "lookback_days"), ({"lookback_days": 1}, "lookback_days"), ({"lookback_days": True}, "lookback_days"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), INVALID_SOURCES, ids=str)
def test_invalid_argument_of_a_files_source_is_reported_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        dataclasses.replace(SOURCE, **changes)


INVALID_SINKS: list[tuple[dict[str, Any], str]] = [
    ({"path": "out"}, "location"), ({"path": "memory://out"}, "directory or in S3"), ({"format": "avro"}, "format"), ({"partition_by": "day"}, "partition_by"),
    ({"partition_by": ["day", "DAY"]}, "twice"), ({"partition_by": [1]}, "partition_by"), ({"codec": "brotli"}, "codec"), ({"codec": "zlib"}, "codec"),
    ({"target_file_bytes": 10}, "target_file_bytes"), ({"target_file_bytes": "1g"}, "target_file_bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), INVALID_SINKS, ids=str)
def test_invalid_argument_of_a_files_sink_is_reported_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        dataclasses.replace(SINK, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_files": 0},
        {"max_bytes": -1},
        {"max_rows": 1.5},
        {"max_files": True},
        {"max_quarantined": -1},
        {"max_quarantined": None},
    ],
    ids=str,
)
def test_invalid_limits_are_reported_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match=next(iter(changes))):
        Limits(**changes)


TOML = """
name = "orders"
log = "s3://lake/log/orders"
transform = "tests.pipeline.test_pipeline:transform"
where = "id > 0"
rows = "filter"
require = "exactly_once"
[source]
type = "files"
path = "/data/in"
format = "csv"
schema = "id long"
options = { header = "true" }
[limits]
max_rows = 100
[sinks.out]
type = "files"
path = "/data/out"
partition_by = ["day"]
"""


def test_name_of_a_transform_does_not_depend_on_the_path_of_its_dag_file() -> None:
    names = set()
    for path in ("a", "b"):

        def clean(frame: Any) -> Any:
            return frame

        clean.__module__, clean.__qualname__ = f"unusual_prefix_{path * 40}_orders", "clean"
        names.add(pipeline(transform=clean).transform_name)
    assert names == {"orders:clean"}


def test_toml_python_and_the_stored_spec_give_the_same_pipeline(tmp_path: Path) -> None:
    path = tmp_path / "orders.toml"
    path.write_text(TOML)
    from_toml = load_pipeline(str(path))
    from_python = pipeline(
        transform="tests.pipeline.test_pipeline:transform", where="id > 0", rows="filter", require="exactly_once", limits=Limits(max_rows=100)
    )  # fmt: skip
    assert from_toml == from_python
    assert from_toml.spec_bytes() == from_python.spec_bytes()
    assert from_json(json.loads(from_toml.spec_bytes())) == from_python
    assert from_toml.load_transform() is transform


def test_function_and_its_import_path_give_the_same_spec() -> None:
    assert pipeline(transform=transform).spec_sha256 == pipeline(transform=f"{__name__}:transform").spec_sha256
    assert pipeline().load_transform()(5) == 5


INVALID_TOML = [
    ("name = ", "TOML"), ("name = 'orders'", "source"), (TOML.replace('type = "files"', 'type = "unheard"', 1), "unheard"),
    (TOML + "\n[extra]\n", "extra"), (TOML.replace("partition_by", "partitions"), "partitions"), (TOML.replace("max_rows", "max_row"), "max_row"),
    (TOML.replace('format = "csv"\n', ""), "lacks"), (TOML.replace("[sinks.out]", "[sink]"), "sink"), ("limits = 5\n" + TOML.replace("[limits]\nmax_rows = 100", ""), "table"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), INVALID_TOML, ids=lambda t: t[-20:])
def test_error_for_an_invalid_pipeline_file_names_the_cause(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "orders.toml"
    path.write_text(text)
    with pytest.raises(InvalidError, match=message):
        load_pipeline(str(path))


@pytest.mark.parametrize(
    "name", ["no_such_module:f", "tests.pipeline.test_pipeline:no_such", "tests.pipeline.test_pipeline:TOML"]
)
def test_transform_that_cannot_be_imported_is_reported_by_name(name: str) -> None:
    with pytest.raises(InvalidError, match="transform"):
        pipeline(transform=name).load_transform()


def test_replace_validates_again_and_reports_unknown_arguments() -> None:
    with pytest.raises(InvalidError, match="name"):
        pipeline().replace(name="X")
    with pytest.raises(InvalidError, match="colour"):
        pipeline().replace(colour="red")


def test_guarantee_is_computed_from_source_and_sinks_and_states_its_reasons() -> None:
    computed = guarantee(pipeline(sinks={"a": FilesSink(path="/a"), "b": FilesSink(path="/b")}))
    assert computed.label == "exactly_once"
    text = str(computed)
    for word in ("durable plan", "source:", "sink a:", "sink b:", "together"):
        assert word in text


def test_weaker_source_or_sink_weakens_the_guarantee_and_require_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FilesSource, "delivery", "at_most_once")
    assert guarantee(pipeline()).label == "at_most_once"
    with pytest.raises(InvalidError, match="weaker than it requires"):
        pipeline(require="exactly_once")
    monkeypatch.setattr(FilesSource, "delivery", "exactly_once")
    monkeypatch.setattr(FilesSink, "delivery", "at_least_once")
    assert guarantee(pipeline(require="at_least_once")).label == "at_least_once"
    with pytest.raises(InvalidError, match="weaker than it requires"):
        pipeline(require="at_most_once")
    monkeypatch.setattr(FilesSource, "delivery", "at_most_once")
    assert guarantee(pipeline()).label == "none"
    with pytest.raises(InvalidError, match="weaker than it requires"):
        pipeline(require="at_most_once")


@pytest.mark.parametrize(
    ("sinks", "expected"),
    [
        (("exactly_once", "exactly_once"), "exactly_once"),
        (("exactly_once", "effectively_once"), "effectively_once"),
        (("effectively_once", "at_least_once"), "at_least_once"),
        (("exactly_once", "at_most_once"), "at_most_once"),
        (("effectively_once", "at_most_once"), "none"),
        (("at_least_once", "at_most_once"), "none"),
    ],
)
def test_label_of_two_sinks_is_the_guarantee_that_both_meet(sinks: tuple[str, str], expected: str) -> None:
    a, b = (type("Sink", (FilesSink,), {"delivery": label, "__slots__": ()}) for label in sinks)
    spec = pipeline()
    object.__setattr__(spec, "sinks", {"a": a(path="/a"), "b": b(path="/b")})
    computed = guarantee(spec)
    assert (computed.label, dict(computed.sinks)) == (expected, {"a": sinks[0], "b": sinks[1]})


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"log": "log"}, "log"),
        ({"source": {"type": "files", "path": "in", "format": "json", "schema": "id long"}}, "source files: path"),
        ({"source": {"type": "pipeline", "log": "log"}}, "source pipeline: log"),
        ({"sinks": {"out": {"type": "files", "path": "gs://b/p"}}}, "sink files: path"),
    ],
)
def test_error_for_an_invalid_location_names_the_argument(changes: dict[str, Any], argument: str) -> None:
    valid = {
        "name": "p",
        "log": "/log",
        "source": {"type": "rate"},
        "sinks": {"out": {"type": "files", "path": "/out"}},
    }
    with pytest.raises(InvalidError, match="a location must be an absolute path or a URL") as caught:
        from_json({**valid, **changes}, where="test")
    assert caught.value.fields["argument"] == argument


def test_secrets_in_a_url_are_refused_and_not_in_the_error() -> None:
    with pytest.raises(InvalidError) as caught:
        pipeline(log="s3://key:hunter2@lake/log")
    assert "hunter2" not in str(caught.value)
    for url in ("s3://lake/x?X-Amz-Signature=hunter2", "https://x/y?sig=hunter2"):
        with pytest.raises(InvalidError) as caught:
            pipeline(log=url)
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://u:hunter2@h/p?a=1", "…@h/p?…"),
        ("https://h/p?user=a@b.c&token=hunter2", "https://…"),
        ("https://u:hunter2?x@h/p", "https://…"),
        ("https://h/p#hunter2@x", "https://…"),
        ("u:hunter2?@h", "…"),
        ("https://h/p?token=hunter2", "https://h/p?…"),
    ],
)
def test_redacted_url_has_no_password_and_no_query_string(url: str, shown: str) -> None:
    assert arguments.redacted(url) == shown


def test_spark_conf_of_a_pipeline_file_is_read_and_is_not_part_of_the_spec(tmp_path: Path) -> None:
    plain = (
        f'name = "p"\nlog = "{tmp_path}/log"\n[source]\ntype = "files"\npath = "{tmp_path}/in"\nformat = "text"\n'
        f'[sinks.out]\ntype = "files"\npath = "{tmp_path}/out"\n'
    )
    file = tmp_path / "p.toml"
    file.write_text(plain)
    without = load_pipeline(str(file))
    assert load_spark_conf(str(file)) == {}
    file.write_text(f'{plain}[spark_conf]\n"spark.ui.enabled" = true\nspark.sql.shuffle.partitions = 4\n')
    assert load_spark_conf(str(file)) == {"spark.ui.enabled": "true", "spark.sql.shuffle.partitions": "4"}
    assert load_pipeline(str(file)).spec_bytes() == without.spec_bytes()
    file.write_text(f"{plain}[spark_conf]\nx = [1]\n")
    with pytest.raises(InvalidError, match=r"\[spark_conf\] must contain only strings.*name='x'"):
        load_pipeline(str(file))
