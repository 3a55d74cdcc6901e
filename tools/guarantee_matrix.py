"""
Writes the guarantee of each source with each sink, computed by the product's own code.

``python -m tools.guarantee_matrix`` writes the files of :data:`FILES`: a page, a table of all combinations, and a page with the tests of each guarantee.
tests/pipeline/test_guarantees.py fails if one is out of date, or names a missing test.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_streamsem import (
    FilesSink,
    FilesSource,
    JdbcSource,
    KafkaSource,
    KinesisSource,
    NatsSource,
    Pipeline,
    PipelineSource,
    PulsarSource,
    QueueSource,
    RateSource,
    ReplaySource,
    SqsQueue,
)
from airflow_provider_streamsem.connectors.changes import Changes
from airflow_provider_streamsem.connectors.delta.sink import DeltaSink
from airflow_provider_streamsem.connectors.delta.source import DeltaSource
from airflow_provider_streamsem.connectors.http import operations
from airflow_provider_streamsem.connectors.http.sink import HttpSink
from airflow_provider_streamsem.connectors.iceberg.sink import IcebergSink
from airflow_provider_streamsem.connectors.iceberg.source import IcebergSource
from airflow_provider_streamsem.connectors.kafka.sink import KafkaSink
from airflow_provider_streamsem.connectors.sql.sink import JdbcSink
from airflow_provider_streamsem.deduplication.settings import Dedup
from airflow_provider_streamsem.pipeline.spec.guarantee import guarantee

DIRECTORY = Path(__file__).parents[1] / "docs" / "explanation"

SOURCES: Mapping[str, Any] = {
    "files": FilesSource(path="/in", format="json", schema="id long"),
    "Kafka": KafkaSource(topics=["orders"], bootstrap_servers="broker:9092"),
    "Kinesis": KinesisSource(stream="orders"),
    "Postgres": JdbcSource(conn_id="shop", table="orders", cursor="id"),
    "Postgres, changes followed": JdbcSource(conn_id="shop", table="orders", cursor="updated_at", changes="follow"),
    "other databases": JdbcSource(conn_id="shop", table="orders", cursor="created_at", lag=600),
    "NATS": NatsSource(stream="ORDERS", servers="nats:4222"),
    "Pulsar": PulsarSource(topic="orders", service_url="pulsar://pulsar:6650", admin_url="http://pulsar:8080"),
    "SQS, AMQP, Pub/Sub": QueueSource(
        queue=SqsQueue(url="https://sqs.eu-west-1.amazonaws.com/1/orders"), landing="/landing", schema="id long"
    ),
    "rate": RateSource(),
    "replay": ReplaySource(path="/in", format="json", schema="id long", start="2026-01-01T00:00:00Z"),
    "Delta": DeltaSource(path="/source"),
    "Delta, changes": DeltaSource(path="/source", changes="read"),
    "Iceberg": IcebergSource(path="/source", table="lake.orders"),
    "another pipeline": PipelineSource(log="/bronze"),
}
_HISTORY = Changes(keys=["id"], sequence_by="seq", stored_as_scd_type=2)
SINKS: Mapping[str, Any] = {
    "files": FilesSink(path="/out"),
    "Delta": DeltaSink("/table"),
    "Delta, append by Spark": DeltaSink("/table", engine="spark"),
    "Delta, upsert": DeltaSink("/table", mode="upsert", keys=["id"]),
    "Delta, upsert by Spark": DeltaSink("/table", mode="upsert", keys=["id"], engine="spark"),
    "Delta, change data": DeltaSink("/table", changes=Changes(keys=["id"], sequence_by="seq")),
    "Delta, history of rows": DeltaSink("/table", changes=_HISTORY),
    "Iceberg": IcebergSink("/iceberg", "lake.orders"),
    "Iceberg, append by Spark": IcebergSink("/iceberg", "lake.orders", engine="spark"),
    "Iceberg, upsert": IcebergSink("/iceberg", "lake.orders", mode="upsert", keys=["id"]),
    "Iceberg, upsert by Spark": IcebergSink("/iceberg", "lake.orders", mode="upsert", keys=["id"], engine="spark"),
    "Iceberg, change data": IcebergSink("/iceberg", "lake.orders", changes=Changes(keys=["id"], sequence_by="seq")),
    "Iceberg, history of rows": IcebergSink("/iceberg", "lake.orders", changes=_HISTORY),
    "database, append": JdbcSink("warehouse", "orders", "/staged"),
    "database, upsert": JdbcSink("warehouse", "orders", "/staged", mode="upsert", keys=["id"]),
    "database, replace_version": JdbcSink("warehouse", "orders", "/staged", mode="replace_version"),
    "database, change data": JdbcSink(
        "warehouse", "orders", "/staged", changes=Changes(keys=["id"], sequence_by="seq")
    ),
    "database, history of rows": JdbcSink("warehouse", "orders", "/staged", changes=_HISTORY),
    "Kafka topic": KafkaSink("/staged", topic="out", bootstrap_servers="broker:9092"),
    "HTTP, an endpoint that deduplicates by key": HttpSink("/staged", url="http://api/orders", idempotent=True),
    "HTTP, an idempotent operation": HttpSink("/staged", url="http://api/orders", operation="upsert_newer"),
    "HTTP": HttpSink("/staged", url="http://api/orders"),
    "HTTP, at most once": HttpSink("/staged", url="http://api/orders", delivery="at_most_once"),
}
STEPS: Mapping[str, Mapping[str, Any]] = {
    "`where`": {"where": "id > 0"},
    "a transform": {"transform": lambda frame: frame},
    "`Dedup(ttl_s=86400)`": {"dedup": Dedup(keys=["id"], ttl_s=86_400)},
    '`Dedup(scope="batch")`': {"dedup": Dedup(keys=["id"], scope="batch")},
}
"""What a pipeline may have between its source and its sinks."""
_HTTP = (
    "tests/connectors/http/test_every_step.py::test_crash_at_every_step_then_a_retry_keeps_the_promise_of_the_label",
    "tests/connectors/http/test_every_step.py::test_concurrent_runs_with_a_pause_at_every_step_keep_the_promise_of_the_label",
)
SINK_SUITE = "airflow_provider_streamsem/testing/conformance/sinks.py"
_TRANSACTIONS = (
    f"{SINK_SUITE}::test_fault_at_any_request_and_a_retry_keep_the_delivery_of_the_sink",
    f"{SINK_SUITE}::test_two_concurrent_publishers_apply_each_commit_once_in_every_round",
    f"{SINK_SUITE}::test_publisher_paused_at_any_request_changes_nothing_after_newer_commits",
)
"""The conformance suite, which every sink with transactions passes."""
_BY_SPARK = (
    *_TRANSACTIONS,
    "tests/connectors/staged_parquet/test_merge_engine.py::test_merge_that_fails_is_not_repeated_and_leaves_the_table_as_it_was",
)
_CHANGES = (
    *_TRANSACTIONS,
    "tests/connectors/staged_parquet/test_changes.py::test_table_has_the_newest_state_of_each_key_in_any_order_of_arrival",
    "tests/connectors/staged_parquet/test_changes.py::test_tombstone_is_kept_for_its_time_to_live",
)
_VERSIONS = (
    *_TRANSACTIONS,
    "tests/connectors/staged_parquet/test_history.py::test_table_has_every_version_of_each_row_in_any_order_of_arrival",
    "tests/integration/test_spark_merge.py::test_history_merged_by_spark_equals_that_merged_by_the_library",
)
_DATABASE = (
    *_TRANSACTIONS,
    "tests/connectors/sql/test_sink.py::test_crash_or_lost_reply_at_any_call_leaves_every_row_once",
    "tests/integration/test_postgres.py::test_two_concurrent_publishers_and_a_late_one_apply_each_version_once",
    "tests/integration/test_postgres.py::test_crash_or_lost_reply_at_any_statement_leaves_every_row_once",
)
SOURCE_PROOFS: Mapping[str, tuple[str, ...]] = {
    "files": (
        "tests/pipeline/test_crash_matrix.py::test_retry_after_a_crash_commits_each_row_once",
        "tests/pipeline/test_dedup.py::test_no_duplicate_is_written_after_a_crash_at_any_step",
    ),
    "Kafka": (
        "tests/chaos/test_chaos.py::test_no_kind_of_fault_duplicates_or_loses_records",
        "tests/integration/test_kafka.py::test_retry_reads_the_planned_range_though_more_records_arrived",
        "tests/integration/test_kafka.py::test_partition_truncated_below_a_planned_range_is_detected_though_it_has_grown_again",
        "tests/integration/test_kafka.py::test_executors_fail_on_missing_offsets_instead_of_reading_others",
    ),
    "Kinesis": (
        "tests/integration/test_kinesis.py::test_records_before_between_and_after_reshards_are_read_once_and_parents_first",
        "tests/integration/test_kinesis.py::test_crash_at_every_request_then_a_retry_reads_every_record_once",
        "tests/integration/test_kinesis.py::test_two_runs_interleaved_at_every_request_read_every_record_once",
        "tests/integration/test_kinesis.py::test_reader_that_retention_overtakes_fails_instead_of_skipping_records",
    ),
    "Postgres": (
        "tests/integration/test_jdbc_source.py::test_row_that_commits_after_a_later_row_is_read",
        "tests/integration/test_jdbc_source.py::test_value_that_another_sequence_than_the_default_gave_before_the_row_was_written_is_waited_for",
        "tests/integration/test_jdbc_source.py::test_transaction_that_began_before_the_poll_and_writes_after_it_is_read",
        "tests/integration/test_jdbc_source.py::test_row_of_a_prepared_transaction_is_not_read_until_it_ends",
        "tests/integration/test_jdbc_source.py::test_concurrent_transactions_in_any_order_lose_and_duplicate_no_row",
        "tests/integration/test_jdbc_source.py::test_row_that_changes_after_its_plan_fails_the_check",
    ),
    "Postgres, changes followed": (
        "tests/integration/test_jdbc_source.py::test_changed_row_is_read_again_where_changes_are_followed",
        "tests/connectors/sql/test_source.py::test_updated_row_leaves_its_range_where_changes_are_followed",
    ),
    "other databases": (
        "tests/integration/test_jdbc_source.py::test_row_of_the_last_lag_seconds_is_left_for_a_later_run",
        "tests/connectors/sql/test_source.py::test_changed_number_of_rows_of_a_plan_fails_its_check",
    ),
    "NATS": (
        "tests/integration/test_nats.py::test_retry_reads_the_planned_range_though_more_messages_arrived",
        "tests/integration/test_nats.py::test_messages_that_retention_deleted_fail_the_run_or_become_a_gap",
        "tests/integration/test_nats.py::test_server_restored_from_an_older_copy_is_detected",
        "tests/connectors/nats/test_reading.py::test_retention_during_the_read_fails_it_unless_all_deleted_messages_were_read",
        "tests/connectors/nats/test_reading.py::test_replica_that_lags_behind_the_leader_is_awaited_and_then_fails_the_read",
    ),
    "Pulsar": (
        "tests/integration/test_pulsar.py::test_retry_reads_the_planned_range_though_more_messages_arrived",
        "tests/integration/test_pulsar.py::test_unread_messages_that_retention_deleted_fail_the_run_or_become_a_gap",
        "tests/integration/test_pulsar.py::test_entry_without_a_message_fails_the_batch_with_the_reason",
        "tests/connectors/pulsar/test_source.py::test_partition_that_ends_below_its_committed_offset_is_refused",
    ),
    "SQS, AMQP, Pub/Sub": (
        "tests/connectors/queue/test_source.py::test_crash_at_every_call_to_queue_landing_and_log_gives_each_message_one_record",
        "tests/connectors/queue/test_source.py::test_two_runs_interleaved_at_every_call_give_each_message_one_record",
        "tests/connectors/landing/test_messages.py::test_redelivered_message_is_dropped_within_the_window_and_a_new_record_after_it",
        "tests/integration/test_amqp.py::test_messages_redelivered_by_a_broker_killed_before_the_acknowledgement_are_not_repeated",
        "tests/integration/test_pubsub.py::test_expired_ack_id_is_ignored_and_its_message_is_dropped_at_the_next_delivery",
    ),
    "rate": (
        "airflow_provider_streamsem/testing/conformance/sources.py::test_plan_read_again_has_the_same_records",
        "tests/connectors/rate/test_source.py::test_records_are_the_same_for_the_same_seed_and_differ_for_another",
    ),
    "replay": (
        "tests/connectors/replay/test_source.py::test_crash_at_every_request_then_a_retry_reads_every_file_once",
        "tests/connectors/replay/test_source.py::test_two_first_runs_interleaved_at_every_request_read_every_file_once",
        "tests/connectors/replay/test_source.py::test_first_polls_with_different_listings_record_one_of_them_and_refuse_the_other",
        "tests/connectors/replay/test_source.py::test_directory_that_changes_is_refused_by_name",
    ),
    "Delta": (
        "tests/connectors/delta/test_source.py::test_runs_in_new_processes_plan_each_file_once_at_every_limit",
        "tests/connectors/delta/test_source.py::test_version_that_changes_rows_is_refused_by_name_or_skipped_as_a_whole",
        "tests/connectors/delta/test_source.py::test_history_from_an_older_copy_is_refused_even_if_it_has_grown_again",
        "tests/connectors/delta/test_source.py::test_versions_without_entries_fail_the_run_or_become_a_gap",
        "tests/integration/test_delta_source.py::test_rows_are_those_of_sparks_own_reader",
    ),
    "Delta, changes": (
        "tests/connectors/delta/test_source.py::test_change_feed_equals_that_of_another_reader",
        "tests/integration/test_delta_source.py::test_changes_are_those_of_sparks_own_reader",
    ),
    "Iceberg": (
        "tests/connectors/iceberg/test_source.py::test_runs_in_new_processes_plan_each_file_once_at_every_limit",
        "tests/connectors/iceberg/test_source.py::test_snapshot_that_changes_rows_is_refused_by_name_or_skipped",
        "tests/connectors/iceberg/test_source.py::test_branch_that_was_rolled_back_is_refused_even_if_it_has_grown_again",
        "tests/connectors/iceberg/test_source.py::test_unread_snapshots_that_expired_fail_the_run_or_become_a_gap",
        "tests/integration/test_iceberg_source.py::test_rows_are_those_of_sparks_own_reader",
    ),
    "another pipeline": (
        "tests/connectors/pipeline/test_corrections.py::test_crash_at_every_step_of_a_run_with_a_correction_loses_and_duplicates_no_row",
        "tests/connectors/pipeline/test_corrections.py::test_upstream_that_commits_and_corrects_at_every_step_of_a_run",
        "tests/connectors/pipeline/test_corrections.py::test_two_runs_at_every_step_of_a_run_with_a_correction",
        "tests/connectors/pipeline/test_source.py::test_upstream_reprocessed_before_it_was_read_is_read_once_with_its_newest_rows",
    ),
}
PROOFS: Mapping[str, tuple[str, ...]] = {
    "files": (
        "tests/pipeline/test_crash_matrix.py::test_retry_after_a_crash_commits_each_row_once",
        "tests/chaos/test_chaos.py::test_no_kind_of_fault_duplicates_or_loses_records",
    ),
    "Delta": (
        "tests/connectors/delta/test_sink.py::test_crash_around_every_write_to_the_table_then_retry_publishes_each_row_once",
        "tests/connectors/delta/test_late.py::test_publisher_paused_before_its_commit_changes_nothing_in_every_round",
        *_TRANSACTIONS,
        "tests/integration/test_delta.py::test_two_concurrent_publishing_processes_add_each_version_once",
    ),
    "Delta, upsert": (
        "tests/connectors/delta/test_upsert.py::test_crash_around_every_write_of_a_merge_then_retry_merges_each_row_once",
        "tests/connectors/delta/test_upsert.py::test_concurrent_and_paused_publishers_merge_each_version_once_in_every_round",
        "tests/connectors/delta/test_upsert.py::test_repeated_merge_never_restores_an_old_value",
    ),
    "Delta, append by Spark": (
        *_BY_SPARK,
        "tests/integration/test_existing_tables.py::test_delta_table_is_used_or_refused_as_the_documentation_says",
    ),
    "Delta, upsert by Spark": (
        *_BY_SPARK,
        "tests/integration/test_delta.py::test_rows_merged_by_key_are_equal_in_spark_and_delta_rs",
        "tests/connectors/delta/test_snapshot.py::test_state_is_that_of_the_log_with_any_form_of_checkpoint",
    ),
    "Iceberg": (
        "tests/connectors/iceberg/test_publish.py::test_crash_at_every_step_then_retry_publishes_once",
        *_TRANSACTIONS,
        "tests/integration/test_iceberg.py::test_two_concurrent_publishers_and_a_late_one_over_rest_in_every_round",
    ),
    "Iceberg, upsert": (
        "tests/connectors/iceberg/test_publish.py::test_crash_at_every_step_then_retry_publishes_once",
        "tests/connectors/iceberg/test_merge.py::test_concurrent_publishers_and_one_paused_before_its_commit_in_every_round",
        "tests/connectors/iceberg/test_merge.py::test_late_or_repeated_batch_never_restores_an_old_value",
    ),
    "Iceberg, append by Spark": (
        *_BY_SPARK,
        "tests/integration/test_existing_tables.py::test_iceberg_table_is_used_or_refused_as_the_documentation_says",
    ),
    "Iceberg, upsert by Spark": (
        *_BY_SPARK,
        "tests/integration/test_iceberg.py::test_rows_merged_by_key_are_equal_for_pyiceberg_spark_and_duckdb",
    ),
    "database, append": _DATABASE,
    "database, upsert": _DATABASE,
    "Delta, change data": (
        "tests/prove/test_change_data.py::test_delta_iceberg_and_postgres_equal_their_source_though_debezium_broker_and_drivers_are_killed",
        "tests/connectors/delta/test_changes.py::test_table_has_the_changes_of_each_key_after_a_crash_at_any_step",
        "tests/integration/test_spark_merge.py::test_changes_merged_by_spark_give_the_newest_state_of_each_key_in_any_order_of_arrival",
        *_CHANGES,
    ),
    "Delta, history of rows": (
        *_VERSIONS,
        "tests/prove/test_change_data.py::test_delta_iceberg_and_postgres_equal_their_source_though_debezium_broker_and_drivers_are_killed",
        "tests/connectors/delta/test_changes.py::test_table_has_the_changes_of_each_key_after_a_crash_at_any_step",
    ),
    "Iceberg, history of rows": _VERSIONS,
    "Iceberg, change data": (
        *_CHANGES,
        "tests/integration/test_spark_merge.py::test_changes_merged_by_spark_give_the_newest_state_of_each_key_in_any_order_of_arrival",
    ),
    "database, change data": (
        *_CHANGES,
        "tests/integration/test_postgres.py::test_changes_give_the_newest_state_of_each_key_in_any_order_of_arrival",
    ),
    "database, history of rows": (
        *_TRANSACTIONS,
        "tests/connectors/sql/test_sink.py::test_changes_apply_once_and_in_order_after_a_crash_or_lost_reply_at_any_call",
        "tests/integration/test_postgres.py::test_history_equals_that_of_a_delta_table",
        "tests/integration/test_mariadb.py::test_history_equals_that_of_a_delta_table",
    ),
    "database, replace_version": (
        *_DATABASE,
        "tests/connectors/sql/test_sink.py::test_reprocessing_replaces_only_the_rows_of_its_chain",
    ),
    "Kafka topic": (
        "tests/integration/test_kafka_sink.py::test_crash_at_every_step_then_a_retry_keeps_the_promise_of_the_label",
        *_TRANSACTIONS,
    ),
    "HTTP, an endpoint that deduplicates by key": _HTTP,
    "HTTP, an idempotent operation": (
        "tests/connectors/http/test_every_step.py::test_idempotent_operation_leaves_the_same_table_after_repeated_calls",
        "tests/connectors/http/test_arguments.py::test_guarantee_of_an_operation_matches_the_operations_table",
    ),
    "HTTP": _HTTP,
    "HTTP, at most once": _HTTP,
}
HEAD = """# Guarantees

