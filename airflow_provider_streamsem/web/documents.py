"""
The JSON documents of the HTTP API. The page's client is generated from their OpenAPI description.

Times are milliseconds since the epoch, and sizes are bytes. Offsets are text, because they may be greater than the integers that JavaScript holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import groupby, islice
from typing import Any, Literal

from pydantic import BaseModel, model_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass

from airflow_provider_streamsem.protocol.entries import Kind, Receipts, SegmentFile
from airflow_provider_streamsem.protocol.kinds.alter import Alter
from airflow_provider_streamsem.protocol.kinds.rewrite import Rewrite as RewriteVersion
from airflow_provider_streamsem.protocol.offsets import Gaps, Ranges
from airflow_provider_streamsem.readers.history import VersionFacts, VersionSummary
from airflow_provider_streamsem.state.settings import OperatorState
from airflow_provider_streamsem.verbs import Parameter, Verb


class Gap(BaseModel):
    """Offsets ``[start, end)`` of records that the source has lost."""

    start: str
    end: str


class OffsetRange(BaseModel):
    """Offsets ``[start, end)`` of a partition, and the gaps in it."""

    partition: str
    start: str
    end: str
    count: str
    gaps: list[Gap]


class KindRow(BaseModel):
    """What all versions of a kind have in common; see :class:`airflow_provider_streamsem.protocol.entries.Kind`."""

    label: str
    color: str
    has_rows: bool
    stages: bool
    uses_spec: bool
    is_announced: bool

    @model_validator(mode="before")
    @classmethod
    def _of_class(cls, kind: type[Kind]) -> dict[str, object]:
        return {name: getattr(kind, name) for name in cls.model_fields}


@pydantic_dataclass(frozen=True, kw_only=True)
class VersionRow(VersionFacts):
    """A version in the batch grid and the timeline."""

    of_kind: KindRow
    has_gaps: bool
    partitions: int

    @classmethod
    def of(cls, summary: VersionSummary) -> VersionRow:
        """Return the row of a version."""
        return cls(**{field.name: getattr(summary, field.name) for field in fields(cls)})


class VersionPage(BaseModel):
    """Versions in descending order. ``before`` is the parameter of the next page; ``None`` if there are no earlier versions."""

    versions: list[VersionRow]
    before: int | None
    now_ms: int


class Problem(BaseModel):
    """An error of this package: what happened, what is true now, and what to do."""

    error: str
    message: str


class Task(BaseModel, frozen=True):
    """A task of Airflow that runs a pipeline."""

    dag_id: str
    task_id: str


class ActionsDag(BaseModel, frozen=True):
    """
    A DAG of Airflow whose runs perform actions on a pipeline.

    :param may_run: whether the user may trigger the DAG
    :param is_paused: whether the DAG is paused, so that its runs wait
    """

    dag_id: str
    may_run: bool
    is_paused: bool


class PipelineSummary(BaseModel):
    """
    A pipeline.

    :param id: identifies the pipeline in the API
    :param tasks: the tasks of Airflow that run the pipeline
    :param actions: the DAGs that perform actions on the pipeline and that the user may read
    :param guarantee: sink → the label that the newest version records
    :param conditions: the condition of the labels; ``""`` if they are unconditional
    :param newest: the newest versions, in descending order
    :param oldest_readable: the oldest version that can be read and rolled back to; ``None`` if no version has expired
    :param rows_per_minute: average rows per minute of the newest 30 versions in their largest sink, from the first plan to the last outcome
    :param problem: why the log cannot be read
    """

    id: str
    name: str
    log: str
    tasks: list[Task]
    actions: list[ActionsDag]
    guarantee: dict[str, str]
    conditions: str
    newest: list[VersionRow]
    oldest_readable: int | None
    rows_per_minute: float | None
    now_ms: int
    problem: Problem | None = None


class FileRow(BaseModel):
    """A committed file. ``path`` is relative to the dataset."""

    sink: str
    path: str
    bytes: int
    rows: int
    partition: dict[str, str | None]


class Attempt(BaseModel):
    """
    An attempt of a version that has a manifest.

    :param result: ``committed``; ``discarded``: the outcome names another attempt, or the version was aborted; ``staged``: the version is open
    :param staged_ms: milliseconds in which the attempt staged its rows
    :param rows: sink → number of rows
    """

    attempt_id: str
    result: str
    staged_ms: int
    rows: dict[str, int]


class SinkState(BaseModel):
    """
    The state of a sink after a version; see ``sinks`` of :class:`airflow_provider_streamsem.readers.history.VersionSummary`.

    :param rows: number of rows that the version wrote for the sink
    :param published_rows: number of rows in the receipt of a sink outside the log
    :param detail: details in the receipt
    """

    sink: str
    state: str
    rows: int | None
    published_rows: int | None
    detail: Any = None


class StateRow(BaseModel):
    """A stateful operator of the transform after a version."""

    operator: str
    rows: int
    bytes: int
    partitions: int


class VersionRange(BaseModel):
    """Consecutive versions. Both ends are inclusive."""

    first: int
    last: int


class Rewrite(BaseModel):
    """
    The plan of a rewrite.

    :param commits: number of commits whose rows are in the new files
    :param ranges: the versions of these commits, at most 100 ranges
    :param rows: number of their rows
    :param old_files: number of files that had these rows before; ``None`` while the version is open, and if the oldest commit is more than 10,000 versions
        before it
    :param old_bytes: size of these files
    """

    sink: str
    commits: int
    ranges: list[VersionRange]
    rows: int
    old_files: int | None
    old_bytes: int | None


class Alteration(BaseModel):
    """
    What an alter changes besides the spec.

    :param removed: sinks whose earlier rows are no longer visible
    :param state: fields of the state that the next version starts without
    :param partitions: partition → offset at which the next version starts to read it, of the partitions that the alter adds
    """

    removed: list[str]
    state: list[str]
    partitions: dict[str, str]


class VersionDetail(BaseModel):
    """
    One version.

    :param attempts: at most 100
    :param files: at most 500. Without ``shows_records``, they have no values of partition columns
    :param lookups: name → what the plan pins of the lookup
    :param transform: name of the transform; ``""`` without one
    :param settings: the stored spec of the pipeline
    :param quarantined: number of quarantined records
    :param schemas: sink → its columns as Spark's schema JSON
    :param removed: of a rollback: name → number of records by which the totals of the log are reduced
    :param rewrite: only of a rewrite
    :param alteration: only of an alter
    """

    row: VersionRow
    ranges: list[OffsetRange]
    attempts: list[Attempt]
    files: list[FileRow]
    sinks: list[SinkState]
    state: list[StateRow]
    lookups: dict[str, Any]
    transform: str
    settings: dict[str, Any]
    guarantee: dict[str, str]
    conditions: str
    quarantined: int
    schemas: dict[str, str]
    removed: dict[str, int]
    rewrite: Rewrite | None
    alteration: Alteration | None


class QuarantinedRecord(BaseModel):
    """A quarantined record. ``raw`` has at most 2,000 characters; ``encoding`` is ``base64`` if the bytes are not UTF-8."""

    position: dict[str, Any]
    error: str
    raw: str
    encoding: str


class Comparison(BaseModel):
    """
    Two versions of a pipeline.

    :param changed: the fields of the spec that differ
    :param added_files: number of files of datasets that a reader of the newer version reads, and a reader of the older one does not
    :param removed_files: number of files that a reader of the older version reads, and a reader of the newer one does not
    """

    older: VersionRow
    newer: VersionRow
    changed: list[str]
    added_files: int
    removed_files: int
    added_rows: int
    removed_rows: int


class FormField(BaseModel):
    """A field of a form; see :class:`airflow_provider_streamsem.verbs.Parameter`."""

    name: str
    help: str
    type: Literal["string", "integer", "boolean", "array"]
    minimum: int | None
    maximum: int | None
    required: bool
    needs: str


class ActionForm(BaseModel):
    """The form of an action; see :class:`airflow_provider_streamsem.verbs.Verb`."""

    name: str
    help: str
    only_reads: bool
    fields: list[FormField]


class Settings(BaseModel):
    """
    Settings of the page: the version of the package, the forms, whether the contents of records are shown, and the setting or flag that shows them.
    """

    version: str
    actions: list[ActionForm]
    shows_records: bool
    show_records_with: str


def form_of(verb: Verb) -> ActionForm:
    """Return the form of an action."""
    shown = [_field(parameter) for parameter in verb.parameters if parameter.in_form]
    return ActionForm(name=verb.name, help=verb.description, only_reads=verb.only_reads, fields=shown)


def _field(parameter: Parameter) -> FormField:
    help = parameter.described(parameter.needs.replace("_", " "))
    help += "; several are separated by commas" if parameter.type == "array" else ""
    help += "; default: all that the preview finds" if parameter.in_preview else ""
    declared = {name: getattr(parameter, name) for name in ("name", "type", "minimum", "maximum", "needs")}
    return FormField(
        help=help[0].upper() + help[1:], required=parameter.required and not parameter.in_preview, **declared
    )


def ranges_of(ranges: Ranges, gaps: Gaps) -> list[OffsetRange]:
    """Return the documents of ranges, in the order of the partitions."""
    return [
        OffsetRange(
            partition=partition,
            start=str(start),
            end=str(end),
            count=str(end - start),
            gaps=[Gap(start=str(first), end=str(last)) for first, last in gaps.get(partition, ())],
        )
        for partition, (start, end) in sorted(ranges.items())
    ]


def sinks_of(summary: VersionSummary, receipts: Receipts | None) -> list[SinkState]:
    """Return the documents of the sinks of a version."""
    by_sink = {} if receipts is None else receipts.sinks
    return [
        SinkState(
            sink=name,
            state=state,
            rows=summary.counts.get(f"written.{name}"),
            published_rows=by_sink[name].rows if name in by_sink else None,
            detail=by_sink[name].detail if name in by_sink else None,
        )
        for name, state in sorted(summary.sinks.items())
    ]


def rewrite_of(rewritten: RewriteVersion, old: Sequence[SegmentFile] | None, *, most: int) -> Rewrite:
    """
    Return the document of a rewrite.

    :param old: the files that had the rows before; ``None`` if they are not known
    """
    return Rewrite(
        sink=rewritten.sink,
        commits=len(rewritten.commits),
        ranges=[*islice(_consecutive(rewritten.commits), most)],
        rows=rewritten.rows,
        old_files=None if old is None else len(old),
        old_bytes=None if old is None else sum(file.file.bytes for file in old),
    )


def _consecutive(versions: Sequence[int]) -> Iterator[VersionRange]:
    """Yield the ranges of consecutive versions. ``versions`` are in ascending order."""
    for _, found in groupby(enumerate(versions), lambda numbered: numbered[1] - numbered[0]):
        first, *later = (version for _, version in found)
        yield VersionRange(first=first, last=later[-1] if later else first)


def alteration_of(work: Kind) -> Alteration | None:
    """Return the document of what an alter changes; ``None`` for any other version."""
    if not isinstance(work, Alter):
        return None
    offsets = {partition: str(offset) for partition, offset in sorted(work.offsets.items())}
    return Alteration(removed=sorted(work.removed), state=sorted(work.state), partitions=offsets)


def state_of(state: OperatorState | None) -> list[StateRow]:
    """Return the documents of the stateful operators."""
    return [
        StateRow(operator=operator.name, rows=operator.rows, bytes=operator.bytes, partitions=len(operator.ids))
        for operator in (() if state is None else state.operators)
    ]
