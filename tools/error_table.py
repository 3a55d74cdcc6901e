"""
Writes docs/reference/errors.md: the causes of errors, the error that each raises, whether Airflow retries the task, and what to do.

``python -m tools.error_table`` writes the page. tests/architecture/test_error_table.py fails if the page is out of date, or if the test of a row is missing or
expects another error.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from airflow_provider_streamsem.errors import (
    ConflictError,
    DataError,
    DatasetOwnedError,
    HeldVersionError,
    InvalidError,
    LogDamagedError,
    LogMovedError,
    LookupChangedError,
    MarkerConflictError,
    MarkerLostError,
    NewerFormatError,
    OpenVersionError,
    PublishError,
    RecordsMissingError,
    SourceChangedError,
    StageError,
    StoreRefusedError,
    StreamsemError,
    UnavailableError,
    UnsafeStoreError,
)

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "errors.md"


@dataclass(frozen=True)
class Row:
    """
    One cause of an error.

    :param cause: the cause, in the words of a user
    :param error: the class that is raised
    :param do: what to do
    :param test: ``file::function`` below ``tests/`` that produces the cause
    """

    cause: str
    error: type[StreamsemError]
    do: str
    test: str


TABLES: dict[str, list[Row]] = {
    "Installation": [
        Row(
            "a client library is not installed (`deltalake`, `confluent_kafka` and others)",
            InvalidError,
            "run the `pip install` command of the message",
            "spark/test_versions.py::test_missing_libraries_are_one_error_before_anything_is_written",
        ),
        Row(
            "`pyspark` and `pyspark-client` are installed in different versions",
            InvalidError,
            "install one version of both: the extra `spark`, `spark40` or `spark42` (`spark43` has no `pyspark-client`)",
            "spark/test_versions.py::test_pyspark_and_pyspark_client_in_two_versions_are_refused_before_a_session_starts",
        ),
        Row(
            "Java is not found",
            InvalidError,
            "install Java 17 or 21 (Spark 4.2 and newer: or 25), or set `JAVA_HOME`",
            "spark/test_causes.py::test_missing_java_is_reported_and_not_retried",
        ),
        Row(
            "Java is too old for Spark, or too new: Java 24 and newer for Spark 4.0 and 4.1",
            InvalidError,
            "set `JAVA_HOME` to Java 17 or 21",
            "spark/test_causes.py::test_java_on_which_spark_is_known_to_fail_is_refused_before_it_starts",
        ),
        Row(
            "the Python of the executors has another version, lacks a module, or does not start",
            InvalidError,
            "set `PYSPARK_PYTHON` to the same version on every executor, or install the module",
            "spark/test_causes.py::test_python_of_the_executors_that_does_not_fit_is_not_retried",
        ),
        Row(
            "Spark lacks a class, a JDBC driver or a file system, or has jars of another version",
            InvalidError,
            "add the jar to `spark.jars` or `spark.jars.packages`",
            "spark/test_causes.py::test_installation_that_does_not_fit_is_reported_and_not_retried",
        ),
        Row(
            "Spark refuses its master or a setting",
            InvalidError,
            "correct the connection or `spark_conf`",
            "spark/test_causes.py::test_master_or_setting_that_spark_refuses_is_not_retried",
        ),
        Row(
            "an executor, a Python worker or the JVM of Spark ended, or memory was short",
            StageError,
            "run again; if it fails again, give the process that is named more memory",
            "spark/test_causes.py::test_lost_process_of_spark_is_named_and_retried",
        ),
        Row(
            "Spark lacks a package: Kafka, Avro, `hadoop-aws`",
            InvalidError,
            '`spark_packages="auto"`, or the setting that the message names ([Spark packages](../how-to/spark-packages.md))',
            "spark/test_spark_packages.py::test_missing_package_is_reported_before_anything_is_read",
        ),
        Row(
            "a Spark Connect server does not respond, or ended in a batch",
            StageError,
            "check that the server runs, and host and port of the connection",
            "spark/test_causes.py::test_connect_server_that_does_not_respond_is_named_and_retried",
        ),
        Row(
            "a Spark Connect server refuses the token",
            StoreRefusedError,
            "correct the password of the connection, which is the token",
            "spark/test_causes.py::test_connect_server_that_refuses_the_token_is_not_retried",
        ),
        Row(
            "a Spark Connect server lacks TLS, or has a version that does not fit the client",
            InvalidError,
            "correct `use_ssl`, host and port of the connection, or install the server's version of `pyspark-client`",
            "spark/test_causes.py::test_server_that_does_not_fit_the_connect_client_is_not_retried",
        ),
        Row(
            "`spark-submit` cannot start",
            StageError,
            "install Spark on the worker, and correct the connection",
            "operators/test_submission.py::test_spark_submit_that_cannot_start_fails_the_task_before_it_defers",
        ),
    ],
    "Pipeline and connections": [
        Row(
            "the run key of a call belongs to another run: a batch, or the reprocessing of another version",
            InvalidError,
            "use another run key",
            "pipeline/test_reprocess.py::test_run_key_of_another_request_is_refused",
        ),
        Row(
            "an argument of a pipeline, source or sink is wrong",
            InvalidError,
            "correct the value that is named",
            "pipeline/test_pipeline.py::test_invalid_argument_of_a_files_source_is_reported_by_name",
        ),
        Row(
            "a pipeline file (TOML) is wrong",
            InvalidError,
            "correct the table or name that is named",
            "pipeline/test_pipeline.py::test_error_for_an_invalid_pipeline_file_names_the_cause",
        ),
        Row(
            "the guarantee is weaker than `require`",
            InvalidError,
            "run `streamsem explain`, then change the pipeline or `require`",
            "operators/test_airflow.py::test_pipeline_file_below_its_required_guarantee_is_refused_when_the_dag_is_parsed",
        ),
        Row(
            "a pipeline contains a secret",
            InvalidError,
            "put it into an Airflow connection",
            "pipeline/test_pipeline.py::test_secrets_in_a_url_are_refused_and_not_in_the_error",
        ),
        Row(
            "a connection cannot be read",
            InvalidError,
            "correct the connection",
            "connectors/kafka/test_source.py::test_invalid_connection_is_reported_without_its_text",
        ),
        Row(
            "the source, sink or key columns were changed under an existing log",
            ConflictError,
            "see the effects with `streamsem alter PIPELINE.toml --dry-run`, then alter it; or undo the change; or use a new log and dataset",
            "pipeline/test_opening.py::test_spec_with_changed_immutable_fields_is_refused_and_the_fields_are_reported",
        ),
        Row(
            "an altered source reads other records than that of the log",
            InvalidError,
            "start a new pipeline, or fork it from a time: `streamsem fork NEW.toml LOG --from TIME`",
            "pipeline/test_alter.py::test_other_source_is_refused",
        ),
        Row(
            "a version is held, so no run can plan another one",
            HeldVersionError,
            "[compare](../how-to/reprocess.md#compare-before-the-rows-become-visible) its rows, then commit or abort the version",
            "pipeline/test_review.py::test_no_other_writer_closes_a_held_version",
        ),
        Row(
            "a compaction finds a version that is open or not published yet, or another writer creates the version that it plans",
            OpenVersionError,
            "[compact](../how-to/compact.md#in-a-dag) again when the run of the version has ended",
            "pipeline/test_compact.py::test_compaction_is_refused_while_a_version_is_open",
        ),
        Row(
            "a compaction cannot read files of the dataset, or the new files have other rows",
            DataError,
            "run `streamsem verify`, and restore the files that it names",
            "spark/test_compact.py::test_damaged_file_stops_the_rewrite_and_the_version_is_aborted",
        ),
        Row(
            "the predicate of an erasure cannot be parsed, no sink has its columns, or the type of a column does not fit its values",
            InvalidError,
            "correct [the predicate](../how-to/erase.md#the-predicate)",
            "pipeline/test_erase.py::test_predicate_that_is_not_supported_erases_nothing",
        ),
        Row(
            "an erasure finds a version that is open or not published yet, or another writer creates the version that it plans",
            OpenVersionError,
            "[erase](../how-to/erase.md) again when the run of the version has ended: the erasure continues",
            "pipeline/test_erase.py::test_erasure_is_refused_while_a_version_is_open_or_held",
        ),
        Row(
            "an erasure finds rows in a Delta table with a change data feed or `delta.appendOnly`",
            InvalidError,
            "[follow the error](../how-to/erase.md#what-is-erased), then erase again; the rows of other sinks are erased",
            "connectors/delta/test_erase.py::test_table_that_a_delete_by_this_library_would_break_is_refused_by_name",
        ),
        Row(
            "an alter removes a sink to which a commit is not published yet",
            ConflictError,
            "run the pipeline with the former spec, or skip the version for the sink; then alter it",
            "pipeline/test_alter.py::test_pending_publish_to_a_removed_table_is_refused_until_it_is_published_or_skipped",
        ),
        Row(
            "a rollback to a version before an alter",
            InvalidError,
            "roll back to the alter or a newer version, or fork the pipeline at the version",
            "pipeline/test_alter.py::test_rollback_to_a_version_before_an_alter_is_refused",
        ),
        Row(
            "two pipelines write to one dataset",
            DatasetOwnedError,
            "give each pipeline a separate dataset. If the log was moved: `streamsem move-log`",
            "pipeline/test_opening.py::test_two_logs_over_one_dataset_are_refused",
        ),
        Row(
            "the log was moved",
            LogMovedError,
            "set `log` to the location in the message",
            "commitlog/test_move.py::test_log_can_be_moved_again_but_not_back",
        ),
    ],
    "Transform and columns": [
        Row(
            "a transform cannot be imported",
            InvalidError,
            "install or correct the module that is named",
            "spark/test_causes.py::test_transform_that_cannot_be_imported_names_the_cause",
        ),
        Row(
            "`where` names a column or function that does not exist, or is not SQL",
            DataError,
            "correct `where`: the message names the columns",
            "spark/test_causes.py::test_invalid_predicate_is_reported_with_the_available_columns",
        ),
        Row(
            "a transform names a column, table, function or path that does not exist",
            DataError,
            "correct the line that the field `at` names",
            "spark/test_causes.py::test_transform_with_an_unknown_column_is_reported_with_its_name",
        ),
        Row(
            "a transform, or a Python function in it, raises an exception that the same records raise again, such as `KeyError`, `TypeError` or `ValueError`",
            DataError,
            "correct the line that the field `at` names, or the records; the traceback has the message",
            "spark/test_causes.py::test_transform_that_raises_is_reported_with_its_exception_and_line",
        ),
        Row(
            "a transform, or a Python function in it, raises another exception, such as `ConnectionError`",
            StageError,
            "correct the line that the field `at` names, if a retry does not help",
            "spark/test_spark.py::test_transform_that_raises_fails_the_stage_and_its_message_is_not_quoted",
        ),
        Row(
            "an expression fails on the data: a cast, a division by zero, an index",
            DataError,
            "correct the expression in `at`, or use its `try_` form",
            "spark/test_causes.py::test_expression_that_fails_on_the_data_is_not_retried",
        ),
        Row(
            "a transform returns no DataFrame, or DataFrames for other sinks",
            DataError,
            "return a DataFrame, or a dict of sink name and DataFrame",
            "spark/test_spark.py::test_transform_with_an_invalid_return_value_is_reported",
        ),
        Row(
            "DataFrames of several sinks select rows by random values, user code or the order of rows",
            DataError,
            "compute these values in a common DataFrame, and select rows by its columns ([several sinks](../connectors/index.md#several-sinks))",
            "spark/test_evaluation.py::test_sinks_that_select_rows_by_separate_evaluations_are_refused",
        ),
        Row(
            "different rows with equal keys, whose order is unknown, for a sink that keeps the last one",
            DataError,
            "set `sequence_by` of the sink, or return one row for each key ([order of rows](../explanation/order.md))",
            "spark/test_order.py::test_rows_whose_order_the_source_does_not_have_are_refused",
        ),
        Row(
            "a column changed its type",
            DataError,
            "cast it in the transform ([schema changes](schema-changes.md))",
            "spark/test_spark.py::test_added_columns_are_recorded_and_changed_types_refused",
        ),
    ],
    "State": [
        Row(
            "stateful operators or watermarks were added, removed or replaced",
            InvalidError,
            "undo the change; or fork the pipeline at its start (`streamsem fork --at -1`): [state](state.md#what-cannot-change)",
            "state/test_changes.py::test_other_operators_are_refused_by_name",
        ),
        Row(
            "a key or value of the state has another type",
            DataError,
            "use the former type; or fork the pipeline at its start (`streamsem fork --at -1`)",
            "state/test_changes.py::test_changed_type_of_a_key_or_value_is_refused",
        ),
        Row(
            "a watermark on a column that is no timestamp",
            DataError,
            "cast the column that is named to a timestamp",
            "state/test_changes.py::test_watermark_on_a_column_that_is_no_timestamp_is_refused_by_name",
        ),
        Row(
            "a newer Spark has written the state",
            InvalidError,
            "run that version of Spark, or a newer one",
            "state/test_changes.py::test_state_of_a_newer_spark_is_refused",
        ),
        Row(
            "the installed Spark does not support state",
            InvalidError,
            "install Spark 4.1, 4.2 or 4.3, and do not use Spark Connect",
            "spark/test_versions.py::test_state_is_kept_only_by_tested_versions_of_spark",
        ),
        Row(
            "a state file is missing, truncated, or has the content of another one",
            DataError,
            "restore the files below `state/operators` in the log ([keep state](../how-to/keep-state.md)); or fork the pipeline at an earlier version",
            "state/test_swapped.py::test_swapped_state_file_is_detected_before_a_batch_builds_on_it",
        ),
    ],
    "Source": [
        Row(
            "brokers do not respond",
            UnavailableError,
            "check the addresses in the message, and the network",
            "connectors/kafka/test_source.py::test_unreachable_brokers_are_reported_by_address",
        ),
        Row(
            "a database refuses the user, the password, the database name or the TLS settings",
            StoreRefusedError,
            "correct what `reason` names, in the Airflow connection or in the database",
            "integration/test_jdbc_mistakes.py::test_sink_without_access_is_refused_without_retries",
        ),
        Row(
            "the user of a database lacks the privilege to read a table or column",
            DataError,
            "grant `SELECT` on it, or name other `columns`",
            "integration/test_jdbc_source.py::test_table_that_the_user_may_not_read_is_refused_by_name",
        ),
        Row(
            "a database has a value that no type of Spark holds: a zero date, `infinity`, `NaN` in a decimal",
            DataError,
            "read the column that is named with `as_text`, and convert it in the transform",
            "integration/test_jdbc_source.py::test_value_that_spark_cannot_hold_fails_the_run_by_column",
        ),
        Row(
            "the directory of a files source does not exist",
            UnavailableError,
            "mount or create it, or correct `path`",
            "pipeline/test_gaps.py::test_missing_source_directory_is_an_error_and_not_an_empty_source",
        ),
        Row(
            "a planned file was changed",
            RecordsMissingError,
            'restore the file; or set `on_data_loss="record_gap"`',
            "pipeline/test_gaps.py::test_changed_planned_file_is_reported_by_name",
        ),
        Row(
            "an unread file was changed or deleted",
            SourceChangedError,
            'restore the file; or set `on_data_loss="record_gap"`',
            "pipeline/test_gaps.py::test_missing_file_is_not_a_gap_after_an_abort_by_an_operator",
        ),
        Row(
            "pinned rows of a lookup were changed or deleted, and again after the batch was planned again",
            LookupChangedError,
            "run again; if they change during every batch, use a lookup that keeps old versions ([Lookup tables](../how-to/look-up.md))",
            "pipeline/test_lookups.py::test_rows_that_change_while_each_attempt_reads_them_fail_the_run",
        ),
        Row(
            "a planned file was deleted",
            RecordsMissingError,
            'restore the file; or set `on_data_loss="record_gap"`',
            "pipeline/test_gaps.py::test_file_deleted_between_plan_and_read_is_reported_by_name",
        ),
        Row(
            "a file of a replayed directory was added or changed",
            SourceChangedError,
            "restore the directory; or replay the changed one with a new log and new datasets",
            "connectors/replay/test_source.py::test_directory_that_changes_is_refused_by_name",
        ),
        Row(
            "unread records of a Kafka topic were deleted, or the topic was recreated",
            SourceChangedError,
            'restore the topic; or set `on_data_loss="record_gap"` for records that are missing',
            "integration/test_kafka.py::test_recreated_topic_is_not_mistaken_for_the_old_one",
        ),
        Row(
            "a Kafka record has a timestamp in nanoseconds or microseconds",
            DataError,
            'correct the producer; delete the records up to it, and set `on_data_loss="record_gap"`',
            "integration/test_kafka.py::test_record_with_a_timestamp_that_spark_cannot_read_is_named_and_can_be_skipped",
        ),
        Row(
            "a Parquet or ORC file is damaged",
            DataError,
            'put a good copy into the source under another name, delete the damaged file, and set `on_data_loss="record_gap"`',
            "connectors/files/test_formats.py::test_corrupt_columnar_file_fails_the_batch_and_is_reported_by_name",
        ),
        Row(
            "a Parquet column has a type without a type of Spark: nanoseconds, `float16`, more than 38 digits",
            DataError,
            "name the column in `schema` with the type of the message, or write another type",
            "connectors/files/test_columnar_sources.py::test_parquet_type_without_a_type_of_spark_is_reported_with_the_schema_that_reads_it",
        ),
        Row(
            "a file has columns whose names differ only in upper and lower case",
            DataError,
            'put in a copy with other names, delete the file, and set `on_data_loss="record_gap"`',
            "connectors/files/test_columnar_sources.py::test_columns_that_differ_only_in_case_are_reported_by_name",
        ),
        Row(
            "more bad records than `max_quarantined`",
            DataError,
            "raise the limit, run again, and inspect the records: `streamsem quarantine LOG`; or correct the schema. Do not edit a planned file",
            "spark/test_spark.py::test_errors_about_records_name_a_file",
        ),
    ],
    "Locations": [
        Row(
            "the store of a new log does not support create-if-absent",
            UnsafeStoreError,
            "use another store: `streamsem doctor LOG` tests it",
            "commitlog/test_doctor.py::test_store_that_violates_the_contract_is_refused_with_the_observed_behavior",
        ),
        Row(
            "a newer release has written the log",
            NewerFormatError,
            "install that release, or a newer one",
            "golden/test_golden.py::test_log_of_a_newer_format_is_refused_with_the_advice_to_upgrade",
        ),
        Row(
            "the bucket does not exist",
            StoreRefusedError,
            "create the bucket, or correct the URL",
            "stores/test_s3.py::test_error_names_a_missing_bucket",
        ),
        Row(
            "S3 credentials are missing",
            StoreRefusedError,
            "set the variables or the connection that the message names",
            "stores/test_s3.py::test_error_for_missing_credentials_names_the_variables_and_the_connection",
        ),
        Row(
            "S3 refuses the access key, the secret key, the token, the region or a permission, or the endpoint is not an S3 server",
            StoreRefusedError,
            "correct what the message names",
            "stores/test_s3.py::test_mistake_that_s3_reports_is_named_and_not_retried",
        ),
        Row(
            "the endpoint, the region or the profile for S3 is not valid",
            InvalidError,
            "correct the value in the message",
            "stores/test_s3.py::test_setting_that_boto3_refuses_is_named_and_no_request_is_sent",
        ),
        Row(
            "Spark has other credentials, another endpoint or another scheme for S3 than the store accepts",
            StoreRefusedError,
            "correct `fs.s3a.access.key`, `fs.s3a.secret.key`, `fs.s3a.endpoint` or the `AWS_` variables of driver and executors",
            "spark/test_causes.py::test_refusal_of_a_store_names_its_cause_and_no_values_of_records",
        ),
        Row(
            "a store does not respond to Spark",
            StageError,
            "check the server in the message, and the network of driver and executors",
            "spark/test_causes.py::test_store_that_does_not_respond_to_spark_is_named_and_retried",
        ),
        Row(
            "the S3 endpoint does not respond",
            UnavailableError,
            "check the endpoint in the message, and the network",
            "stores/test_s3.py::test_error_names_an_endpoint_that_does_not_respond",
        ),
        Row(
            "the log cannot be written: no permission, disk full",
            StoreRefusedError,
            "grant permission to write, or free space",
            "pipeline/test_store_failures.py::test_run_continues_without_loss_after_the_log_was_not_writable",
        ),
        Row(
            "Spark cannot write below the path of a sink",
            StoreRefusedError,
            "grant Spark's user permission to write there",
            "spark/test_causes.py::test_location_that_spark_cannot_write_to_is_reported_and_not_retried",
        ),
        Row(
            "the disk or the quota of a sink is full",
            StoreRefusedError,
            "free space at the location",
            "spark/test_causes.py::test_full_disk_of_a_sink_is_reported_with_its_location_and_not_retried",
        ),
    ],
    "Sinks outside the log, and recovery": [
        Row(
            "a table or topic refuses a committed batch",
            PublishError,
            "correct the table and run again; or `streamsem skip`",
            "pipeline/test_publish.py::test_refused_batch_stays_committed_and_is_published_when_the_sink_is_fixed",
        ),
        Row(
            "a table was deleted, renamed, or restored from an older copy",
            MarkerLostError,
            "restore it ([recover](../how-to/recover.md)); or `streamsem skip`",
            "pipeline/test_lost_markers.py::test_deleted_sink_is_reported_by_verify_and_not_written_by_runs",
        ),
        Row(
            "the log was restored from an older copy",
            MarkerConflictError,
            "restore the newest copy ([recover](../how-to/recover.md))",
            "pipeline/test_lost_markers.py::test_log_restored_without_its_newest_version_stops_runs_until_the_newest_copy_is_restored",
        ),
        Row(
            "an object of the log was changed or deleted",
            LogDamagedError,
            "run `streamsem verify`, and restore the object that is named",
            "pipeline/test_opening.py::test_dataset_without_its_ownership_marker_is_refused",
        ),
    ],
}

_HEAD = """# Errors

This page lists the errors that users meet: the cause, the class of the error, whether Airflow retries the task, and
what to do. Every message says what happened, what is true now and, after `Do:`, what to do. A message names columns, files,
hosts and settings, but no values of records and no secrets.

- **Retried: no.** A retry cannot help. The task fails at once, even if it has `retries` left.
- **Retried: yes.** The task fails, and Airflow tries it again according to its `retries`. A retry never
  weakens the guarantee of the pipeline.

In both cases the failed batch commits no rows, unless the message says that its version is committed. Earlier batches
of the same run stay committed. Remove the cause. Then clear the task, or wait for the next run.

`python -m tools.error_table` generates this page. A test triggers each cause.
"""


def page() -> str:
    """Return the text of the page."""
    parts = [_HEAD]
    for title, rows in TABLES.items():
        parts.append(f"## {title}\n\n| what is wrong | error | retried | what to do |\n|---|---|---|---|")
        parts[-1] += "".join(
            f"\n| {row.cause} | `{row.error.__name__}` | {'yes' if row.error.retryable else 'no'} | {row.do} |"
            for row in rows
        )
        parts[-1] += "\n"
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