This page lists the guarantee of each source with each sink, and the reasons. `streamsem explain PIPELINE.toml` prints
the guarantee of a pipeline, and every run logs it. A pipeline with `require="exactly_once"` and a weaker guarantee is
refused when the DAG is parsed. `python -m tools.guarantee_matrix` generates this page with the code that computes the
guarantee of a pipeline.

| label | meaning, for every record that is read |
|---|---|
| exactly-once | it takes effect in the sink once, after any retry, clear, kill or concurrent run |
| effectively-once | it may reach the sink several times, but repeats change nothing in the sink |
| at-least-once | it takes effect in the sink once or more often |
| at-most-once | it takes effect in the sink once or not at all; records that may be missing are counted |
| none | one sink may lose records and another may repeat them: see the label of each sink |

Some guarantees have conditions, which are in parentheses. `lag 600` means that a row which is committed more than 600
seconds late may be lost. [SQL source](../connectors/sql-source.md#delivery-guarantee) explains it, and `unchanged rows`
and `newest state of a row`. [Deduplication](../reference/deduplication.md) explains `dedup 24 h`,
and [queues](../connectors/queues.md#dedup-window) explains `queue dedup 24 h`.
`partly ordered records` means that some records of the source have no order, and the sink depends on it: [Order of
rows](order.md#rows-of-one-version).
`late rows dropped` is the condition of a pipeline with state whose `late` is `"drop"`, and [Keep
state](../how-to/keep-state.md#watermarks-and-late-rows) explains it and `windows closed by clocks`. [Apply change
data](../how-to/change-data.md#tombstones) explains `tombstones 168 h`.
[Tests of the guarantees](guarantee-tests.md) names the tests of each source and sink.

A transform does not change the label, because the output of one attempt is committed as a whole. The engine counts
rows when it reads and when it writes them. If Spark repeats a part of a shuffle and gets other rows, the attempt is
discarded ([ADR 0015](../adr/0015-nondeterministic-shuffles.md)). Spark 4.0 does not detect this, so rows may be lost and
repeated: with Spark 4.0, do not shuffle by random values.

With several sinks, the engine evaluates the records once, and each DataFrame from which several sinks get rows
([ADR 0021](../adr/0021-sinks-read-stored-rows.md)). Each sink may compute more columns in any way. Each sink
may select rows by deterministic functions of Spark. One sink may select rows by any operation. An attempt is refused if two sinks select rows by
random values, user code or the order of rows that are not computed in a common DataFrame. On Spark Connect this also
applies to clocks. [Several sinks](../connectors/index.md#several-sinks) has an example.
"""


def label(source: Any, sink: Any, **between: Any) -> str:
    """Return the computed label of a pipeline, as users read it."""
    computed = guarantee(Pipeline(name="p", log="/log", source=source, sinks={"out": sink}, **between))
    return str(computed).split("\n")[0]


def labels(sink: Any) -> dict[str, dict[str, str]]:
    """
    Return source → column → label of a pipeline from the source into the sink.

    The columns are those of :data:`STEPS`, and ``""`` for a pipeline without them.
    """
    columns: Mapping[str, Mapping[str, Any]] = {"": {}, **STEPS}
    return {
        name: {column: label(source, sink, **between) for column, between in columns.items()}
        for name, source in SOURCES.items()
    }


def groups_of_sinks() -> dict[str, dict[str, dict[str, str]]]:
    """Return names of sinks → their labels. Sinks that have the same labels with every source are one group."""
    groups: list[tuple[list[str], dict[str, dict[str, str]]]] = []
    for name, sink in SINKS.items():
        computed = labels(sink)
        same = next((names for names, others in groups if others == computed), None)
        if same is None:
            groups.append(([name], computed))
        else:
            same.append(name)
    return {"; ".join(names): computed for names, computed in groups}


def by_source(columns: Mapping[str, Callable[[str], str]]) -> list[str]:
    """Return a table with a row for each source."""
    lines = ["| source | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    return lines + [f"| {name} | " + " | ".join(of(name) for of in columns.values()) + " |" for name in SOURCES]


STEPS_TEXT = """\
## With a predicate, a transform or deduplication

A predicate and a transform do not change the guarantee. An attempt evaluates a predicate once for each record. If
the predicate is not deterministic, the engine fixes its clock or stores the records first. Deduplication lowers exactly-once to effectively-once: within the
stated window each id is written once, but a repeat after the window is written again. These are the guarantees into sinks
of group **A**. The [table of all combinations](guarantees.csv) has the other groups."""

TESTS_HEAD = """\
# Tests of the guarantees

This page names tests of each source and each sink. Each test fails if the pipeline does not keep its
[guarantee](guarantees.md). `python -m tools.guarantee_matrix` generates this page.
"""

REFUSED_TEXT = (
    "With Spark 4.1 or newer, a label holds for every table, file and value that is accepted. Data that would break it is refused before the commit, and the "
    "error names it. Or the record is quarantined."
)

REFUSED = [
    (
        "Parquet, ORC files",
        "truncated files and damaged pages with a checksum; columns whose values the schema's type cannot hold; columns that no file holds; "
        "files that contradict each other",
        "../connectors/files-source.md",
    ),
    (
        "partition directories",
        "values that do not fit the column's type; with the text format a partition column named `value`",
        "../connectors/files-source.md",
    ),
    (
        "JSON and CSV records",
        "quarantined: values that their column cannot hold exactly, text after the record, broken quotes, bytes that are not UTF-8",
        "../connectors/files-source.md",
    ),
    (
        "Delta tables",
        "constraints, generated, identity and mapped columns, deletion vectors, unknown table features, expiring transaction identifiers; "
        "nulls in `NOT NULL` columns; text longer than `VARCHAR(n)`; reprocessing with `delta.appendOnly`",
        "../connectors/delta-sink.md",
    ),
    (
        "Delta tables as source",
        "versions that change rows, unless they are skipped or read as changes; recreated tables, rewritten histories, shallow clones, "
        "unknown reader features, column mapping by id, binary partition columns",
        "../connectors/delta-source.md",
    ),
    (
        "Iceberg tables as source",
        "snapshots that overwrite or delete rows, unless they are skipped; recreated tables, branches that were rolled back, delete files, format version 1, "
        "columns that Spark lacks, default values, files that are not Parquet",
        "../connectors/iceberg-source.md",
    ),
    (
        "Iceberg tables",
        "tables with required columns; format version 3; encryption; values and types that pyiceberg cannot write; reprocessing of merged rows",
        "../connectors/iceberg-sink.md",
    ),
    (
        "databases",
        "tables without transactions; values that a column cannot hold; reprocessing of appended and merged rows",
        "../connectors/sql-sink.md",
    ),
    ("Kafka topics as sink", "topics that delete records of the markers; reprocessing", "../connectors/kafka-sink.md"),
    (
        "every sink with a marker",
        "a table, markers or a control topic that lost published versions: `MarkerLostError`; a log that lost versions of the sink: `MarkerConflictError`",
        "../how-to/recover.md",
    ),
    ("columns", "types that change from batch to batch, unless they widen", "../reference/schema-changes.md"),
    (
        "a log or a dataset",
        "a forged or damaged entry, a key that leads out of its location, an ownership marker of another pipeline or log",
        "../reference/security.md",
    ),
]
"""The kind of data, the forms of it that are refused, and the page that describes them."""


_LETTERS = "ABCDEFGH"


def _cell(labels_of_group: Mapping[str, Mapping[str, str]], column: str, source: str) -> str:
    return labels_of_group[source][column]


def page() -> str:
    """Return the whole page."""
    groups = groups_of_sinks()
    lines = [HEAD, "## Source by sink", "", "Sinks of one group have the same labels with every source:", ""]
    for number, names in enumerate(groups):
        lines += [f"- **{_LETTERS[number]}**: {names}"]
    lines += ["", *by_source({_LETTERS[n]: partial(_cell, computed, "") for n, computed in enumerate(groups.values())})]
    lines += ["", STEPS_TEXT, ""]
    lines += [*by_source({column: partial(_cell, groups[next(iter(groups))], column) for column in STEPS}), ""]
    lines += ["## Why", ""]
    kinds: tuple[tuple[str, Mapping[str, Any]], ...] = (("source", SOURCES), ("sink", SINKS))
    for kind, parts in kinds:
        for name, part in parts.items():
            lines += [f"**{kind} {name}**", "", *[f"- {reason}" for reason in part.reasons], ""]
    lines += [
        "## Idempotent operations",
        "",
        "If a sink cannot take part in a transaction, its operation determines whether a repeated call is harmless.",
        "",
    ]
    lines += [*operations.table(), ""]
    lines += ["## What is refused", "", REFUSED_TEXT, "", "| where | refused | described in |", "|---|---|---|"]
    lines += [f"| {where} | {refused} | [{Path(location).stem}]({location}) |" for where, refused, location in REFUSED]
    return "\n".join(lines).rstrip() + "\n"


def table() -> str:
    """Return the labels of all combinations as CSV."""
    rows = [
        [source, sink, column.strip("`"), found]
        for sink, part in SINKS.items()
        for source, columns in labels(part).items()
        for column, found in columns.items()
    ]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([["source", "sink", "step", "guarantee"], *rows])
    return text.getvalue()


def page_of_tests() -> str:
    """Return the page that names the tests of each source and each sink."""
    lines = [TESTS_HEAD]
    named = [(f"Source {name}", proofs) for name, proofs in SOURCE_PROOFS.items()]
    named += [(f"Sink {name}", proofs) for name, proofs in PROOFS.items()]
    for name, proofs in named:
        lines += [f"**{name}**", "", *[f"- `{proof}`" for proof in proofs], ""]
    return "\n".join(lines).rstrip() + "\n"


FILES: Mapping[str, Callable[[], str]] = {
    "guarantees.md": page,
    "guarantees.csv": table,
    "guarantee-tests.md": page_of_tests,
}


if __name__ == "__main__":
    for name, content in FILES.items():
        (DIRECTORY / name).write_text(content())
