"""A user with write access to a log cannot use it to run code, or to reach other locations or the files of other pipelines."""

from __future__ import annotations

import base64
import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import FilesSink, KafkaSource, open_log, read_committed, registry, verify
from airflow_provider_streamsem.cli.main import main
from airflow_provider_streamsem.connectors.kafka.pins import RangePin
from airflow_provider_streamsem.connectors.source import SourceEnd
from airflow_provider_streamsem.errors import ConflictError, DataError, InvalidError, LogDamagedError
from airflow_provider_streamsem.limits import Limits
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.protocol import codec, keys
from airflow_provider_streamsem.protocol.codec import plain
from airflow_provider_streamsem.protocol.entries import DataFile, Discovery, FoundFile, Outcome, Quarantine
from airflow_provider_streamsem.spark.schema import folded
from airflow_provider_streamsem.state.layers import id_layers
from airflow_provider_streamsem.stores.contract import normalised
from airflow_provider_streamsem.stores.local import LocalStore
from airflow_provider_streamsem.stores.s3 import S3Store
from tests.pipeline_fixture import PipelineFixture
from tests.protocol import samples
from tests.security.forging import forge, forge_spec, overwrite, sealed

OUTSIDE = [
    "../../secret/f.csv",
    "/etc/passwd",
    "data//0/f",
    "data/./f",
    "data/..",
    "",
    "data/0/a\0.json",
    "data\\..\\f",
]


@pytest.fixture
def fixture(tmp_path: Path) -> PipelineFixture:
    fixture = PipelineFixture(tmp_path / "own", store=LocalStore(str(tmp_path / "own" / "log")))
    fixture.arrive(4, bad_lines=1)
    fixture.run("a", drain=True)
    return fixture


@pytest.fixture
def log(fixture: PipelineFixture) -> str:
    return fixture.store.url


# --- code


@pytest.mark.parametrize(
    "argv",
    [
        ["run"],
        ["reprocess", "0"],
        ["lag"],
        ["abort", "0", "--reason", "r"],
        ["skip", "0", "--sink", "out", "--reason", "r"],
        ["explain"],
        ["vacuum"],
    ],
    ids=lambda argv: argv[0],
)
def test_command_that_builds_sources_or_sinks_refuses_a_log_and_names_the_command_to_run(
    log: str, capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    command, *rest = argv
    assert main([command, log, *rest]) == 2
    assert f"streamsem {command} PIPELINE.toml" in capsys.readouterr().err


def test_reading_a_log_builds_no_source_or_sink_of_its_spec(
    fixture: PipelineFixture, log: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sinks = {
        "ice": {"type": "iceberg", "path": "/t", "table": "a.b", "properties": {"py-io-impl": "subprocess.Popen"}},
        "other": {"type": "package-of-others", "path": "/t"},
    }
    forge_spec(fixture.store, 1, lambda spec: spec["sinks"].update(sinks))

    def load(kind: str, name: str) -> Any:
        assert kind == "stores", f"{name} was built"
        return real(kind, name)  # type: ignore[arg-type]

    real = registry.load
    monkeypatch.setattr(registry, "load", load)
    monkeypatch.setattr(registry, "knows", lambda kind, name: pytest.fail("entry points may be read"))
    monkeypatch.setattr(registry, "name_of", lambda kind, value: pytest.fail("entry points may be read"))
    assert [main([name, log]) for name in ("log", "files", "doctor", "verify")] == [0, 0, 0, 0]
    assert main(["show", log, "1"]) == 0
    assert "not checked without the pipeline file: sink ice" in capsys.readouterr().out


def test_recorded_schema_with_a_pickled_class_is_not_loaded(fixture: PipelineFixture, log: str, tmp_path: Path) -> None:
    executed = tmp_path / "executed"
    pickled = f"cposix\nsystem\n(S'touch {executed}'\ntR.".encode()
    udt = {
        "type": "udt",
        "pyClass": "os.Missing",
        "serializedClass": base64.b64encode(pickled).decode(),
        "sqlType": "long",
    }
    for kind in (udt, {"type": "array", "elementType": udt, "containsNull": True}):
        fields = [{"name": "id", "type": kind, "nullable": True, "metadata": {}}]
        schema = json.dumps({"type": "struct", "fields": fields})
        forge(fixture.store, keys.outcome(1), lambda body, schema=schema: body.update(schemas={"out": schema}))
        with pytest.raises(LogDamagedError, match="plain types"):
            read_committed(None, log)  # type: ignore[arg-type]
        with pytest.raises(DataError, match="user-defined"):
            folded("out", None, schema)
        with pytest.raises(LogDamagedError, match="plain types"):
            folded("out", schema, '{"type":"struct","fields":[]}')
    assert not executed.exists()


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "null",
        "[" * 100_000,
        '{"type":"struct","fields":[1]}',
        '{"type":"struct","fields":[{"name":"a","type":"no-such-type"}]}',
    ],
)
def test_invalid_recorded_schema_is_damage(fixture: PipelineFixture, log: str, text: str) -> None:
    forge(fixture.store, keys.outcome(1), lambda body: body.update(schemas={"out": text}))
    with pytest.raises(LogDamagedError, match=r"schema|nested too deep"):
        read_committed(None, log)  # type: ignore[arg-type]


