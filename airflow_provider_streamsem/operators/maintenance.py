"""The operators that look after a pipeline's log and datasets. They start no Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import BaseOperator

from airflow_provider_streamsem.arguments import flag
from airflow_provider_streamsem.batch.maintenance import vacuum
from airflow_provider_streamsem.batch.pipeline import Pipeline
from airflow_provider_streamsem.hooks.failures import airflow_exception
from airflow_provider_streamsem.hooks.pipelines import HasPipeline
from airflow_provider_streamsem.protocol.codec import plain
from airflow_provider_streamsem.readers.verify import verify

_SHOWN = 5


class VacuumOperator(HasPipeline, BaseOperator):  # type: ignore[misc]
    """
    Delete what losing attempts of closed versions left: files, quarantined records, manifests. Nothing that a reader sees, and nothing of an open version.

    Safe beside running batches. Versions that were closed more than a day before a vacuum are not looked at again. The result is ``{"attempts": n,
    "keys": n, "bytes": n, "dry_run": bool}``.

    :param pipeline: a :class:`Pipeline`, or the path of its TOML file (templated); only its own datasets are touched
    :param dry_run: only say what would be deleted
    :param everything: look at all versions, for what an attempt wrote that ran longer than a day after its version was closed
    """

    template_fields: Sequence[str] = ("pipeline_file",)
    ui_color = "#dde3ea"

    def __init__(
        self, *, pipeline: Pipeline | str, dry_run: bool = False, everything: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.take_pipeline(pipeline)
        self.everything = flag("everything", everything)
        self.only_say = flag("dry_run", dry_run)  # dry_run is a method of every operator

    def execute(self, context: Any) -> dict[str, Any]:
        """Delete, and answer how much it was."""
        with self.pipeline_on_its_log(context) as pipeline:
            done = vacuum(pipeline, dry_run=self.only_say, everything=self.everything)
        return {
            "attempts": len(done.attempts),
            "keys": len(done.keys),
            "bytes": done.bytes,
            "dry_run": self.only_say,
        }


class VerifyOperator(HasPipeline, BaseOperator):  # type: ignore[misc]
    """
    Check a log from its first version to its head against the protocol's invariants, and every visible file: size, checksum, rows counted anew.

    A task that finds a fault fails without a retry, naming it. The result is the verdict as JSON: ``versions``, ``commits``, ``counts``, ``files``, ``rows``,
    ``orphans``.

    :param pipeline: a :class:`Pipeline`, or the path of its TOML file (templated)
    :param files: ``False`` looks at the log only
    """

    template_fields: Sequence[str] = ("pipeline_file",)
    ui_color = "#dde3ea"

    def __init__(self, *, pipeline: Pipeline | str, files: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.take_pipeline(pipeline)
        self.files = flag("files", files)

    def execute(self, context: Any) -> dict[str, Any]:
        """Verify; fail where anything is wrong."""
        with self.pipeline_on_its_log(context) as pipeline:
            verdict = verify(pipeline, files=self.files)
        if not verdict.clean:
            first = "; ".join(f"{f.invariant} version={f.version} {f.what}" for f in verdict.findings[:_SHOWN])
            raise airflow_exception("AirflowFailException")(
                f"{len(verdict.findings)} faults in the log at {verdict.log}: {first}. Nothing was written. "
                "Do: run `streamsem verify` for the whole report, and restore what is named from a copy."
            )
        document: dict[str, Any] = plain(verdict)
        del document["findings"]
        return document
