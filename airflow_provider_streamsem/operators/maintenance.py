"""Operators that maintain the log and the datasets of a pipeline. They start no Spark session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import BaseOperator

from airflow_provider_streamsem.hooks.failures import airflow_exception
from airflow_provider_streamsem.hooks.pipelines import HasPipeline
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.protocol.codec import plain
from airflow_provider_streamsem.readers import descriptions
from airflow_provider_streamsem.readers.verify import verify
from airflow_provider_streamsem.verbs import ALL_VERSIONS, DRY_RUN, KEEP_DAYS, KEEP_VERSIONS, LOG_ONLY

_SHOWN = 5


class VacuumOperator(HasPipeline, BaseOperator):  # type: ignore[misc]
    """
    Delete the files, quarantined records and manifests that losing attempts of closed versions left behind.

    The operator also deletes rows that were staged for sinks outside the log, once their receipts exist. For a transform with state, it deletes the state
    that only versions before the newest ``state.keep_versions`` need. It deletes no file of an open version. Without ``keep_versions``, it deletes no file that
    a reader needs. It is safe to run while batches run. If versions would expire, it needs the next version of the log, and fails with
    ``OpenVersionError`` while a version is open, so set ``retries``.

    By default, a vacuum skips the versions that an earlier vacuum inspected more than a day after they were closed.

    XCom ``return_value``: ``{"attempts": n, "keys": n, "bytes": n, "expired": n, "oldest_readable": version or null, "dry_run": bool}``. ``attempts`` is the
    number of attempts whose files were deleted. ``keys`` is the number of objects that were deleted from the log. ``bytes`` is the total size of both.
    ``expired`` is the number of versions that this vacuum let expire, and ``oldest_readable`` the oldest version that can still be read, or ``null`` if no
    version has expired. With ``dry_run``, the fields say what a vacuum would do.

    :param pipeline: a :class:`Pipeline`, or the path of its TOML file (templated). The operator deletes only in the datasets and the log of this pipeline
    :param dry_run: delete nothing, and report what a vacuum would delete
    :param all_versions: inspect all versions. This finds the files of an attempt that ran for more than a day after its version was closed
    :param keep_versions: also delete the files that no reader of the newest ``keep_versions`` versions needs. Older versions expire: they can no longer be read
        or rolled back to. Default: all, so that these files stay
    :param keep_days: with ``keep_versions``: versions that were the newest one at some time in the last ``keep_days`` days are kept, too
    :raises InvalidError: an argument is not valid
    """

    template_fields: Sequence[str] = ("pipeline_file",)
    ui_color = "#dde3ea"

    def __init__(
        self,
        *,
        pipeline: Pipeline | str,
        dry_run: bool = False,
        all_versions: bool = False,
        keep_versions: int | None = None,
        keep_days: int = KEEP_DAYS.default,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.set_pipeline(pipeline)
        self.all_versions = ALL_VERSIONS.checked(all_versions)
        self.keep_versions = KEEP_VERSIONS.checked(keep_versions)
        self.keep_days = KEEP_DAYS.checked(keep_days)
        self.is_dry_run = DRY_RUN.checked(dry_run)  # BaseOperator has a method named dry_run

    def execute(self, context: Any) -> dict[str, Any]:
        """
        Run the vacuum and return the counts.

        :raises StreamsemError: see :func:`airflow_provider_streamsem.pipeline.maintenance.vacuum.vacuum`. An error that is not retryable fails the task at once
        """
        with self.resolved_pipeline(context) as pipeline:
            report = vacuum(
                pipeline,
                dry_run=self.is_dry_run,
                all_versions=self.all_versions,
                keep_versions=self.keep_versions,
                keep_days=self.keep_days,
            )
        for line in descriptions.vacuumed(report, dry_run=self.is_dry_run, keep_versions=self.keep_versions):
            self.log.info("%s", line)
        return {
            "attempts": len(report.attempts),
            "keys": len(report.keys),
            "bytes": report.bytes,
            "expired": report.expired,
            "oldest_readable": report.oldest_readable,
            "dry_run": self.is_dry_run,
        }


class VerifyOperator(HasPipeline, BaseOperator):  # type: ignore[misc]
    """
    Check a log against the protocol's invariants, from its first version to its head, and check every visible file.

    The operator compares the size, the checksum and the recounted rows of each file with the log. An open version is not a violation.

    If it finds a violation, the task fails without a retry. The error names the first five. Run ``streamsem verify`` for the complete report.

    XCom ``return_value``: the fields ``log``, ``versions``, ``commits``, ``counts``, ``files``, ``rows``, ``orphans``, ``unchecked`` and ``open`` of
    :class:`airflow_provider_streamsem.readers.verify.Verdict` as JSON.

    :param pipeline: a :class:`Pipeline`, or the path of its TOML file (templated)
    :param log_only: check only the log, and no data file
    :raises InvalidError: an argument is not valid
    """

    template_fields: Sequence[str] = ("pipeline_file",)
    ui_color = "#dde3ea"

    def __init__(self, *, pipeline: Pipeline | str, log_only: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.set_pipeline(pipeline)
        self.log_only = LOG_ONLY.checked(log_only)

    def execute(self, context: Any) -> dict[str, Any]:
        """
        Verify the log and return the result.

        :raises AirflowFailException: the log or a file has a violation; or the log cannot be read and a retry cannot help
        """
        with self.resolved_pipeline(context) as pipeline:
            verdict = verify(pipeline, files=not self.log_only)
        if not verdict.clean:
            first = "; ".join(f"{v.invariant} version={v.version} {v.what}" for v in verdict.violations[:_SHOWN])
            raise airflow_exception("AirflowFailException")(
                f"{len(verdict.violations)} violations in the log at {verdict.log}; the first are: {first}. Nothing was written. "
                "Do: run `streamsem verify` for the complete report, and restore the named objects from a copy."
            )
        document: dict[str, Any] = plain(verdict)
        del document["violations"]
        return document
