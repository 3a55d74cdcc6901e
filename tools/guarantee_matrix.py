"""
Writes docs/guarantees.md: what each source with each sink keeps, computed by the product's own code, and the tests that would fail if a label promised more.

``python -m tools.guarantee_matrix`` writes the file; tests/batch/test_guarantees.py fails where it is not what this makes, or names a test that is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_streamsem import FilesSink, FilesSource, KafkaSource, Pipeline, QueueSource, SqsQueue
from airflow_provider_streamsem.batch.guarantee import guarantee
from airflow_provider_streamsem.engines.dedup import Dedup
from airflow_provider_streamsem.sinks import operations
from airflow_provider_streamsem.sinks.delta import DeltaSink
from airflow_provider_streamsem.sinks.http import HttpSink
from airflow_provider_streamsem.sinks.iceberg import IcebergSink
from airflow_provider_streamsem.sinks.jdbc import JdbcSink
from airflow_provider_streamsem.sinks.kafka import KafkaSink

PAGE = Path(__file__).parents[1] / "docs" / "guarantees.md"

SOURCES: Mapping[str, Any] = {
    "files": FilesSource(path="/in", format="json", schema="id long"),
    "Kafka": KafkaSource(topics=["orders"], bootstrap_servers="broker:9092"),
    "SQS, AMQP": QueueSource(
        queue=SqsQueue(url="https://sqs.eu-west-1.amazonaws.com/1/orders"), landing="/landing", schema="id long"
    ),
}
SINKS: Mapping[str, Any] = {
    "files": FilesSink(path="/out"),
    "Delta": DeltaSink("/table"),
    "Delta, upsert": DeltaSink("/table", mode="upsert", keys=["id"]),
    "Iceberg": IcebergSink("/iceberg", "lake.orders"),
    "Iceberg, upsert": IcebergSink("/iceberg", "lake.orders", mode="upsert", keys=["id"]),
    "database, append": JdbcSink("warehouse", "orders", "/staged"),
    "database, upsert": JdbcSink("warehouse", "orders", "/staged", mode="upsert", keys=["id"]),
    "database, replace_version": JdbcSink("warehouse", "orders", "/staged", mode="replace_version"),
    "Kafka topic": KafkaSink("/staged", topic="out", bootstrap_servers="broker:9092"),
    "HTTP, an endpoint that keeps keys": HttpSink("/staged", url="http://api/orders", idempotent=True),
    "HTTP, an operation that may be repeated": HttpSink("/staged", url="http://api/orders", operation="upsert_newer"),
    "HTTP": HttpSink("/staged", url="http://api/orders"),
    "HTTP, at most once": HttpSink("/staged", url="http://api/orders", delivery="at_most_once"),
}
BETWEEN: Mapping[str, Mapping[str, Any]] = {
    "a predicate": {"where": "id > 0"},
    "a transform": {"transform": lambda frame: frame},
    "dedup, ids remembered for a day": {"dedup": Dedup(keys=["id"], ttl_s=86_400)},
    "dedup in each batch": {"dedup": Dedup(keys=["id"], scope="batch")},
}
_HTTP = (
    "tests/sinks/test_http.py::test_killed_at_every_step_and_followed",
    "tests/sinks/test_http.py::test_two_at_once_and_one_of_them_pauses_at_every_step",
)
_DATABASE = (
    "tests/sinks/test_jdbc.py::test_death_or_lost_reply_at_any_call_leaves_every_row_once",
    "tests/integration/test_postgres.py::test_two_publishers_at_once_and_one_late_apply_each_of_50_versions_once",
    "tests/integration/test_postgres.py::test_death_or_lost_reply_at_any_statement_leaves_every_row_once",
)
SOURCE_PROOFS: Mapping[str, tuple[str, ...]] = {
    "files": (
        "tests/batch/test_crash_matrix.py::test_crash_then_a_new_process",
        "tests/batch/test_dedup.py::test_repeats_pass_nowhere_after_a_death_at_every_step",
    ),
    "Kafka": (
        "tests/chaos/test_chaos.py::test_every_kind_of_fault_doubles_and_loses_nothing",
        "tests/integration/test_kafka.py::test_retry_reads_the_range_that_was_planned_though_more_has_come",
        "tests/integration/test_kafka.py::test_log_that_was_cut_short_below_what_is_planned_is_noticed_though_it_has_grown_again",
        "tests/integration/test_kafka.py::test_executors_do_not_read_from_elsewhere_what_is_gone",
    ),
    "SQS, AMQP": (
        "tests/sources/test_queue.py::test_killed_at_every_call_to_queue_landing_and_log_each_message_is_one_record",
        "tests/sources/test_queue.py::test_two_runs_at_once_interleaved_at_every_call_give_each_message_one_record",
        "tests/sources/test_landing.py::test_message_that_comes_again_within_the_window_is_dropped_and_after_it_is_a_second_record",
        "tests/integration/test_amqp.py::test_broker_that_is_killed_before_the_acknowledgement_delivers_again_and_nothing_is_repeated",
    ),
}
PROOFS: Mapping[str, tuple[str, ...]] = {
    "files": (
        "tests/batch/test_crash_matrix.py::test_crash_then_a_new_process",
        "tests/chaos/test_chaos.py::test_every_kind_of_fault_doubles_and_loses_nothing",
    ),
    "Delta": (
        "tests/sinks/test_delta.py::test_death_around_every_write_to_the_table_then_a_retry",
        "tests/sinks/test_delta_late.py::test_publisher_that_sleeps_over_its_commit_changes_nothing_in_50_rounds",
        "tests/sinks/test_delta.py::test_publishers_at_once_put_a_batch_into_the_table_once_in_50_rounds",
        "tests/integration/test_delta.py::test_two_processes_that_publish_at_once_put_each_version_into_the_table_once",
    ),
    "Delta, upsert": (
        "tests/sinks/test_delta_upsert.py::test_death_around_every_write_of_a_merge_then_a_retry",
        "tests/sinks/test_delta_upsert.py::test_publishers_at_once_and_one_that_sleeps_merge_each_version_once_in_50_rounds",
        "tests/sinks/test_delta_upsert.py::test_batch_that_is_merged_again_any_number_of_times_brings_no_old_value_back",
    ),
    "Iceberg": (
        "tests/sinks/iceberg/test_publish.py::test_killed_at_every_step_and_run_again_it_is_there_once",
        "tests/sinks/iceberg/test_publish.py::test_two_publishers_at_once_fifty_rounds",
        "tests/sinks/iceberg/test_publish.py::test_a_publisher_that_sleeps_over_its_commit_is_refused_in_50_rounds",
        "tests/integration/test_iceberg.py::test_two_publishers_at_once_and_one_late_over_rest_fifty_rounds",
    ),
    "Iceberg, upsert": (
        "tests/sinks/iceberg/test_publish.py::test_killed_at_every_step_and_run_again_it_is_there_once",
        "tests/sinks/iceberg/test_merge.py::test_two_publishers_at_once_and_one_that_sleeps_over_its_commit_in_50_rounds",
        "tests/sinks/iceberg/test_merge.py::test_batch_that_comes_late_or_again_brings_no_old_value_back",
    ),
    "database, append": _DATABASE,
    "database, upsert": _DATABASE,
    "database, replace_version": (
        *_DATABASE,
        "tests/sinks/test_jdbc.py::test_redo_replaces_the_rows_of_its_whole_chain_and_no_others",
    ),
    "Kafka topic": (
        "tests/integration/test_kafka_sink.py::test_killed_at_every_step_and_followed",
        "tests/integration/test_kafka_sink.py::test_two_publishers_at_once_leave_each_version_there_once",
        "tests/integration/test_kafka_sink.py::test_late_publisher_is_fenced_wherever_it_slept",
    ),
    "HTTP, an endpoint that keeps keys": _HTTP,
    "HTTP, an operation that may be repeated": (
        "tests/sinks/test_http.py::test_operation_that_may_be_repeated_ends_in_the_same_table",
        "tests/sinks/test_http.py::test_label_of_an_operation_is_that_of_the_table",
    ),
    "HTTP": _HTTP,
    "HTTP, at most once": _HTTP,
}
HEAD = """# What is guaranteed

