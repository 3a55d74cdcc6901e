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
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
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
from airflow_provider_streamsem.protocol.view import Head, OpenHead
from airflow_provider_streamsem.readers import descriptions
from airflow_provider_streamsem.readers.files import CommittedLog, open_log
from airflow_provider_streamsem.readers.verify import verify
from airflow_provider_streamsem.verbs import ACTIONS, DRY_RUN, Parameter
from airflow_provider_streamsem.web.addresses import ACTION_KEY, ACTION_TASK, actions_tag


@dataclass(frozen=True, slots=True)
class _Request:
    """The params of a DAG run; see :func:`actions_dag`. ``given`` has those that are set, and ``values`` all that the action uses."""

    action: str
    dry_run: bool
    given: dict[str, Any]
    values: dict[str, Any]

    @staticmethod
    def of(params: Any) -> _Request:
        given = {name: params[name] for name in _PARAMS if _is_set(params.get(name))}
        action = choice("action", given.pop("action", None), ACTIONS)
        dry_run = bool(given.pop("dry_run", False))
        verb = ACTIONS[action]
        if unused := sorted(given.keys() - {*verb.params, _LOG.name, _SPEC.name}):
            raise InvalidError(
                "the action does not use these params; nothing was done",
                action=action,
                given=unused,
                accepted=[*verb.params],
            )
        return _Request(action, dry_run, given, verb.values({**given, "dry_run": dry_run}))


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
    dry_run: bool
    values: dict[str, Any]
    """Of all parameters of the verb. Those of vacuum and alter are the arguments of their functions."""
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
                if request.given.get(_LOG.name) not in (None, pipeline.log, opened.log.store.url):
                    raise InvalidError(
                        "the pipeline of this DAG has another log; nothing was done",
                        given=request.given[_LOG.name],
                        log=pipeline.log,
                    ).advising("choose the DAG whose pipeline has this log.")
                if request.given.get(_SPEC.name) not in (None, pipeline.spec_sha256):
                    raise InvalidError(
                        "the pipeline of this DAG has changed since the preview; nothing was done"
                    ).advising("preview the action again.")
                found = _PERFORM[request.action](
                    _Call(self, ti, pipeline, request.dry_run, request.values, opened, lines)
                )
        except Exception as error:
            ti.xcom_push(key=ACTION_KEY, value={"lines": lines, "confirm": None, "problem": _problem(error)})
            raise
        for line in found.lines:
            self.log.info("%s", line)
        confirm = None
        if found.confirm is not None and request.dry_run:
            confirm = {**request.given, **found.confirm, "action": request.action, "dry_run": False}
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
    verdict = verify(call.pipeline, files=not call.values["log_only"])
    return _Description(descriptions.verdict(verdict), failed=not verdict.clean)


def _reprocess(call: _Call) -> _Description:
    values, pipeline = call.values, call.pipeline
    since_ms, until_ms = (None if values[name] is None else time_ms(name, values[name]) for name in ("since", "until"))
    versions = () if values["versions"] is None else parse_versions(str(values["versions"]))
    offsets = parse_offsets(values["offsets"])
    selection = Selection(versions=versions, since_ms=since_ms, until_ms=until_ms, offsets=offsets)
    if call.dry_run:
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
    log, version = call.opened.log, call.values["version"]
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
    if call.dry_run:
        consequence = (
            "The next run reads the records of its ranges"
            if plan.work.reads_new_records
            else "The offsets and the visible rows do not change"
        )
        lines = [
            report.resumed(plan, run_key(call.ti)),
            f"version {plan.version} would be aborted. Its rows never become visible. {consequence}",
            "an attempt that still runs can no longer commit the version",
        ]
        return _Description(lines, confirm={"version": plan.version})
    if version is None:
        raise InvalidError("`version` must name the open version; nothing was aborted", open=plan.version).advising(
            f"run the preview, or set version={plan.version}."
        )
    return _Description(
        [_aborted(abort(log, call.opened.record, version, reason=text("reason", call.values["reason"])))]
    )


def _aborted(outcome: Outcome) -> str:
    committed = "an attempt committed it first; it stays committed"
    return f"version {outcome.version}: {committed if outcome.committed else f'aborted: {outcome.reason}'}"


