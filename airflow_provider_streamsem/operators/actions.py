"""
The DAG that performs the actions of the web view on a pipeline.

The page changes no pipeline itself. It starts a run of this DAG, so Airflow decides who may act, and each action has a log. The API server needs neither Spark
nor the right to write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from airflow.sdk import DAG, BaseOperator, Param

from airflow_provider_streamsem.arguments import choice, text, time_ms
from airflow_provider_streamsem.errors import InvalidError, StreamsemError
from airflow_provider_streamsem.hooks.failures import airflow_exception
from airflow_provider_streamsem.hooks.pipelines import HasPipeline
from airflow_provider_streamsem.hooks.runs import run_key
from airflow_provider_streamsem.observability.observed import Observed
from airflow_provider_streamsem.operators.engines import HasEngine
from airflow_provider_streamsem.pipeline.maintenance.abort import abort
from airflow_provider_streamsem.pipeline.maintenance.alter import alter
from airflow_provider_streamsem.pipeline.maintenance.vacuum import KEEP_DAYS, MOST_DAYS, vacuum
from airflow_provider_streamsem.pipeline.run.reprocess import reprocess
from airflow_provider_streamsem.pipeline.run.selection import (
    Selection,
    parse_offsets,
    parse_versions,
    preview_reprocess,
    select,
)
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline, load_pipeline
from airflow_provider_streamsem.pipeline.versions import report
from airflow_provider_streamsem.pipeline.versions.publish import skip
from airflow_provider_streamsem.protocol.entries import Outcome, Receipts
from airflow_provider_streamsem.protocol.kinds.batch import Batch
from airflow_provider_streamsem.protocol.view import Head, OpenHead
from airflow_provider_streamsem.readers import descriptions
from airflow_provider_streamsem.readers.files import CommittedLog, open_log
from airflow_provider_streamsem.readers.verify import verify
from airflow_provider_streamsem.web.addresses import ACTION_KEY, ACTION_TASK, actions_tag


@dataclass(frozen=True, slots=True)
class _Request:
    """The params of a DAG run. ``settings`` has those that are set; see :func:`actions_dag`."""

    action: str
    dry_run: bool
    settings: dict[str, Any]

    @staticmethod
    def of(params: Any) -> _Request:
        given = {name: params[name] for name in _PARAMS if _is_set(params.get(name))}
        action = choice("action", given.pop("action", None), tuple(_ACTIONS))
        dry_run = bool(given.pop("dry_run", False))
        if unused := sorted(given.keys() - {*_USED[action], "log", "spec"}):
            raise InvalidError(
                "the action does not use these params; nothing was done",
                action=action,
                given=unused,
                accepted=_USED[action],
            )
        return _Request(action, dry_run, given)

    def get(self, name: str) -> Any:
        return self.settings.get(name)

    def spans(self) -> tuple[tuple[int, int], ...]:
        return () if self.get("versions") is None else parse_versions(str(self.get("versions")))

    def version(self) -> int | None:
        spans = self.spans()
        if not spans:
            return None
        if len(spans) > 1 or spans[0][0] != spans[0][1]:
            raise InvalidError(
                "this action applies to one version; nothing was done", action=self.action, given=self.get("versions")
            )
        return spans[0][0]


def _is_set(value: Any) -> bool:
    """Return whether a param has a value. The number 0 is one, and is not :class:`False`."""
    return value is not None and value is not False and value not in ("", [])


@dataclass(frozen=True, slots=True)
class _Description:
    """What an action did, or would do. ``confirm`` are the params, beside those of the dry run, that do it; ``None`` if there is nothing to do."""

    lines: Sequence[str]
    confirm: dict[str, Any] | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True)
class _Call:
    task: ActionOperator
    ti: Any
    pipeline: Pipeline
    request: _Request
    opened: CommittedLog
    done: list[str]
    """Lines about what the action has done so far, which the XCom has also if the action fails."""


class ActionOperator(HasPipeline, HasEngine, Observed, BaseOperator):  # type: ignore[misc]
    """
    Preview or perform one action on a pipeline: the params of the DAG run name the action. :func:`actions_dag` creates the DAG.

    XCom ``streamsem_action``: ``{"lines", "confirm", "problem"}``. ``lines`` describe what the action did, or with ``dry_run`` would do. ``confirm`` are the
    params of a DAG run that performs the action of a dry run. It is ``null`` in other runs, and if there is nothing to do. ``problem`` is the error of a task
    that failed.

    A retry or a clear of the task does not reprocess, abort, skip or alter again. It verifies and vacuums again.

    :param pipeline: a :class:`Pipeline`, or the path of its TOML file (templated)
    :param spark_master: as in :class:`MicroBatchOperator`
    :param spark_conn_id: as in :class:`MicroBatchOperator`
    :param spark_conf: as in :class:`MicroBatchOperator`
    :param spark_packages: as in :class:`MicroBatchOperator`
    :raises InvalidError: an argument is not valid, or two arguments cannot be combined
    """

    template_fields: Sequence[str] = ("pipeline_file", "spark_master", "spark_conn_id", "spark_conf")
    ui_color = "#e8e0f0"

    def __init__(
        self,
        *,
        pipeline: Pipeline | str,
        spark_master: str | None = None,
        spark_conn_id: str | None = None,
        spark_conf: dict[str, str] | None = None,
        spark_packages: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.set_pipeline(pipeline)
        self.set_engine(spark_master, spark_conn_id, spark_conf, spark_packages)

    def execute(self, context: Any) -> None:
        """
        Preview or perform the action.

        :raises AirflowFailException: a param is not valid, the action is refused, or ``verify`` found a violation
        :raises StreamsemError: an error that a retry may fix
        """
        ti = context["ti"]
        found, lines = _Description([]), list[str]()
        try:
            with self.resolved_pipeline(context) as pipeline:
                request = _Request.of(context["params"])
                opened = open_log(pipeline.log)
                if request.get("log") not in (None, pipeline.log, opened.log.store.url):
                    raise InvalidError(
                        "the pipeline of this DAG has another log; nothing was done",
                        given=request.get("log"),
                        log=pipeline.log,
                    ).advising("choose the DAG whose pipeline has this log.")
                if request.get("spec") not in (None, pipeline.spec_sha256):
                    raise InvalidError(
                        "the pipeline of this DAG has changed since the preview; nothing was done"
                    ).advising("preview the action again.")
                found = _ACTIONS[request.action](_Call(self, ti, pipeline, request, opened, lines))
        except Exception as error:
            ti.xcom_push(key=ACTION_KEY, value={"lines": lines, "confirm": None, "problem": _problem(error)})
            raise
        for line in found.lines:
            self.log.info("%s", line)
        confirm = None
        if found.confirm is not None and request.dry_run:
            confirm = {**request.settings, **found.confirm, "action": request.action, "dry_run": False}
        problem = "the log or a file violates an invariant" if found.failed else None
        ti.xcom_push(key=ACTION_KEY, value={"lines": [*found.lines], "confirm": confirm, "problem": problem})
        if found.failed:
            raise airflow_exception("AirflowFailException")(
                f"{problem}; nothing was written. {found.lines[0]}. Do: see the log of this task, which says what to do about each."
            )


def _problem(error: Exception) -> str:
    """Return the text of an error of this package. The text of another error may contain values of records."""
    is_own = isinstance(error, (StreamsemError, airflow_exception("AirflowFailException")))
    return str(error) if is_own else f"{type(error).__name__}. Do: read the log of the task."


def _verify(call: _Call) -> _Description:
    verdict = verify(call.pipeline, files=not call.request.get("log_only"))
    return _Description(descriptions.verdict(verdict), failed=not verdict.clean)


def _reprocess(call: _Call) -> _Description:
    request, pipeline = call.request, call.pipeline
    times = {
        f"{name}_ms": None if request.get(name) is None else time_ms(name, request.get(name))
        for name in ("since", "until")
    }
    offsets = parse_offsets(request.get("offsets") or ())
    selection = Selection(versions=request.spans(), offsets=offsets, **times)
    if request.dry_run:
        radius = preview_reprocess(pipeline, selection)
        possible = [version for version in radius.versions if version not in radius.refused]
        only = {
            "versions": descriptions.spans(possible),
            "spec": pipeline.spec_sha256,
            "since": None,
            "until": None,
            "offsets": None,
        }
        return _Description(descriptions.blast_radius(radius), confirm=only if possible else None)
    log = call.opened.log
    engine = call.task.engine()
    for version in select(log, log.newest_head(), selection):
        key = f"{run_key(call.ti)}#reprocess:{version}"
        with call.task.observed(call.ti, pipeline) as account:
            account.result = result = reprocess(pipeline, version, run_key=key, engine=engine)
        call.done.append(f"version {version}: reprocessed as {result.version}: {report.format_counts(result.counts)}")
    return _Description(call.done or ["no committed batch is selected"])


def _abort(call: _Call) -> _Description:
    log, version = call.opened.log, call.request.version()
    head = log.newest_head()
    if version is not None and (stored := log.outcome(version)) is not None:
        return _Description([_aborted(stored)])
    if not isinstance(head, OpenHead):
        return _Description(["no version is open, so there is nothing to abort"])
    plan = head.plan
    if version not in (None, plan.version):
        raise InvalidError(
            "only the open version can be aborted; nothing was aborted", given=version, open=plan.version
        )
    if call.request.dry_run:
        consequence = (
            "The next run reads the records of its ranges"
            if isinstance(plan.work, Batch)
            else "The offsets and the visible rows do not change"
        )
        lines = [
            report.resumed(plan, run_key(call.ti)),
            f"version {plan.version} would be aborted. Its rows never become visible. {consequence}",
            "an attempt that still runs can no longer commit the version",
        ]
        return _Description(lines, confirm={"versions": str(plan.version)})
    if version is None:
        raise InvalidError("`versions` must name the open version; nothing was aborted", open=plan.version).advising(
            f"run the preview, or set versions={plan.version}."
        )
    return _Description(
        [_aborted(abort(log, call.opened.record, version, reason=text("reason", call.request.get("reason"))))]
    )


def _aborted(outcome: Outcome) -> str:
    committed = "an attempt committed it first; it stays committed"
    return f"version {outcome.version}: {committed if outcome.committed else f'aborted: {outcome.reason}'}"


def _skip(call: _Call) -> _Description:
    log, version, sinks = call.opened.log, call.request.version(), call.request.get("sinks")
    if version is not None and (stored := log.receipts(version)) is not None:
        return _Description(_received(stored))
    head = log.newest_head()
    if head.outcome is None or not head.has_pending_publishes:
        return _Description(["no publish is pending, so there is nothing to skip"])
    outcome = head.outcome
    skipped = list(sinks or outcome.publish)
    if unknown := sorted({*skipped} - {*outcome.publish}):
        raise InvalidError(
            "no publish to these sinks is pending; nothing was skipped", given=unknown, pending=list(outcome.publish)
        )
    if call.request.dry_run:
        lines = [_not_published(outcome, name) for name in skipped]
        lines.append("rows that a sink has received already stay there")
        if {*outcome.publish} - {*skipped}:
            lines.append("the version is published to the other sinks")
        return _Description(lines, confirm={"versions": str(outcome.version), "sinks": skipped})
    if version is None or sinks is None:
        raise InvalidError(
            "`versions` and `sinks` must name the version and the sinks; nothing was skipped", pending=outcome.version
        ).advising("run the preview, which names both.")
    return _Description(
        _received(skip(call.pipeline, version, sink=list(sinks), reason=text("reason", call.request.get("reason"))))
    )


def _not_published(outcome: Outcome, sink: str) -> str:
    if sink not in outcome.sinks:
        return f"version {outcome.version}: the rows that the version removes would stay in {sink}"
    return f"version {outcome.version}: {outcome.sinks[sink].rows} rows for {sink} would not be published"


def _received(receipts: Receipts) -> list[str]:
    results = sorted(receipts.sinks.items())
    return [f"version {receipts.version}: sink {name}: {receipt.result}" for name, receipt in results]


def _vacuum(call: _Call) -> _Description:
    request = call.request
    keep_versions, keep_days = request.get("keep_versions"), request.get("keep_days")
    if keep_versions is None and keep_days is not None:
        raise InvalidError(
            "`keep_days` applies only together with `keep_versions`; nothing was deleted", given=keep_days
        ).advising("set keep_versions, or leave out keep_days.")
    found = vacuum(
        call.pipeline,
        dry_run=request.dry_run,
        all_versions=bool(request.get("all_versions")),
        keep_versions=keep_versions,
        keep_days=KEEP_DAYS if keep_days is None else keep_days,
    )
    lines = descriptions.vacuumed(found, dry_run=request.dry_run, keep_versions=keep_versions)
    if request.dry_run and found.expired:
        lines += _waits_for(call.opened.log.newest_head())
    confirm: dict[str, Any] | None = {} if found.attempts or found.keys else None
    return _Description(lines, confirm=confirm)


def _waits_for(head: Head) -> list[str]:
    if isinstance(head, OpenHead) and (head.plan.work.stages or head.plan.work.publish):
        return [
            f"version {head.plan.version} is open. Before it is closed, no version can expire, and the action fails"
        ]
    if head.has_pending_publishes:
        return [f"version {head.closed} is not published yet. Before that, no version can expire, and the action fails"]
    return []


def _alter(call: _Call) -> _Description:
    request = call.request
    found = alter(
        call.pipeline,
        alter_from=request.get("alter_from"),
        moved=request.get("moved") or (),
        dry_run=request.dry_run,
    )
    confirm = (
        {"alter_from": found.config, "spec": call.pipeline.spec_sha256}
        if any(change.kind != "changed" for change in found.changes)
        else None
    )
    return _Description(descriptions.alteration(found, dry_run=request.dry_run), confirm=confirm)


_USED = {
    "verify": ["log_only"],
    "reprocess": ["versions", "since", "until", "offsets"],
    "abort": ["versions", "reason"],
    "skip": ["versions", "sinks", "reason"],
    "vacuum": ["all_versions", "keep_versions", "keep_days"],
    "alter": ["alter_from", "moved"],
}
"""Action → the params that it uses, beside ``log`` and ``spec``."""

_ACTIONS: dict[str, Callable[[_Call], _Description]] = {
    "verify": _verify,
    "reprocess": _reprocess,
    "abort": _abort,
    "skip": _skip,
    "vacuum": _vacuum,
    "alter": _alter,
}


def _text(description: str) -> Param:
    return Param(None, type=["null", "string"], description=description)


def _texts(description: str) -> Param:
    return Param(None, type=["null", "array"], items={"type": "string"}, description=description)


def _integer(description: str, *, least: int, most: int | None = None) -> Param:
    bounds = {"minimum": least} if most is None else {"minimum": least, "maximum": most}
    return Param(None, type=["null", "integer"], description=description, **bounds)


_PARAMS: dict[str, Param] = {
    "action": Param("verify", type="string", enum=list(_ACTIONS), description="What to do with the pipeline."),
    "dry_run": Param(True, type="boolean", description="Only describe what the action would do. Nothing is written."),
    "versions": _text("Versions, such as 3-7, 9. Abort and skip apply to one version."),
    "since": _text("Reprocess: only batches that were committed at this time or later. ISO 8601, with a time zone."),
    "until": _text("Reprocess: only batches that were committed at this time or earlier."),
    "offsets": _texts("Reprocess: only batches that read one of these offsets, each as PARTITION=START:END."),
    "sinks": _texts("Skip: the sinks to which the version is not published."),
    "reason": _text("Abort and skip: why. The log stores it."),
    "all_versions": Param(
        False, type="boolean", description="Vacuum: also inspect versions that an earlier vacuum inspected."
    ),
    "keep_versions": _integer(
        "Vacuum: the number of newest versions to keep. Older versions expire: they can no longer be read or rolled back to. Default: all.",
        least=1,
    ),
    "keep_days": _integer(
        f"Vacuum: with keep_versions, versions that were the newest one at some time in the last keep_days days are kept, too. Default: {KEEP_DAYS}.",
        least=0,
        most=MOST_DAYS,
    ),
    "log_only": Param(False, type="boolean", description="Verify: only the log, and no data file."),
    "alter_from": _text("Alter: the config id of the commit log. The dry run names it."),
    "moved": _texts("Alter: files sinks whose dataset was copied to the new path."),
    "log": _text("URL of the commit log. A pipeline with another one is refused."),
    "spec": _text("Sha256 of the pipeline spec, which the preview returns. A pipeline with another one is refused."),
}


def actions_dag(
    pipeline: Pipeline | str,
    *,
    dag_id: str | None = None,
    spark_master: str | None = None,
    spark_conn_id: str | None = None,
    spark_conf: dict[str, str] | None = None,
    spark_packages: str | None = None,
    tags: Sequence[str] = (),
    **dag_arguments: Any,
) -> DAG:
    """
    Return a DAG whose runs preview or perform actions on a pipeline. Assign it to a variable of the DAG file.

    The web view finds the DAG by its tag ``streamsem:`` + name of the pipeline, and starts its runs. Users who may trigger the DAG may perform actions. The
    form with which Airflow triggers the DAG has the same params:

    * ``action``: ``verify``, ``reprocess``, ``abort``, ``skip``, ``vacuum`` or ``alter``
    * ``dry_run``: describe what the action would do, and write nothing (the default)
    * ``versions``, ``since``, ``until``, ``offsets``: the batches to reprocess; ``versions`` is also the version to abort or to skip
    * ``sinks``: the sinks to skip; ``reason``: why a version is aborted or skipped
    * ``all_versions``, ``keep_versions`` and ``keep_days`` of vacuum, ``log_only`` of verify, ``alter_from`` and ``moved`` of alter: as in the commands
    * ``log``: URL of the log that the pipeline must have; default: any

    :param pipeline: a :class:`Pipeline`, or the path of its TOML file, which must exist when the DAG is parsed
    :param dag_id: default: name of the pipeline + ``_actions``
    :param spark_master: as in :class:`MicroBatchOperator`
    :param spark_conn_id: as in :class:`MicroBatchOperator`
    :param spark_conf: as in :class:`MicroBatchOperator`
    :param spark_packages: as in :class:`MicroBatchOperator`
    :param tags: further tags of the DAG
    :param dag_arguments: further arguments of the DAG, except ``schedule`` and ``params``
    :raises InvalidError: the pipeline or an argument is not valid
    """
    name = (pipeline if isinstance(pipeline, Pipeline) else load_pipeline(text("pipeline", pipeline))).name
    settings = {"is_paused_upon_creation": False, "catchup": False, **dag_arguments}
    with DAG(
        dag_id or f"{name}_actions", schedule=None, params={**_PARAMS}, tags=[actions_tag(name), *tags], **settings
    ) as dag:
        ActionOperator(
            task_id=ACTION_TASK,
            pipeline=pipeline,
            spark_master=spark_master,
            spark_conn_id=spark_conn_id,
            spark_conf=spark_conf,
            spark_packages=spark_packages,
        )
    return dag