# --- locations


@pytest.mark.parametrize("key", OUTSIDE)
def test_key_outside_of_its_directory_is_refused_when_it_is_decoded(key: str) -> None:
    plan = samples.plan()
    for create in (
        lambda: DataFile(key=key, bytes=1, rows=1, checksum=""),
        lambda: Quarantine(rows=1, keys=(f"quarantine/{key}" if "data" in key else key,)),
        lambda: id_layers(
            {"dedup": [{"newest_ms": 1, "rows": 1, "files": [{"key": key, "bytes": 1, "rows": 1, "checksum": ""}]}]}
        ),
    ):
        with pytest.raises(LogDamagedError, match="R6"):
            create()
    body = json.loads(codec.encode(samples.outcome(plan)).data)
    body["sinks"]["out"]["files"][0]["key"] = key
    with pytest.raises(LogDamagedError, match="R6"):
        codec.decode(Outcome, "k", sealed(body))


@pytest.mark.parametrize("path", [p for p in OUTSIDE if "\\" not in p])
def test_discovered_path_outside_of_the_source_is_refused(path: str) -> None:
    with pytest.raises(LogDamagedError, match="R6"):
        FoundFile(path=path, bytes=1, identity="", mtime_ns=1)
    assert FoundFile(path="a\\b\n.json", bytes=1, identity="", mtime_ns=1), "a valid name of a file"


def test_quarantine_key_outside_of_the_quarantine_is_refused() -> None:
    with pytest.raises(LogDamagedError, match="R6"):
        Quarantine(rows=1, keys=("specs/x.json",))


def test_spec_or_spill_that_is_not_named_by_a_sha256_is_refused(fixture: PipelineFixture, log: str) -> None:
    forge(fixture.store, keys.outcome(1), lambda body: body.update(spec="../../secret"))
    with pytest.raises(LogDamagedError, match="R6"):
        open_log(log).files()
    forge(fixture.store, keys.outcome(1), lambda body: body.update(hint={"$spill": "../x", "bytes": 1}))
    with pytest.raises(LogDamagedError, match="R6"):
        open_log(log).files()


def test_spill_that_is_not_json_is_damage(fixture: PipelineFixture, log: str) -> None:
    for data in (b"{", b"1.5"):
        digest = codec.sha256(data)
        fixture.store.create(keys.spill(digest), data)
        forge(fixture.store, keys.outcome(1), lambda body, d=digest: body.update(hint={"$spill": d, "bytes": 1}))
        with pytest.raises(LogDamagedError, match="JSON"):
            open_log(log).files()


@pytest.mark.parametrize("key", ["a/../b", "../b", "/b", "a//b", ""])
def test_s3_store_refuses_keys_that_are_not_relative(key: str) -> None:
    store = S3Store("bucket", "prefix", client=object())
    for call in (store.read, store.stat, store.delete, lambda key: store.create(key, b"")):
        with pytest.raises(InvalidError, match="relative"):
            call(key)


