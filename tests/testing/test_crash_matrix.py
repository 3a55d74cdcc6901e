"""The crash matrix for a user's pipeline: it kills every step once and reports what breaks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_provider_streamsem import FilesSink, FilesSource, Json, KafkaSource, Pipeline
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.protocol import invariants
from airflow_provider_streamsem.protocol.entries import Committable
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.crash_matrix import Output, compare, crash_matrix, multiset
from airflow_provider_streamsem.testing.harness import PipelineHarness
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.steps import StepReportingStore, Steps
from airflow_provider_streamsem.testing.stores import Crash

Harness = Callable[..., PipelineHarness]
Rows = list[dict[str, Any]]
ENGINE = ["read", "transform", "write lake", "collect lake", "staged"]


def pipeline(transform: Any = None, **changes: Any) -> Pipeline:
    return Pipeline(
        name="orders", log="s3://lake/_streamsem/orders", source=FilesSource(path="s3://lake/in", format="json", schema="id long"),
        **{"sinks": {"lake": FilesSink("s3://lake/orders", format="json")}, "transform": transform, **changes},
    )  # fmt: skip


def named(steps: list[str]) -> list[str]:
    """Replace the parts of step names that differ from run to run."""
    return [re.sub(r"[0-9a-f]{32,}|(?<=sources/)[0-9a-f]{16}", "ID", step) for step in steps]


def report(call: Callable[[], object]) -> str:
    with pytest.raises(AssertionError) as caught:
        call()
    return str(caught.value)


@pytest.fixture
def matrix(tmp_path: Path) -> Callable[..., list[str]]:
    """Return a function that runs the crash matrix of a transform of lists of dicts, over two batches. One batch has a bad record."""

    def run(transform: Any = None, **arguments: Any) -> list[str]:
        harness = PipelineHarness(pipeline(transform), tmp_path)
        return harness.crash_matrix([{"id": 1}, "{broken", {"id": 1}], [{"id": 2}], **arguments)

    return run


class TestSteps:
    def test_process_dies_at_its_step_and_runs_none_after_it(self) -> None:
        steps = Steps(1)
        steps("a")
        for _ in range(2):
            with pytest.raises(Crash):
                steps("b")
        assert (steps.taken, steps.died) == (["a", "b"], True)

    def test_request_is_applied_between_its_two_steps(self) -> None:
        for at, applied in ((0, False), (1, True)):
            inner = MemoryStore()
            with pytest.raises(Crash):
                StepReportingStore(inner, Steps(at)).create("k", b"x")
            assert (inner.read("k") == b"x") is applied

    def test_every_method_of_a_store_is_two_steps(self) -> None:
        steps = Steps()
        store = StepReportingStore(MemoryStore(), steps)
        store.create("a", b"")
        store.read("a")
        assert [stat.key for stat in store.list("")] == ["a"]
        store.stat("a")
        store.delete("a")
        store.create("doctor/x", b"")
        expected = [
            f"{when} {request}"
            for request in ("create a", "read a", "list ", "stat a", "delete a")
            for when in ("before", "after")
        ]
        assert steps.taken == expected


class TestWithoutSpark:
    def test_kills_at_every_request_and_every_step_of_the_engine(self, matrix: Callable[..., list[str]]) -> None:
        steps = named(matrix())
        # Each request is two steps: before and after. PROTOCOL.md, 4 has the requests of a first run.
        requests = [
            "read pipeline.json", "create specs/ID.json", "create pipeline.json", "read pipeline.json", "list log/",
            "read initial_offsets/ID.json", "create initial_offsets/ID.json", "read initial_offsets/ID.json", "read runs/ID/999999999999-0.json",
            "list sources/ID/discovered/", "create sources/ID/discovered/999999999999-0.json", "create log/99999999/999999999999-0.p.json", *ENGINE,
            "create quarantine/0/ID/00000.jsonl", "create attempts/0/ID.json", "create runs/ID/999999999999-0.json", "create log/99999999/999999999999-0.c.json",
            "create log/99999999/999999999998-1.p.json", *ENGINE,
            "create attempts/1/ID.json", "create runs/ID/999999999998-1.json", "create log/99999999/999999999998-1.c.json",
            "read runs/ID/999999999999-0.json", "read runs/ID/announced.json", "create announced/999999999998-1.json",
        ]  # fmt: skip
        assert steps == [s for r in requests for s in ([r] if r in ENGINE else [f"before {r}", f"after {r}"])]

    def test_each_step_is_killed_once_and_each_run_starts_from_scratch(
        self, matrix: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        killed: list[int] = []
        real = Steps.__call__

        def watched(self: Steps, name: str) -> None:
            died = self.died
            try:
                real(self, name)
            except Crash:
                killed.extend([len(self.taken) - 1] if not died else [])
                raise

        monkeypatch.setattr(Steps, "__call__", watched)
        started = count()
        steps = matrix(prepare=lambda: next(started))
        assert killed == list(range(len(steps)))
        assert next(started) == len(steps) + 2

    def test_duplicated_side_effect_is_reported_with_its_steps(self, matrix: Callable[..., list[str]]) -> None:
        sent: list[int] = []

        def mails(rows: Rows) -> Rows:
            sent.extend(row["id"] for row in rows)
            return rows

        report_text = report(lambda: matrix(mails, prepare=sent.clear, observe=lambda: Counter(sent)))
        faults = re.findall(
            r"killed at step (\d+) of (\d+), ([^\n]*):\n    observed: duplicated (\d+)", named([report_text])[0]
        )
        between = ["write lake", "collect lake", "staged"]
        assert [(step, doubled) for _, _, step, doubled in faults] == [
            *[(step, "2") for step in [*between, "before create quarantine/0/ID/00000.jsonl", "after create quarantine/0/ID/00000.jsonl", "before create attempts/0/ID.json"]],
            *[(step, "1") for step in [*between, "before create attempts/1/ID.json"]],
        ]  # fmt: skip

    @pytest.mark.parametrize("reconciled", [True, False])
    def test_sink_that_collects_files_of_another_attempt_is_detected(
        self, matrix: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, reconciled: bool
    ) -> None:
        """The pipeline's own row counts refuse such an attempt. Without that check the matrix finds the duplicated rows."""
        collect = FilesSink.collect

        def of_all_attempts(sink: FilesSink, version: int, attempt_id: str) -> Committable:
            committables = [collect(sink, version, attempt) for _, attempt in sorted(sink.attempts(version))]
            files = tuple(file for committable in committables for file in committable.files)
            return Committable(format=sink.format, rows=sum(file.rows for file in files), files=files)

        monkeypatch.setattr(FilesSink, "collect", of_all_attempts)
        if not reconciled:
            monkeypatch.setattr(invariants, "check_i14_staged", lambda *args, **named: None)
        report_text = report(matrix)
        difference = (
            "the retry failed: StageError: .* passed_to_writer=2, files=4"
            if reconciled
            else r".*\n.*rows of lake: duplicated 2: \{'id': 1\} \(2 times\)(.*\n)*.*I8"
        )
        assert re.search(rf"killed at step 28 of 56, collect lake:\n    {difference}", report_text), report_text

    def test_sink_that_loses_the_first_write_after_a_kill_is_detected(
        self, matrix: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        collect = FilesSink.collect

        def half(sink: FilesSink, version: int, attempt_id: str) -> Committable:
            collected = collect(sink, version, attempt_id)
            return collected if len(sink.attempts(version)) == 1 else Committable(format=sink.format, rows=0)

        monkeypatch.setattr(FilesSink, "collect", half)
        monkeypatch.setattr(invariants, "check_i14_staged", lambda *args, **named: None)
        report_text = report(matrix)
        assert re.search(
            r"killed at step 28 of 56, collect lake:\n    counts: .*\n    rows of lake: lost 2: \{'id': 1\} \(2 times\)",
            report_text,
        ), report_text

    def test_nondeterministic_transform_is_refused_before_any_kill(self, matrix: Callable[..., list[str]]) -> None:
        evaluated = count()

        def stamped(rows: Rows) -> Rows:
            at = next(evaluated)
            return [{**row, "loaded": at} for row in rows]

        report_text = report(lambda: matrix(stamped))
        assert "ignore=" in report_text
        assert "killed" not in report_text
        assert "rows of lake: lost 3" in report_text
        assert len(matrix(stamped, ignore=["loaded"])) == 56

    def test_failed_retry_is_a_finding_of_the_step_before_it(self, matrix: Callable[..., list[str]]) -> None:
        transformed_ids: set[int] = set()

        def once(rows: Rows) -> Rows:
            for row in {row["id"] for row in rows}:
                if row in transformed_ids:
                    raise RuntimeError(f"{row} was repeated")
                transformed_ids.add(row)
            return rows

        with pytest.raises(
            AssertionError,
            match=r"killed at step 27 of 56, write lake:\n    the retry failed: RuntimeError: 1 was repeated",
        ) as caught:
            matrix(once, prepare=transformed_ids.clear)
        assert isinstance(caught.value.__cause__, RuntimeError)

    def test_matrix_that_could_not_fail_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidError, match="cannot fail"):
            PipelineHarness(pipeline(), tmp_path).crash_matrix()

    def test_crash_wrapped_in_another_error_still_counts_as_a_crash(
        self, matrix: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stage = RowsEngine.stage

        def wrap_error(engine: RowsEngine, job: Any, log: Any) -> Any:
            try:
                return stage(engine, job, log)
            except BaseException as error:
                raise RuntimeError("something failed") from error

        monkeypatch.setattr(RowsEngine, "stage", wrap_error)
        assert len(matrix()) == 56


class TestComparison:
    def trial(self, outputs: Iterator[Output], steps: Iterator[int]) -> Any:
        class RunStub:
            def run(self, run_steps: Steps) -> None:
                for n in range(next(steps)):
                    run_steps(f"step {n}")

            def output(self) -> Output:
                return next(outputs)

        return RunStub

    def test_kill_that_is_never_reached_fails(self) -> None:
        outputs: Iterator[Output] = iter([{"rows": 1}] * 9)
        report_text = report(lambda: crash_matrix(self.trial(outputs, iter([2, 2, 1, 2, 1]))))
        assert "killed at step 2 of 2, step 1:\n    the run took only 1 steps" in report_text

    def test_differences_name_lost_duplicated_and_new_rows(self) -> None:
        expected = {"rows": multiset([{"id": 1}, {"id": 2}, {"id": 3}]), "counts": {"read": 3}}
        actual = {"rows": multiset([{"id": 1}, {"id": 1}, {"id": 4}, {"id": 3}]), "counts": {"read": 4}}
        assert compare(expected, actual) == [
            "counts: {'read': 4}, but the run without a kill has {'read': 3}",
            "rows: lost 1: {'id': 2}; duplicated 1: {'id': 1}; new 1: {'id': 4}",
        ]
        assert compare(expected, expected) == []

    def test_many_rows_are_reported_as_a_few_examples_and_their_number(self) -> None:
        (report_text,) = compare({"rows": multiset([])}, {"rows": multiset({"id": n} for n in range(9))})
        assert report_text == "rows: new 9: {'id': 0}, {'id': 1}, {'id': 2}, {'id': 3}, {'id': 4}, and 4 others"

    def test_rows_are_equal_in_any_column_order_and_differ_by_type(self) -> None:
        row: Mapping[str, Any] = {"a": [1, {"x": None}], "b": float("nan")}
        assert multiset([row]) == multiset([dict(reversed(row.items()))])
        assert multiset([{"a": 1}]) != multiset([{"a": "1"}])


@pytest.mark.spark
class TestOnSpark:
    @pytest.mark.prove
    def test_kafka_pipeline_with_two_sinks_survives_a_kill_at_every_step(self, streamsem_harness: Harness) -> None:
        def split(frame: DataFrame) -> dict[str, DataFrame]:
            return {"lake": frame.withColumn("at", F.current_timestamp()), "users": frame.select("user").distinct()}

        orders = Pipeline(
            name="orders", log="s3://lake/_streamsem/orders",
            source=KafkaSource(topics=["orders"], conn_id="kafka_default", value=Json("id long, user string")),
            sinks={"lake": FilesSink("s3://lake/orders", partition_by=["user"]), "users": FilesSink("s3://lake/users")}, transform=split, where="id > 0",
        )  # fmt: skip
        rows = [
            {"id": 1, "user": "ann"},
            {"id": 1, "user": "ann"},
            {"id": 2, "user": None},
            {"id": 0, "user": "x"},
            "{broken",
        ]
        steps = streamsem_harness(orders).crash_matrix(rows, ignore=["at"])
        assert [step for step in steps if " " not in step or step.startswith(("write", "collect"))] == [
            "read", "transform", "write lake", "write users", "collect lake", "collect users", "staged",
        ]  # fmt: skip

    @pytest.mark.prove
    def test_sink_that_appends_outside_its_attempts_location_is_detected(
        self, streamsem_harness: Harness, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """The sink copies what it stages into one directory, for readers that list it."""
        stage = FilesSink.stage
        copy = tmp_path / "copy"

        def appends(sink: FilesSink, frame: DataFrame, version: int, attempt_id: str) -> None:
            stage(sink, frame, version, attempt_id)
            frame.write.mode("append").json(str(copy))

        def prepare() -> None:
            for file in copy.glob("*"):
                file.unlink()

        def listed() -> Counter[str]:
            return Counter(line for file in copy.glob("part-*") for line in file.read_text().splitlines())

        monkeypatch.setattr(FilesSink, "stage", appends)
        harness = streamsem_harness(pipeline())
        report_text = named([report(lambda: harness.crash_matrix([{"id": 1}], prepare=prepare, observe=listed))])[0]
        assert re.findall(r"killed at step \d+ of \d+, ([^\n]*):\n    observed: duplicated 1: \{\"id\":1\}", report_text) == [
            "collect lake", "staged", "before create attempts/0/ID.json",
        ]  # fmt: skip