def _skip(call: _Call) -> _Description:
    log, version, sinks = call.opened.log, call.values["version"], call.values["sinks"]
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
    if call.dry_run:
        lines = [_not_published(outcome, name) for name in skipped]
        lines.append("rows that a sink has received already stay there")
        if {*outcome.publish} - {*skipped}:
            lines.append("the version is published to the other sinks")
        return _Description(lines, confirm={"version": outcome.version, "sinks": skipped})
    if version is None or not sinks:
        raise InvalidError(
            "`version` and `sinks` must name the version and the sinks; nothing was skipped", pending=outcome.version
        ).advising("run the preview, which names both.")
    return _Description(
        _received(skip(call.pipeline, version, sink=list(sinks), reason=text("reason", call.values["reason"])))
    )


def _not_published(outcome: Outcome, sink: str) -> str:
    if sink not in outcome.sinks:
        return f"version {outcome.version}: the rows that the version removes would stay in {sink}"
    return f"version {outcome.version}: {outcome.sinks[sink].rows} rows for {sink} would not be published"


def _received(receipts: Receipts) -> list[str]:
    results = sorted(receipts.sinks.items())
    return [f"version {receipts.version}: sink {name}: {receipt.result}" for name, receipt in results]


def _vacuum(call: _Call) -> _Description:
    found = vacuum(call.pipeline, **call.values)
    lines = descriptions.vacuumed(found, dry_run=call.dry_run, keep_versions=call.values["keep_versions"])
    if call.dry_run and found.expired:
        lines += _waits_for(call.opened.log.newest_head())
    return _Description(lines, confirm={} if found.attempts or found.keys else None)


def _waits_for(head: Head) -> list[str]:
    if isinstance(head, OpenHead) and (head.plan.work.stages or head.plan.work.publish):
        return [
            f"version {head.plan.version} is open. Before it is closed, no version can expire, and the action fails"
        ]
    if head.has_pending_publishes:
        return [f"version {head.closed} is not published yet. Before that, no version can expire, and the action fails"]
    return []


def _alter(call: _Call) -> _Description:
    found = alter(call.pipeline, **call.values)
    confirm = (
        {"alter_from": found.config, "spec": call.pipeline.spec_sha256}
        if any(change.kind != "changed" for change in found.changes)
        else None
    )
    return _Description(descriptions.alteration(found, dry_run=call.dry_run), confirm=confirm)


_PERFORM: dict[str, Callable[[_Call], _Description]] = {
    "verify": _verify,
    "reprocess": _reprocess,
    "abort": _abort,
    "skip": _skip,
    "vacuum": _vacuum,
    "alter": _alter,
}

_LOG = Parameter("log", "URL of the commit log. A pipeline with another one is refused")
_SPEC = Parameter(
    "spec", "Sha256 of the pipeline spec, which the preview returns. A pipeline with another one is refused"
)


def _param(parameter: Parameter, users: Sequence[str] = ()) -> Param:
    """``None`` is no value, except of a boolean, for which Airflow shows a switch."""
    names = f"{', '.join(users).capitalize()}: " if users else ""
    schema: dict[str, Any] = {"description": f"{names}{parameter.described(parameter.needs)}."}
    if parameter.type == "boolean":
        return Param(False, type="boolean", **schema)
    bounds = {"minimum": parameter.minimum, "maximum": parameter.maximum}
    schema |= {name: bound for name, bound in bounds.items() if bound is not None}
    schema |= {"items": {"type": "string"}} if parameter.type == "array" else {}
    return Param(None, type=["null", parameter.type], **schema)


_PARAMS: dict[str, Param] = {
    "action": Param("verify", type="string", enum=[*ACTIONS], description="What to do with the pipeline."),
    "dry_run": Param(True, type="boolean", description=f"{DRY_RUN.help.capitalize()}."),
    **{
        name: _param(parameter, [each.name for each in ACTIONS.values() if name in each.params])
        for verb in ACTIONS.values()
        for name, parameter in verb.params.items()
    },
    "log": _param(_LOG),
    "spec": _param(_SPEC),
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
    * the parameters of the command of the same name: ``versions``, ``since``, ``until`` and ``offsets`` of reprocess; ``version`` and ``reason`` of abort;
      ``version``, ``sinks`` and ``reason`` of skip; ``all_versions``, ``keep_versions`` and ``keep_days`` of vacuum; ``log_only`` of verify; ``alter_from`` and
      ``moved`` of alter
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