def test_dataset_that_the_log_does_not_own_is_not_read(fixture: PipelineFixture, log: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "f.json").write_text('{"secret": 1}')
    forge_spec(fixture.store, 1, lambda spec: spec["sinks"]["out"].update(path=str(secret)))
    with pytest.raises(LogDamagedError, match="mark"):
        open_log(log).files()
    assert [f.invariant for f in verify(log).violations if "mark" in f.what]

    other = PipelineFixture(tmp_path / "other", store=LocalStore(str(tmp_path / "other" / "log")))
    other.arrive(1)
    other.run("a")
    uuid = other.opened().record.pipeline_uuid
    forge(fixture.store, keys.PIPELINE, lambda body: body.update(pipeline_uuid=uuid))
    forge_spec(fixture.store, 1, lambda spec: spec["sinks"]["out"].update(path=str(other.root / "out")))
    with pytest.raises(ConflictError, match="another pipeline or log"):
        open_log(log).files()
    forge_move(fixture.store, other)
    with pytest.raises(ConflictError, match="another pipeline or log"):
        open_log(log).files()


def forge_move(store: Any, victim: PipelineFixture) -> None:
    """Record in a log that it was moved from the location of another log."""
    url = normalised(victim.store.url)
    body = {"moved_from": url, "moved_to": normalised(store.url), "sources": "sources/", "nonce": "0" * 32}
    uuid = victim.opened().record.pipeline_uuid
    store.create(keys.moved(url), sealed({"format": 1, "entry": "moved", "pipeline_uuid": uuid, **body}))


def test_forged_plan_cannot_make_a_run_read_outside_of_its_source(fixture: PipelineFixture, tmp_path: Path) -> None:
    (fixture.root / "secret.json").write_text('{"id": 1}\n')
    fixture.arrive(1)
    fixture.dies("b")
    for pins in (
        [{"path": "../secret.json", "bytes": 10, "identity": "mtime:1"}],
        [{"path": "_hidden.json", "bytes": 1, "identity": "mtime:1"}],
        "x",
        [["a"]],
        [{"path": 1, "bytes": 2, "identity": 3}],
        None,
    ):
        forge(fixture.store, keys.plan(2), lambda body, pins=pins: body.update(pins=pins or [[]]))
        with pytest.raises(LogDamagedError, match="R6"):
            fixture.run("c")


def range_of(topic: str) -> dict[str, Any]:
    return plain(RangePin(topic, "", 0, 0, 5, 0))  # type: ignore[no-any-return]


def test_forged_log_cannot_make_a_run_read_other_topics() -> None:
    source = KafkaSource(topics=["orders"], bootstrap_servers="b:1")
    assert source.read_pins([range_of("orders")])
    for pins in ([range_of("payroll")], [["orders"]], {}, [{**range_of("orders"), "partition": "0"}]):
        with pytest.raises(LogDamagedError, match="R6"):
            source.read_pins(pins)
    with pytest.raises(LogDamagedError, match="R6"):
        source.open(None, None).slice({"payroll-0": 0}, SourceEnd({"orders-0": 5}), Limits(), None, on_data_loss="fail")  # type: ignore[arg-type]
    by_pattern = KafkaSource(topic_pattern="orders.*", bootstrap_servers="b:1")
    assert [by_pattern.reads(topic) for topic in ("orders-eu", "payroll", "__orders")] == [True, False, False]


# --- deletion


def test_vacuum_of_a_forged_log_deletes_nothing_of_another_pipeline(fixture: PipelineFixture, tmp_path: Path) -> None:
    winner = PipelineFixture(tmp_path / "winner", store=LocalStore(str(tmp_path / "winner" / "log")), clocks=count(50))
    winner.arrive(2)
    winner.run("a")
    record = winner.opened().record
    forge(fixture.store, keys.PIPELINE, lambda body: body.update(pipeline_uuid=record.pipeline_uuid))
    pipeline_with_the_dataset_of_the_winner = fixture.pipeline(
        sinks={"out": FilesSink(path=str(winner.root / "out"), format="json")}
    )
    out = str(winner.root / "out")
    forge_spec(
        fixture.store, 1, lambda spec: [spec.update(log=winner.store.url), spec["sinks"]["out"].update(path=out)]
    )
    for forged in (False, True):
        if forged:
            forge_move(fixture.store, winner)
        for pipeline in (fixture.pipeline(), pipeline_with_the_dataset_of_the_winner):
            with pytest.raises(ConflictError, match=r"another pipeline or log|immutable fields differ"):
                vacuum(pipeline)
    winner.check()


