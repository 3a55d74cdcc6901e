"""The page of guarantees equals the computed matrix, and each row names existing tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import FilesSource, Pipeline, State
from airflow_provider_streamsem.deduplication.settings import Dedup
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.spec.guarantee import guarantee
from tools import guarantee_matrix

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", guarantee_matrix.FILES)
def test_page_equals_the_computed_matrix(name: str) -> None:
    stored = (guarantee_matrix.DIRECTORY / name).read_text()
    assert stored == guarantee_matrix.FILES[name](), "python -m tools.guarantee_matrix"


TESTS_BY_PART = {
    **{f"source {name}": guarantee_matrix.SOURCE_PROOFS[name] for name in guarantee_matrix.SOURCES},
    **{f"sink {name}": guarantee_matrix.PROOFS[name] for name in guarantee_matrix.SINKS},
}


@pytest.mark.parametrize("part", TESTS_BY_PART)
def test_every_part_names_existing_tests(part: str) -> None:
    assert TESTS_BY_PART[part]
    for test_id in TESTS_BY_PART[part]:
        file, _, name = test_id.partition("::")
        assert re.search(rf"def {name}\(", (ROOT / file).read_text()), test_id


@pytest.mark.parametrize("name", [name for name in guarantee_matrix.SINKS if name != "files"])
def test_tests_named_by_a_sink_cover_this_sink(name: str) -> None:
    kind = type(guarantee_matrix.SINKS[name]).__name__
    for test_id in guarantee_matrix.PROOFS[name]:
        file = test_id.partition("::")[0]
        if file == guarantee_matrix.SINK_SUITE:
            suites = [path.read_text() for path in (ROOT / "tests").glob("**/test_*sink_conformance.py")]
            assert any(f"Test{kind}(TransactionalSinkContract)" in suite for suite in suites), kind
            continue
        assert kind.removesuffix("Sink").lower() in file or kind in (ROOT / file).read_text(), test_id


KINDS = {"database": "jdbc", "Kafka": "kafka", "HTTP": "http", "files": "files", "Delta": "delta", "Iceberg": "iceberg"}
"""first word of the name of a sink → its type"""


def with_state(sink: str, mode: str) -> Pipeline:
    return Pipeline(
        name="counts",
        log="/log",
        source=FilesSource(path="/in", format="json", schema="id long"),
        transform=lambda rows: rows.groupBy("id").count(),
        sinks={"out": guarantee_matrix.SINKS[sink]},
        state=State(output_mode=mode),
    )


def reasons_of_mode(sink: str, mode: str) -> list[str]:
    computed = guarantee(with_state(sink, mode))
    stateless = guarantee(with_state(sink, mode).replace(state=None))
    assert (computed.label, computed.sinks) == (stateless.label, stateless.sinks), "state does not change the label"
    return [reason for reason in computed.reasons if "output_mode" in reason]


@pytest.mark.parametrize("sink", guarantee_matrix.SINKS)
def test_guarantee_says_what_a_sink_holds_in_each_output_mode(sink: str) -> None:
    """A sink that appends gets a stream of changes. A sink with mode="upsert" keeps the newest row of each key."""
    assert reasons_of_mode(sink, "append") == []
    (update,) = reasons_of_mode(sink, "update")
    if ", upsert" in sink or "change data" in sink:
        newest = 'sink out: output_mode="{}" returns a key again, and mode="upsert" keeps the newest row of each key'
        assert update == newest.format("update")
        assert reasons_of_mode(sink, "complete") == [newest.format("complete")]
        return
    if "history" in sink:
        assert (
            update
            == 'sink out: output_mode="update" returns a key again, and each row of a key is a version in the table'
        )
        return
    kind = KINDS[re.split("[ ,]", sink)[0]]
    assert update == (
        f'sink out: output_mode="update" returns a row at each change of its key, so a sink of type {kind} gets a stream of changes'
    )
    with pytest.raises(InvalidError, match="would append it again") as refused:
        with_state(sink, "complete")
    assert refused.value.fields["sinks"] == ["out"]


@pytest.mark.parametrize(
    ("settings", "conditions"),
    [
        ({"output_mode": "append"}, "late rows dropped"),
        ({"output_mode": "update", "close_after_s": 60}, "late rows dropped, windows closed by clocks"),
        ({"output_mode": "append", "late": "quarantine", "close_after_s": 60}, ""),
        ({"output_mode": "update", "late": "fail"}, ""),
        ({"output_mode": "complete"}, ""),
    ],
    ids=str,
)
def test_label_says_if_late_rows_are_dropped(settings: dict[str, Any], conditions: str) -> None:
    computed = guarantee(with_state("Delta, upsert", "update").replace(state=State(**settings)))
    assert computed.conditions == ", ".join(filter(None, ["unchanged files", conditions]))
    reasons = "\n".join(computed.reasons)
    assert ("drops rows that are late" in reasons) == bool(conditions)
    assert ("the watermark follows the clock" in reasons) == ("close_after_s" in settings)


def test_guarantee_of_dedup_says_what_clocks_and_reprocessing_with_state_do() -> None:
    def reasons(dedup: Dedup) -> str:
        return "\n".join(guarantee(with_state("Delta, upsert", "update").replace(dedup=dedup)).reasons)

    assert "the age of an id is the difference of the clocks" in reasons(Dedup(keys=["id"], ttl_s=60))
    assert "the age of an id" not in reasons(Dedup(keys=["id"], rows=60))
    assert "a record that only this run lets pass is not in the state" in reasons(Dedup(keys=["id"], rows=60))


def reasons_of(source: str, sink: str) -> str:
    pipeline = Pipeline(
        name="copy",
        log="/log",
        source=guarantee_matrix.SOURCES[source],
        sinks={"out": guarantee_matrix.SINKS[sink]},
    )
    return "\n".join(guarantee(pipeline).reasons)


@pytest.mark.parametrize(
    ("source", "order"),
    [
        ("another pipeline", "Records of one version have no order"),
        ("Delta", "If the limits divide this snapshot into several batches"),
        ("Iceberg", "If the limits divide the initial snapshot into several batches"),
        ("other databases", "Records with equal cursors are applied in any order"),
    ],
)
def test_label_names_records_without_order_if_the_order_matters_for_a_sink(source: str, order: str) -> None:
    for sink in guarantee_matrix.SINKS:
        is_sequenced = getattr(guarantee_matrix.SINKS[sink], "is_sequenced", False)
        assert (order in reasons_of(source, sink)) == is_sequenced


def test_label_of_sinks_that_send_rows_says_in_which_order() -> None:
    for sink in ("HTTP", "Kafka topic"):
        assert "After a repartition, a join or another shuffle, they are sent in any order" in reasons_of("Kafka", sink)


def test_label_of_a_database_says_what_its_collations_do_to_equal_keys() -> None:
    assert "such rows of a batch are not refused" in reasons_of("Kafka", "database, upsert")
