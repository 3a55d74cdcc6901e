"""The operator that compacts the files of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseOperator

from airflow_provider_streamsem.arguments import text
from airflow_provider_streamsem.hooks.pipelines import HasPipeline
from airflow_provider_streamsem.operators.engines import HasEngine
from airflow_provider_streamsem.operators.turns import WaitsForTurn
from airflow_provider_streamsem.pipeline.maintenance.compact import compact
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.protocol.codec import plain
from airflow_provider_streamsem.verbs import MAX_BYTES, TARGET_FILE_BYTES


class CompactOperator(HasPipeline, HasEngine, WaitsForTurn, BaseOperator):  # type: ignore[misc]
    """
    Rewrite the rows of many small files into fewer, larger files. No row changes, appears or disappears.

    Each rewrite is one version of the log. Readers of this version and of later ones read the new files. If a run needs the next version before the new files
    are complete, the run aborts the rewrite. The task then waits, as it does while a version is open: Airflow starts it again after ``retry_delay``, in the
    same try (before Airflow 3.3: it fails, and Airflow retries it). So place the task after the
    batch in the DAG of the pipeline, or in a DAG that runs when no batch runs.

    XCom ``return_value``: a list with one object for each rewrite: ``{"sink": name, "version": n, "commits": n, "rows": n, "files": n, "bytes": n,
    "new_files": n, "new_bytes": n, "table_version": text}``. It is empty if there was nothing to rewrite. For a table, ``version`` and ``commits`` are null.
    For a files sink, ``table_version`` is null.

    :param pipeline: a :class:`Pipeline`, or the path of its TOML file (templated)
    :param sink: the sink to compact; default: all files sinks. The table of a Delta or Iceberg sink is compacted only if it is named here: afterwards, versions
        whose files were rewritten cannot be reprocessed or rolled back in this table
    :param target_file_bytes: the size in bytes of the new files, 65,536 or more
    :param max_bytes: the maximum size in bytes of the files that one version, or one Iceberg snapshot, rewrites
    :param patience: how long the task waits for its turn, from its first start. Then it fails with the retryable :class:`OpenVersionError`. Integer seconds or
        a ``timedelta``, 1 second or more
    :param spark_master: as in :class:`MicroBatchOperator`
    :param spark_conn_id: as in :class:`MicroBatchOperator`
    :param spark_conf: as in :class:`MicroBatchOperator`
    :param spark_packages: as in :class:`MicroBatchOperator`
    :raises InvalidError: an argument is not valid, or two arguments cannot be combined
    """

    template_fields: Sequence[str] = ("pipeline_file", "spark_master", "spark_conn_id", "spark_conf")
    ui_color = "#dde3ea"

    def __init__(
        self,
        *,
        pipeline: Pipeline | str,
        sink: str | None = None,
        target_file_bytes: int = TARGET_FILE_BYTES.default,
        max_bytes: int = MAX_BYTES.default,
        patience: timedelta | float = timedelta(hours=1),
        spark_master: str | None = None,
        spark_conn_id: str | None = None,
        spark_conf: dict[str, str] | None = None,
        spark_packages: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.set_pipeline(pipeline)
        self.set_engine(spark_master, spark_conn_id, spark_conf, spark_packages)
        self.sink = None if sink is None else text("sink", sink)
        self.target_file_bytes = TARGET_FILE_BYTES.checked(target_file_bytes)
        self.max_bytes = MAX_BYTES.checked(max_bytes)
        self.set_patience(patience)

    def execute(self, context: Any) -> list[dict[str, Any]]:
        """
        Compact the files, and return the rewrites.

        :raises AirflowRescheduleException: a version is open, or a run has aborted the rewrite. The task starts again later
        :raises StreamsemError: see :func:`airflow_provider_streamsem.pipeline.maintenance.compact.compact`. An error that is not retryable fails the
        task at once
        """
        with self.waiting_for_turn(context), self.resolved_pipeline(context) as pipeline:
            rewrites = compact(
                pipeline,
                sink=self.sink,
                target_file_bytes=self.target_file_bytes,
                max_bytes=self.max_bytes,
                engine=self.engine(),
            )
        return [plain(rewrite) for rewrite in rewrites]