LOST = "d" * 32
"""The id of an attempt."""


def test_vacuum_deletes_only_in_the_locations_of_its_pipeline(fixture: PipelineFixture, tmp_path: Path) -> None:
    other = PipelineFixture(tmp_path / "other", store=LocalStore(str(tmp_path / "other" / "log")))
    other.arrive(1)
    other.run("a")
    forge_spec(fixture.store, 1, lambda spec: spec["sinks"]["out"].update(path=str(other.root / "out")))
    lost = fixture.root / "out" / "data" / "0" / LOST / "f.json"
    lost.parent.mkdir()
    lost.write_text("{}")
    assert vacuum(fixture.pipeline()).attempts == (("out", 0, LOST),)
    assert not lost.exists()
    other.check()


def test_vacuum_ignores_directories_that_no_writer_creates(fixture: PipelineFixture) -> None:
    for version in ("999999999999999", "-1", "x", "²"):
        for directory in ("out/data", "log/attempts"):
            file = fixture.root / directory / version / "attempt" / "f.json"
            file.parent.mkdir(parents=True)
            file.write_text("{}")
    assert vacuum(fixture.pipeline()).attempts == ()
    fixture.check()


def test_vacuum_and_readers_do_not_follow_links_in_a_dataset(fixture: PipelineFixture, tmp_path: Path) -> None:
    protected = tmp_path / "protected" / "attempt"
    protected.mkdir(parents=True)
    (protected / "f.json").write_text("{}")
    data = fixture.root / "out" / "data"
    (data / "0" / "linked").symlink_to(protected)
    (data / "7").symlink_to(protected.parent)
    (data / "0" / LOST).mkdir()
    (data / "0" / LOST / "linked.json").symlink_to(protected / "f.json")
    (data / "0" / LOST / "linked").symlink_to(protected)
    assert vacuum(fixture.pipeline()).attempts == (("out", 0, LOST),)
    assert (protected / "f.json").exists()
    victim = Path(fixture.opened().files()[0].path)
    victim.unlink()
    victim.symlink_to(protected / "f.json")
    assert [(f.invariant, "missing" in f.what) for f in fixture.verdict().violations] == [("I6", True)]


def test_outcome_that_names_a_sink_without_a_spec_is_damage(fixture: PipelineFixture, log: str) -> None:
    forge(fixture.store, keys.outcome(1), lambda body: body.update(sinks={"none": body["sinks"]["out"]}))
    with pytest.raises(LogDamagedError, match="sinks"):
        open_log(log).files()
    assert any("a sink that the spec does not have" in f.what for f in verify(log).violations)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"publish": ["none"]}, "requires publishing"),
        ({"work": {"kind": "reprocess", "replaces": 1, "counts": {}}}, "not earlier"),
    ],
)
def test_outcome_with_impossible_references_is_damage(
    fixture: PipelineFixture, log: str, change: Any, message: str
) -> None:
    forge(fixture.store, keys.outcome(1), lambda body: body.update(change))
    with pytest.raises(LogDamagedError, match=message):
        open_log(log).files()


def test_quarantined_records_that_are_not_json_are_damage(fixture: PipelineFixture, log: str) -> None:
    key = open_log(log).log.outcome(0).quarantine.keys[0]  # type: ignore[union-attr]
    overwrite(fixture.store, key, b"\x1b[2J\n" * 2)
    with pytest.raises(LogDamagedError, match="JSON"):
        list(open_log(log).quarantined())


def test_forged_discovery_is_damage(fixture: PipelineFixture) -> None:
    log = fixture.log().of_source(fixture.pipeline().source.immutable_config())
    key = log.store.url.removeprefix(f"{fixture.store.url}/") + f"/{keys.discovered(0)}"
    forge(fixture.store, key, lambda body: body["recent"][0].update(path="../secret"))
    with pytest.raises(LogDamagedError, match="R6"):
        codec.decode(Discovery, "k", fixture.store.read(key) or b"")
    with pytest.raises(LogDamagedError, match="R6"):
        fixture.run("b")
