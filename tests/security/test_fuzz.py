"""
Fuzz test: change every kind of object of a log and a dataset, and pass it through every reader and command.

Whatever the object contains, nothing outside the pipeline's locations is opened, listed or deleted. No name in it is imported, run or connected to. Each
failure is an error of this package. The files of the sources are not changed, since they hold data and no entries.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from copy import deepcopy
from functools import cache
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_streamsem import Dedup, FilesSink, Pipeline, open_log, read_committed, verify
from airflow_provider_streamsem.cli.main import main
from airflow_provider_streamsem.commitlog import doctor
from airflow_provider_streamsem.errors import StreamsemError
from airflow_provider_streamsem.pipeline.maintenance.abort import abort
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.pipeline.versions.publish import skip
from airflow_provider_streamsem.protocol import keys, segments
from airflow_provider_streamsem.protocol.codec import canonical, decode, encode, sha256
from airflow_provider_streamsem.protocol.entries import Claim, Effects, Segment
from airflow_provider_streamsem.protocol.view import fold
from airflow_provider_streamsem.readers.conditions import BatchCommitted, Freshness
from airflow_provider_streamsem.readers.files import CommittedFile
from airflow_provider_streamsem.readers.lag import lag
from airflow_provider_streamsem.readers.waiting import waiting
from airflow_provider_streamsem.stores.local import LocalStore
from airflow_provider_streamsem.testing.stores import Crash
from tests.external_systems import PublishingFixture, TableSink
from tests.pipeline_fixture import BeforeOutcome, die
from tests.protocol import samples
from tests.security.forging import sealed

EXAMPLES = 100 if os.environ.get("HYPOTHESIS_PROFILE", "same") == "same" else 5_000
SECRET = "@secret"
"""Placeholder for a directory outside the pipeline, with a file that must not be read."""
TEXTS = [
    "", ".", "..", "\0", "\x1b[2J", "a" * 300, "../../secret/f.json", "../secret/f.json", "../in/00000.json", "/etc/passwd", SECRET, f"{SECRET}/f.json", "file:///etc/passwd",
    "s3://b/k", "data/0/../../../secret/f.json", "quarantine/../../../secret/f.json", "subprocess.Popen", "tests.security.decoy:called", "iceberg", "kafka",
    '{"type":"struct","fields":[{"name":"id","type":{"type":"udt","pyClass":"tests.security.decoy.Called"},"nullable":true,"metadata":{}}]}',
]  # fmt: skip
NUMBERS: list[Any] = [-1, 0, 1, 10**12, 10**30, True]
OTHERS: list[Any] = [
    None, [], {}, [[]], {"": {}}, {"$spill": "../../secret/f", "bytes": 1}, {"type": "files", "path": SECRET},
    {"type": "iceberg", "path": "/t", "table": "a.b", "properties": {"py-io-impl": "tests.security.decoy.Called"}},
]  # fmt: skip
HOSTILE_VALUES: dict[str, list[Any]] = {
    "path": [SECRET, "../secret/f.json", "/etc"],
    "key": ["../../secret/f.json", "data/../../secret/f.json", "/etc/passwd"],
    "keys": [["../../secret/f.json"], ["quarantine/../../../secret/f.json"]],
    "schemas": [{"out": TEXTS[-1]}],
    "pins": [[{"path": "../secret/f.json", "bytes": 10, "identity": "mtime:1"}], [{"path": "../../secret/f.json", "bytes": 10, "identity": ""}], {}, [[]]],
    "spec": ["../../../secret/f", "0" * 64],
    "type": ["iceberg", "files", "tests.security.decoy:Called"],
    "sinks": [{"out": {"type": "files", "path": SECRET, "format": "json"}}, {"x": OTHERS[-1]}],
    "hint": [{"type": "files", "path": SECRET}, {"newest": 10**13, "at": -1}, {"ends": {"a": 1}}, OTHERS[-3]],
    "state": [{"dedup": [{"newest_ms": 1, "rows": 1, "files": [{"key": "../../secret/f.json", "bytes": 1, "rows": 1, "checksum": ""}]}]}, {"dedup": 1}],
    "attempt_id": ["../../../secret", "", "x/../.."],
    "work": [
        *({"kind": "reprocess", "replaces": version, "counts": {}} for version in (-1, 0, 10**12)), {"kind": "rollback", "to": 10**12, "next": {}, "counts": {}},
        {"kind": "expire", "oldest": 10**12}, {"kind": ["batch"]}, {"kind": "batch"}, {},
    ],
    "replaces": [-1, 0, 10**12],
    "newest": [{"rollback": 0}, {"rewrite": 10**12}, {"alter": -1}, {"expire": 10**12}],
    "next": [{"files": 10**18}, {"files": -1}, {"../x@y-z": 1}],
    "publish": [["out"], ["none"], []],
    "log": [f"{SECRET}/log"],
    "pipeline_uuid": ["other"],
}  # fmt: skip
"""Name of a field → values that an attacker would write."""
_NAMES = count()


# --- actions that no object may cause


_TABLE_MARKERS = (keys.DATASET_MARKER, "_delta_log", ".hoodie", "metadata")


class _Guard:
    """Records forbidden audit events of the interpreter while it is armed."""

    roots: tuple[str, ...] = ()
    is_armed = False
    violations: list[str]

    def __init__(self) -> None:
        self.violations = []
        installed = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]))
        self.always = tuple(os.path.realpath(path) for path in installed) + installed
        sys.addaudithook(self._record)

    @contextmanager
    def confined_to(self, *roots: Path) -> Iterator[None]:
        # Threads of other tests still run. A thread of py4j reports unused objects to the JVM.
        self.others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
        # A first import lists each directory of sys.path, to which Airflow adds its own.
        self.roots, self.is_armed = (*map(str, roots), *filter(None, sys.path)), True
        try:
            yield
        finally:
            self.is_armed = False

    def _record(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_armed or threading.get_ident() in self.others:
            return
        if event in (
            "subprocess.Popen",
            "os.system",
            "os.exec",
            "os.posix_spawn",
            "socket.connect",
            "pickle.find_class",
        ):
            self.violations.append(f"{event} {arguments}")
        elif event == "import" and "decoy" in str(arguments[0]):
            self.violations.append(f"import {arguments[0]}")
        elif event == "open" or event.startswith(
            ("os.listdir", "os.scandir", "os.remove", "os.rmdir", "os.link", "os.mkdir", "shutil.rmtree")
        ):
            path = os.fspath(arguments[0]) if isinstance(arguments[0], (str, os.PathLike)) else ""
            if os.path.basename(path) in _TABLE_MARKERS and event in ("open", "os.scandir"):
                return  # the check whether the source's path is in a dataset or a table
            allowed = (*self.roots, *self.always, "/dev/null", "/dev/urandom", "/proc", "/sys")
            if os.path.isabs(path) and not f"{os.path.normpath(path)}/".startswith(
                tuple(f"{root}/" for root in allowed)
            ):
                self.violations.append(f"{event} {path}")


@cache
def guard() -> _Guard:
    return _Guard()


class _Spark:
    """The part of Spark's API that :func:`read_committed` calls."""

    def __init__(self, fixture: PublishingFixture) -> None:
        self._root = f"{fixture.root}/"

    def __getattr__(self, name: str) -> Any:
        return self if name == "read" else lambda *given, **named: self

    def load(self, paths: list[str]) -> None:
        assert all(os.path.normpath(path).startswith(self._root) for path in paths), paths