Made by `python -m tools.guarantee_matrix` from the code that computes the guarantee of a pipeline. `streamsem explain PIPELINE.toml` prints it for yours,
every run logs it, and `require="exactly_once"` refuses a pipeline that keeps less while the DAG is parsed.

| label | of every record that is read |
|---|---|
| exactly-once | its effect is there once, whatever is retried, cleared, killed or run twice |
| effectively-once | its effect is there as if once: repeats reach the sink and change nothing there |
| at-least-once | its effect is there once or more |
| at-most-once | its effect is there once or not at all; what may be missing is counted |
| none | one sink may lose and another may repeat: look at each |

A transform changes no label: of all attempts one is decided whole. Rows are counted where they are read and where they are written. A shuffle that comes out
differently when Spark repeats a part of it voids the attempt (Spark 4.1 and newer; ADR 0015).
"""


def label(source: Any, sink: Any, **between: Any) -> str:
    """The computed label of a pipeline, as people read it."""
    found = guarantee(Pipeline(name="p", log="/log", source=source, sinks={"out": sink}, **between))
    return str(found).split("\n")[0]


def by_sink(corner: str, columns: Mapping[str, Callable[[Any], str]]) -> list[str]:
    """A table with a row for each sink."""
    lines = [f"| {corner} | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    return lines + [
        f"| {name} | " + " | ".join(of(sink) for of in columns.values()) + " |" for name, sink in SINKS.items()
    ]


REFUSED_TEXT = (
    "A label holds for every table, file and value that is accepted. What would break it is refused by name before the commit, "
    "or the record is quarantined."
)

REFUSED = [
    (
        "Parquet, ORC files",
        "truncated files and damaged pages with a checksum; columns whose values the schema's type cannot hold; columns that no file holds; "
        "files that contradict each other",
        "sources/files.md",
    ),
    (
        "partition directories",
        "values that do not fit the column's type; with the text format a partition column named `value`",
        "sources/files.md",
    ),
    (
        "JSON and CSV records",
        "quarantined: values that their column cannot hold exactly, text after the record, broken quotes, bytes that are not UTF-8",
        "sources/files.md",
    ),
    (
        "Delta tables",
        "constraints, computed, identity and mapped columns, deletion vectors, unknown table features, expiring transaction numbers; "
        "nulls in `NOT NULL` columns; text longer than `VARCHAR(n)`; reprocessing with `delta.appendOnly`",
        "sinks/delta.md",
    ),
    (
        "Iceberg tables",
        "nulls in required fields; unknown properties; values and types that pyiceberg cannot write; reprocessing of merged rows",
        "sinks/iceberg.md",
    ),
    (
        "databases",
        "tables without transactions; values that a column cannot hold; reprocessing of appended and merged rows",
        "sinks/jdbc.md",
    ),
    ("Kafka topics as sink", "topics that delete records of the markers; reprocessing", "sinks/kafka.md"),
    (
        "every sink with a marker",
        "a table, markers or a control topic that lost published versions: `MarkerLostError`; a log that lost versions of the sink: `MarkerConflictError`",
        "recovery.md",
    ),
    ("columns", "types that neither are equal nor widen from batch to batch", "schema_changes.md"),
    (
        "a log or a dataset",
        "a forged or damaged entry, a key that leads out of its place, a mark of another pipeline or log",
        "security.md",
    ),
]
"""where, what is refused, and the page that describes it"""


def page() -> str:
    """The whole page."""
    lines = [HEAD, "## Source by sink", ""]
    lines += by_sink("sink", {name: partial(label, source) for name, source in SOURCES.items()})
    lines += ["", "## What lies between", ""]
    for name, source in SOURCES.items():
        columns = {other: partial(label, source, **between) for other, between in BETWEEN.items()}
        lines += [*by_sink(f"source {name}, sink", columns), ""]
    lines += ["## Why", ""]
    kinds: tuple[tuple[str, Mapping[str, Any]], ...] = (("source", SOURCES), ("sink", SINKS))
    for kind, parts in kinds:
        for name, part in parts.items():
            lines += [f"**{kind} {name}**", "", *[f"- {reason}" for reason in part.reasons], ""]
    lines += [
        "## Doing it again",
        "",
        "Where a sink cannot take part in a transaction, what it does decides whether a repeat is harmless.",
        "",
    ]
    lines += [*operations.table(), ""]
    lines += ["## What is refused", "", REFUSED_TEXT, "", "| where | refused | described in |", "|---|---|---|"]
    lines += [f"| {where} | {what} | [{place}]({place}) |" for where, what, place in REFUSED]
    lines += [""]
    lines += ["## Proved by", "", "Each would fail if the label promised more than is kept.", ""]
    named = [(f"source {name}", proofs) for name, proofs in SOURCE_PROOFS.items()]
    named += [(f"sink {name}", proofs) for name, proofs in PROOFS.items()]
    for name, proofs in named:
        lines += [f"**{name}**", "", *[f"- `{proof}`" for proof in proofs], ""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
