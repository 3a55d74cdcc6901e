"""The commands that correct a pipeline: reprocess, abort, rollback and alter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_streamsem import Limits, open_log, run_batch
from airflow_provider_streamsem.cli import version_commands
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.rows import RowsEngine
from tests.cli.command import run
from tests.pipeline_fixture import PipelineFixture


def test_abort_closes_the_open_version_and_prints_the_result(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    fixture.dies("b")
    toml = str(fixture.root / "p.toml")
    code, out, _ = run(capsys, "abort", toml, "1", "--reason", "poison")
    assert (code, "aborted" in out) == (0, True)
    code, _, err = run(capsys, "abort", toml, "1", "--reason", "again")
    assert (code, "only the open version" in err) == (2, True)
    code, out, _ = run(capsys, "log", str(fixture.root / "log"), "--json")
    assert [(v["version"], v["result"], v["reason"]) for v in json.loads(out)["versions"]] == [
        (1, "abort", "poison"),
        (0, "commit", ""),
    ]


@pytest.mark.spark
def test_quarantined_records_become_rows_by_one_command_after_a_fix(
    tmp_path: Path, spark: object, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    for name, line in (("a", '{"id": 1}\n{"id": 02}\n'), ("b", '{"id": 3}\n'), ("c", '{"id": 04}\n{broken\n')):
        (tmp_path / "in" / f"{name}.json").write_text(line)
    toml = tmp_path / "p.toml"

    def write(more: str = "") -> None:
        toml.write_text(
            f'name = "p"\nlog = "{tmp_path}/log"\n[source]\ntype = "files"\npath = "{tmp_path}/in"\nformat = "json"\n'
            f'schema = "id long"\n{more}\n[sinks.out]\ntype = "files"\npath = "{tmp_path}/out"\nformat = "json"\n[limits]\nmax_files = 1\n'
        )

    write()
    assert run(capsys, "run", str(toml), "--drain")[0] == 0
    write('options = { allowNumericLeadingZeros = "true" }')
    code, out, _ = run(capsys, "reprocess", str(toml), "--quarantined")
    assert (code, out.splitlines()) == (
        0,
        ["version 0: reprocessed as 3, 0 still quarantined", "version 2: reprocessed as 4, 1 still quarantined"],
    )
    rows = "".join(Path(file.path).read_text() for file in open_log(str(tmp_path / "log")).files())
    assert sorted(json.loads(line)["id"] for line in rows.splitlines()) == [1, 2, 3, 4]
    code, out, _ = run(capsys, "reprocess", str(toml), "--quarantined", "--json")
    assert [(r["replaces"], r["counts"]["quarantined"]) for r in json.loads(out)["reprocessed"]] == [(4, 1)]
    assert run(capsys, "reprocess", str(toml))[0] == run(capsys, "reprocess", str(toml), "0", "--quarantined")[0] == 2
    write()
    assert run(capsys, "reprocess", str(toml), "3")[0] == 0
    (tmp_path / "in" / "a.json").unlink()  # a file of version 0, which cannot be reprocessed now
    write('options = { allowNumericLeadingZeros = "true" }')
    code, out, _ = run(capsys, "reprocess", str(toml), "--quarantined")
    assert (code, "not reprocessed: RecordsMissingError" in out, "reprocessed as" in out) == (1, True, True)


def test_rollback_removes_later_versions_and_log_shows_it(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    toml, log = str(fixture.root / "p.toml"), str(fixture.root / "log")
    fixture.arrive(2)
    fixture.run("more", drain=True)
    head = fixture.opened().head
    code, out, _ = run(capsys, "rollback", toml, "0", "--json")
    document = json.loads(out)
    assert (code, document["version"], document["to"]) == (0, head + 1, 0)
    assert document["offsets"] == fixture.opened().view(version=0).next
    code, out, _ = run(capsys, "rollback", toml, "0")
    assert (code, out.splitlines()[0]) == (0, "the pipeline is at version 0 already; nothing was rolled back")
    rows = json.loads(run(capsys, "log", log, "--json")[1])["versions"]
    assert (rows[0]["rolls_back_to"], rows[1]["is_rolled_back"], rows[-1]["is_rolled_back"]) == (0, True, False)
    shown = run(capsys, "log", log)[1]
    assert "rollback to version 0" in shown
    assert run(capsys, "show", log, str(head + 1))[1].startswith(f"version {head + 1}: rollback to version 0, commit\n")
    assert "commit, rolled back" in shown
    run_batch(fixture.pipeline(limits=Limits(max_files=7)), run_key="changed", log=fixture.log(), engine=RowsEngine())
    rows = json.loads(run(capsys, "log", log, "--json")[1])["versions"]
    assert [row["changed"] for row in rows[:2]] == [["limits.max_files"], []], "a rollback uses no spec"


def test_several_versions_are_reprocessed_by_one_command_after_a_dry_run(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    toml = str(fixture.root / "p.toml")
    Path(toml).write_text(Path(toml).read_text().replace('where = "id >= 0"\n', ""))  # only Spark evaluates it
    fixture.arrive(2)
    fixture.run("more")
    head = fixture.opened().head
    monkeypatch.setattr(version_commands, "engine_of_arguments", lambda args, packages: RowsEngine())
    code, out, _ = run(capsys, "reprocess", toml, "0-1", "--dry-run")
    assert (code, out.splitlines()[:2]) == (0, ["2 versions are selected: 0-1", "nothing was written"])
    assert "replaced in out: " in out
    document = json.loads(run(capsys, "reprocess", toml, "0-9", "--offsets", "files=0:1", "--dry-run", "--json")[1])
    assert document["versions"] == [0]
    assert fixture.opened().head == head
    code, out, _ = run(capsys, "reprocess", toml, "0-1")
    assert (code, [line.partition(",")[0] for line in out.splitlines()]) == (
        0,
        [f"version {version}: reprocessed as {head + 1 + version}" for version in (0, 1)],
    )
    assert run(capsys, "reprocess", toml, "--until", "2001-01-01T00:00:00Z")[1] == "no committed batch is selected\n"
    for given in (
        ["--dry-run", "--quarantined"],
        ["0", "--downstream", "log"],
        ["0-1", "--run-key", "k"],
        ["one"],
        ["0", "--offsets", "files=0"],
        ["0", "--quarantined"],
        [],
    ):
        assert run(capsys, "reprocess", toml, *given)[0] == 2, given


def test_alter_shows_the_differences_and_records_them_as_a_version(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    toml, log = fixture.root / "p.toml", str(fixture.root / "log")
    head = fixture.opened().head
    toml.write_text(f'{toml.read_text()}\n[sinks.more]\ntype = "files"\npath = "{fixture.root}/more"\n')
    refused = run(capsys, "lag", str(toml))
    assert (refused[0], f"alter {toml} --dry-run" in refused[2]) == (4, True)
    code, out, _ = run(capsys, "alter", str(toml), "--dry-run")
    first, *_, last = out.splitlines()
    assert (code, first) == (0, "immutable fields differ, so an alter is required; the pipeline was not altered")
    config = last.removeprefix("config of the log: ")
    assert f"config='{config}'" in refused[2]
    assert run(capsys, "alter", str(toml), "--alter-from", "0" * 12)[0] == 4
    code, out, _ = run(capsys, "alter", str(toml), "--alter-from", config)
    assert (code, out.splitlines()[0]) == (0, f"version {head + 1} altered the pipeline")
    assert "  sinks.more: added: it gets the rows of later versions only" in out
    assert "  guarantee of more: none before, exactly-once now" in out
    code, out, _ = run(capsys, "alter", str(toml), "--json")
    assert (code, json.loads(out)["version"]) == (0, None)
    assert run(capsys, "alter", str(toml))[1].startswith("the log has the same immutable fields")
    assert "alter, commit" in run(capsys, "log", log)[1]
    assert run(capsys, "show", log, str(head + 1))[1].startswith(f"version {head + 1}: alter, commit\n")


def test_alter_names_the_version_that_it_aborted(fixture: PipelineFixture, capsys: pytest.CaptureFixture[str]) -> None:
    toml = fixture.root / "p.toml"
    fixture.arrive(1)
    fixture.dies("dead")
    toml.write_text(f'{toml.read_text()}\n[sinks.more]\ntype = "files"\npath = "{fixture.root}/more"\n')
    code, out, _ = run(capsys, "alter", str(toml))
    open_version = fixture.opened().head - 1
    assert (code, out.splitlines()[-1]) == (
        0,
        f"version {open_version} was open and is now aborted. If it is a batch, the next run reads its records",
    )


def test_rollback_accepts_a_time_in_place_of_a_version(
    fixture: PipelineFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    toml = str(fixture.root / "p.toml")
    later = CommitLog(fixture.store, ManualClock(1_700_000_600_000, name="later"))
    run_batch(fixture.pipeline(), run_key="later", log=later, engine=RowsEngine())
    refused = run(capsys, "rollback", toml, "--until", "2001-01-01T00:00:00Z")
    assert refused[0] == 2
    assert "no version was closed by this time" in refused[2]
    assert "2001-01-01T00:00:00.000+00:00" in refused[2]
    for given in ([], ["0", "--until", "2023-11-14T22:15:00Z"]):
        refused = run(capsys, "rollback", toml, *given)
        assert refused[0] == 2
        assert "give either the version N to keep, or --until TIME" in refused[2]
    assert run(capsys, "rollback", toml, "--until", "2023-11-14T22:15:00")[0] == 2
    code, out, _ = run(capsys, "rollback", toml, "--until", "2023-11-14T22:15:00Z", "--json")
    document = json.loads(out)
    assert (code, document["version"], document["to"], document["offsets"]) == (0, 2, 0, {"files": 2})