# --- the log under test


class FuzzedFixture(PublishingFixture):
    """A log with every kind of object."""

    def pipeline(self, **changes: Any) -> Pipeline:
        sinks = {
            "out": FilesSink(path=str(self.root / "out"), format="json"),
            "table": TableSink(path=str(self.root / "table"), database=self.database),
        }
        return super().pipeline(**{"sinks": sinks, "dedup": Dedup(keys=["id"], ttl_s=10**6), **changes})


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unchanged log. ``pipeline`` beside it is the copy that each example changes."""
    location = tmp_path_factory.mktemp("fuzz")
    fixture = FuzzedFixture(location / "pipeline", store=LocalStore(str(location / "pipeline" / "log")))
    fixture.arrive(3, bad_lines=1)
    fixture.run("a", drain=True)
    fixture.run("again", reprocessed=0)
    fixture.arrive(1)
    with suppress(Crash):  # leaves a manifest without an outcome
        fixture.run("b", store=BeforeOutcome(fixture.store, die))
    put = fixture.store.create
    put(keys.claim(0, "table", 0), encode(Claim(version=0, sink="table", chunk=0, nonce="n")).data)
    put(keys.effects(0, "table", 0), encode(Effects(version=0, sink="table", chunk=0, done=1, nonce="n")).data)
    folded = segments.level_1(0, [outcome for _, outcome in samples.chain(100)], "last")
    put(keys.segment(1, 0), encode(folded).data)
    hint = canonical({"newest": 0, "at": 0})
    put(keys.spill(sha256(hint)), hint)
    doctor.examine(fixture.log())
    shutil.copytree(fixture.root, location / "original")
    secret = location / "secret"
    secret.mkdir()
    (secret / "f.json").write_text('{"id": 1}\n')
    return location


_UNCHANGED: dict[Path, tuple[int, int]] = {}
"""File → its inode and change time when it was last unchanged."""


def restore(location: Path) -> FuzzedFixture:
    """Undo all changes, additions and deletions of an example."""
    root, source = location / "pipeline", location / "original"
    present = {Path(directory, name) for directory, _, names in os.walk(root) for name in names}
    for path in present - {root / name for name in files_of(source)}:
        path.unlink()
    for name, data in files_of(source).items():
        path = root / name
        if path not in present or _identity(path) != _UNCHANGED.get(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            stamp = (source / name).stat().st_mtime_ns
            os.utime(path, ns=(stamp, stamp))
            _UNCHANGED[path] = _identity(path)
    fixture = FuzzedFixture(root, store=LocalStore(str(root / "log")))
    fixture.made = 4
    fixture.clocks = count(100 * (next(_NAMES) + 1))
    return fixture


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_ino, status.st_ctime_ns


@cache
def files_of(source: Path) -> dict[Path, bytes]:
    return {path.relative_to(source): path.read_bytes() for path in source.rglob("*") if path.is_file()}


def stored(root: Path) -> list[str]:
    """The JSON objects of the log, and the ownership markers of the datasets."""
    paths = [*(root / "log").rglob("*.json"), *(root / "log").rglob("*.jsonl"), *root.glob("*/_streamsem.json")]
    return sorted(
        str(path.relative_to(root)) for path in paths if "/data/" not in str(path) and "probe" not in str(path)
    )


KINDS = ["pipeline.json", "specs/", "specs/", ".p.json", ".p.json", ".c.json", ".c.json", ".c.json", ".d.json", "attempts/", "attempts/", "runs/", "discovered/", "claims/", "effects/", "segments/",
         "spill/", "quarantine/", "doctor/", "_streamsem.json"]  # fmt: skip


# --- changes


def locations(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    if isinstance(value, dict):
        for name, item in value.items():
            yield from locations(item, (*at, name))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from locations(item, (*at, number))


def changed(body: Any, rng: random.Random) -> Any:
    """Return the value with one part replaced, removed, doubled, renamed, or exchanged for another part."""
    all_locations = [at for at in locations(body) if at and at != ("checksum",)]
    if not all_locations:
        return value(None, rng)
    hostile_locations = [at for at in all_locations if at[-1] in HOSTILE_VALUES]
    is_hostile = bool(hostile_locations) and rng.random() < 0.5
    *above, last = rng.choice(hostile_locations if is_hostile else all_locations)
    owner = body
    for step in above:
        owner = owner[step]
    if is_hostile:
        owner[last] = deepcopy(rng.choice(HOSTILE_VALUES[last]))
        return body
    operation = rng.choice(["replace"] * 6 + ["remove", "double", "rename", "exchange"])
    if operation == "remove":
        del owner[last]
    elif operation == "double" and isinstance(owner, list):
        owner.append(owner[last])
    elif operation == "rename" and isinstance(owner, dict):
        owner[str(rng.choice(["..", "", "../../secret", "out", "table", "none", "files"]))] = owner.pop(last)
    elif operation == "exchange":
        other = body
        for step in rng.choice(all_locations):
            other = other[step]
        owner[last] = deepcopy(other)
    else:
        owner[last] = value(owner[last], rng)
    return body


def value(before: Any, rng: random.Random) -> Any:
    """Return a random value. It is mostly of the same type, because other types are refused early."""
    same_type = TEXTS if isinstance(before, str) else NUMBERS if isinstance(before, int) else OTHERS
    return deepcopy(rng.choice(same_type if rng.random() < 0.8 else [*TEXTS, *NUMBERS, *OTHERS]))


def change(fixture: FuzzedFixture, name: str, rng: random.Random) -> str:
    path = fixture.root / name
    data = path.read_bytes()
    kind_of_change = "torn" if rng.random() < 0.05 else "changed"
    if kind_of_change == "torn":
        data = data[: rng.randrange(len(data))] + bytes(rng.randrange(256) for _ in range(3))
    elif name.endswith(".jsonl"):
        data = b"".join(canonical(changed(json.loads(line), rng)) + b"\n" for line in data.splitlines())
    else:
        body = json.loads(data)
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            body = changed(body, rng)
        body = json.loads(json.dumps(body).replace(SECRET, str(fixture.root.parent / "secret")))
        data = sealed(body) if isinstance(body, dict) and "checksum" in body else canonical(body)
    path.write_bytes(data)
    if name.startswith("log/specs/"):
        point_to_spec(fixture, data)
    elif name.startswith("log/spill/"):
        point_to_spill(fixture, data)
    elif name.startswith(("log/log/", "log/attempts/")):
        # A changed plan is staged again, and a changed manifest is adopted.
        chain(fixture, manifests=name.startswith("log/attempts/"))
    return kind_of_change


def entry(fixture: FuzzedFixture, key: str, update: Callable[[dict[str, Any]], object]) -> bytes | None:
    path = Path(fixture.store.url) / key
    try:
        body = json.loads(path.read_bytes())
        update(body)
        path.write_bytes(sealed(body))
    except (OSError, ValueError, AttributeError, TypeError):
        return path.read_bytes() if path.exists() else None
    return path.read_bytes()


def chain(fixture: FuzzedFixture, *, manifests: bool = False) -> None:
    """Update the hashes between the versions, as an attacker who knows the protocol would: each plan names the outcome before it, each outcome its plan."""
    before = b""
    shas: dict[int, str] = {}

    def link(body: dict[str, Any], name: str, to: bytes | None) -> None:
        body[name] = sha256(to) if to else ""
        markers = body.get("markers")
        for marker in markers.values() if isinstance(markers, dict) else ():
            if isinstance(marker, dict) and isinstance(marker.get("version"), int):
                marker["outcome"] = shas.get(marker["version"], "")

    for version in range(4):
        plan = entry(fixture, keys.plan(version), lambda body, b=before: link(body, "previous", b))
        outcome = entry(fixture, keys.outcome(version), lambda body, p=plan: link(body, "plan", p))
        shas[version] = sha256(outcome or b"")
        entry(fixture, keys.receipts(version), lambda body, o=outcome: link(body, "outcome", o))
        for path in Path(fixture.store.url, keys.attempts(version)).glob("*.json") if manifests else ():
            entry(fixture, keys.attempt(version, path.stem), lambda body, p=plan: body.update(plan=sha256(p or b"")))
        before = outcome or b""


def point_to_spec(fixture: FuzzedFixture, data: bytes) -> None:
    (Path(fixture.store.url) / keys.spec(sha256(data))).write_bytes(data)
    for version in range(3):
        entry(fixture, keys.outcome(version), lambda body: body.update(spec=sha256(data)))
    chain(fixture)


def point_to_spill(fixture: FuzzedFixture, data: bytes) -> None:
    (Path(fixture.store.url) / keys.spill(sha256(data))).write_bytes(data)
    for name in ("hint", "state", "sinks"):
        spilled = {"$spill": sha256(data), "bytes": len(data)}
        entry(fixture, keys.outcome(2), lambda body, n=name, s=spilled: body.update({n: s}))
        chain(fixture)


# --- every reader and command


def reads(fixture: FuzzedFixture) -> dict[str, Callable[[], object]]:
    log, pipeline = fixture.store.url, fixture.pipeline()
    readers: dict[str, Callable[[], object]] = {
        "files": lambda: all_within(fixture, open_log(log).files()),
        "own files": lambda: all_within(fixture, open_log(log, pipeline=pipeline).files(since=0)),
        "changes": lambda: open_log(log).changes(since=0),
        "quarantined": lambda: list(open_log(log).quarantined()),
        "spark": lambda: read_committed(_Spark(fixture), log, sink="out"),  # type: ignore[arg-type]
        "verify": lambda: verify(log),
        "own verify": lambda: verify(pipeline),
        "lag": lambda: lag(pipeline),
        "waiting": lambda: waiting(pipeline),
        "version": lambda: BatchCommitted(log=log, version=1).check(),
        "run": lambda: BatchCommitted(log=log, run_key="a").check(),
        "offsets": lambda: BatchCommitted(pipeline=pipeline, offsets={"files": 1}).check(),
        "freshness": lambda: Freshness(pipeline=pipeline, max_lag=1, max_age_s=1).check(),
        "vacuum --dry-run": lambda: vacuum(pipeline, dry_run=True),
        "effects": lambda: open_log(log).log.effects(0, "table", 0),
        "claim": lambda: open_log(log).log.claim(Claim(version=0, sink="table", chunk=0, nonce="own")),
        "segment": lambda: fold(
            [decode(Segment, "k", fixture.store.read(keys.segment(1, 0)) or b"")], initial_offsets={}
        ),
    }
    return readers


def all_within(fixture: FuzzedFixture, files: list[CommittedFile]) -> None:
    root = f"{fixture.root}/"
    assert all(os.path.normpath(file.path).startswith(root) for file in files), files


def commands(fixture: FuzzedFixture) -> dict[str, Callable[[], object]]:
    log = fixture.store.url
    argvs = [["log", log], ["files", log], ["verify", log], *(["show", log, str(version)] for version in range(4))]
    return {" ".join([argv[0], *argv[2:]]): lambda argv=argv: command(argv) for argv in argvs}


def writes(fixture: FuzzedFixture) -> dict[str, Callable[[], object]]:
    pipeline = fixture.pipeline()
    opened = open_log(fixture.log())
    return {
        "a run": lambda: fixture.run("c", drain=True),
        "the same run": lambda: fixture.run("b"),
        "reprocess": lambda: fixture.run("r", reprocessed=1),
        "abort": lambda: abort(opened.log, opened.record, 3, reason="r"),
        "skip": lambda: skip(pipeline, 2, sink="table", reason="r", log=fixture.log()),
        "vacuum": lambda: vacuum(pipeline, log=fixture.log()),
    }


def command(argv: list[str]) -> None:
    output = StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        code = main(argv)
    assert code != 5, output.getvalue()


def check_change(location: Path, kind: str, seed: int) -> None:
    """Change one object and run every reader, a command, and sometimes a writer."""
    rng = random.Random(seed)
    fixture = restore(location)
    names = [name for name in stored(fixture.root) if kind in name]
    assert names, f"the log has no {kind}"
    with guard().confined_to(fixture.root):
        kind_of_change = change(fixture, rng.choice(names), rng)
        steps = [*reads(fixture).items(), rng.choice([*commands(fixture).items()])]
        with suppress(StreamsemError):
            steps += rng.sample([*writes(fixture).items()], rng.choice([0, 1]))
        for name, step in steps:
            try:
                with suppress(StreamsemError):
                    step()
            except Exception as error:
                raise AssertionError(f"{name} of a {kind_of_change} {kind}: {type(error).__name__}: {error}") from error
    violations, guard().violations = guard().violations, []
    assert violations == []


@pytest.mark.slow
@hypothesis.settings(max_examples=EXAMPLES, deadline=None, database=None, phases=[hypothesis.Phase.generate])
@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32))
def test_no_stored_object_causes_outside_access_code_execution_or_a_foreign_error(
    original: Path, kind: str, seed: int
) -> None:
    check_change(original, kind, seed)


WEAKENED_CHECKS: dict[str, tuple[str, Any]] = {
    "keys": ("airflow_provider_streamsem.protocol.keys.is_relative", lambda key: True),
    "marks": ("airflow_provider_streamsem.connectors.files.sink.FilesSink.claim", lambda sink, uuid, log, *, new: None),
    "schemas": (
        "airflow_provider_streamsem.connectors.data_files.read.fields",
        lambda schema: json.loads(schema)["fields"],
    ),
}


@pytest.mark.prove
@pytest.mark.parametrize("check", WEAKENED_CHECKS)
def test_fuzzer_detects_a_missing_check(original: Path, monkeypatch: pytest.MonkeyPatch, check: str) -> None:
    restore(original)
    monkeypatch.setattr(*WEAKENED_CHECKS[check])

    def is_detected(seed: int) -> bool:
        try:
            check_change(original, KINDS[seed % len(KINDS)], seed)
        except AssertionError:
            return True
        return False

    assert any(is_detected(seed) for seed in range(3_000))


def test_guard_records_access_outside_of_its_locations(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    outside = tmp_path / "outside.txt"
    outside.write_text("x")
    with guard().confined_to(tmp_path / "own"):
        outside.read_text()
        os.listdir(tmp_path / "own")
        os.listdir(tmp_path)
    violations, guard().violations = guard().violations, []
    assert violations == [f"open {outside}", f"os.listdir {tmp_path}"]
