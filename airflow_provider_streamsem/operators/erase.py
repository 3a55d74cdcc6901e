"""The operator that erases rows from everything that a pipeline stores."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseOperator

from airflow_provider_streamsem.arguments import text
from airflow_provider_streamsem.hooks.pipelines import HasPipeline
from airflow_provider_streamsem.operators.engines import HasEngine
from airflow_provider_streamsem.operators.turns import WaitsForTurn
from airflow_provider_streamsem.pipeline.maintenance.erase import erase
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.protocol.codec import plain
from airflow_provider_streamsem.readers.descriptions import erased as erased_lines
from airflow_provider_streamsem.verbs import MAX_BYTES, ONLY_QUARANTINED, TARGET_FILE_BYTES


class EraseOperator(HasPipeline, HasEngine, WaitsForTurn, BaseOperator):  # type: ignore[misc]
    """
    Erase the rows that a predicate selects, for example those of a person, from everything that the pipeline stores.

    After the erasure, no earlier version can be read. A retry erases what remains. While a version is open, the task waits as a task of
    :class:`CompactOperator` does. A batch that starts during the erasure aborts the version that the erasure is writing. So pause the DAG of the pipeline, or
    give its tasks a pool with one slot.

    The log of the pipeline, the XCom and the log of the task contain no value of ``where``. Airflow stores the rendered template and the params of a DAG
    run. So pass an internal id, or delete the run afterwards.

    XCom ``return_value``: ``{"versions": [n], "sinks": [{"sink": name, "rows": n, "files": n, "table_version": text}], "quarantined": n, "quarantined_in":
    [n], "tombstones": n, "without_columns": [name], "refused": [], "remaining": [text]}``, as the fields of
    :class:`airflow_provider_streamsem.pipeline.maintenance.erase.Erased`. If a sink refuses the erasure, the task fails after all others were erased.

    :param pipeline: a :class:`Pipeline`, or the path of its TOML file (templated)
    :param where: selects the rows (templated): ``user_id = 42``, ``name = 'O''Brien'`` or ``id IN (1, 2)``, joined by ``AND``
    :param only_quarantined: erase only quarantined records, which need not have the columns
    :param target_file_bytes: the size in bytes of new files of files sinks, 65,536 or more
    :param max_bytes: the maximum size in bytes of the files that one version rewrites
    :param patience: how long the task waits for its turn, from its first start. Then it fails with the retryable :class:`OpenVersionError`. Integer seconds or
        a ``timedelta``, 1 second or more
    :param spark_master: as in :class:`MicroBatchOperator`
    :param spark_conn_id: as in :class:`MicroBatchOperator`
    :param spark_conf: as in :class:`MicroBatchOperator`
    :param spark_packages: as in :class:`MicroBatchOperator`
    :raises InvalidError: an argument is not valid, or two arguments cannot be combined
    """

    template_fields: Sequence[str] = ("pipeline_file", "where", "spark_master", "spark_conn_id", "spark_conf")
    ui_color = "#dde3ea"

    def __init__(
        self,
        *,
        pipeline: Pipeline | str,
        where: str,
        only_quarantined: bool = False,
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
        self.where = text("where", where)
        self.only_quarantined = ONLY_QUARANTINED.checked(only_quarantined)
        self.target_file_bytes = TARGET_FILE_BYTES.checked(target_file_bytes)
        self.max_bytes = MAX_BYTES.checked(max_bytes)
        self.set_patience(patience)

    def execute(self, context: Any) -> dict[str, Any]:
        """
        Erase the rows, and return what was erased. Logs the result, too.

        :raises AirflowRescheduleException: a version is open. The task starts again later
        :raises StreamsemError: see :func:`airflow_provider_streamsem.pipeline.maintenance.erase.erase`. An error that is not retryable fails the task at once
        """
        with self.waiting_for_turn(context), self.resolved_pipeline(context) as pipeline:
            erased = erase(
                pipeline,
                where=self.where,
                only_quarantined=self.only_quarantined,
                target_file_bytes=self.target_file_bytes,
                max_bytes=self.max_bytes,
                engine=self.engine(),
            )
        for line in erased_lines(erased, dry_run=False):
            self.log.info("%s", line)
        if (error := erased.refused_error) is not None:
            raise error
        return plain(erased)  # type: ignore[no-any-return]
