"""
Entries of the log: frozen dataclasses with the fields of PROTOCOL.md, section 2.

Times are milliseconds UTC, sizes are bytes, and ranges are ``[start, end)``. The constructors reject keys that point outside their root (R6).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol import keys as keys_
from airflow_provider_streamsem.protocol.offsets import Gaps, Offsets, Ranges

FORMAT = 1
READER_FEATURES: frozenset[str] = frozenset()
PUBLISH = "publish"
"""Writer feature of a log with sinks outside the log. A writer without this feature would create the next plan before the receipts exist."""
FORK = "fork"
"""A writer without this feature would ignore where the fork starts, and read all records again (K4)."""
WRITER_FEATURES: frozenset[str] = frozenset({PUBLISH, FORK})

SPARSE = {"sparse": True}
"""Field metadata: the encoder omits the field if it equals its default (W2)."""

Json: TypeAlias = Any
"""Any JSON value without floats: dict, list, str, int, bool or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """
    Where a forked pipeline starts: after ``version`` of the pipeline with the uuid ``pipeline_uuid``.

    ``log`` is the URL of that pipeline's log, which no reader follows. ``offsets`` are the offsets at which version 0 starts, and ``state`` is the state
    before it. ``hint`` is the source's hint at that version. ``config`` is the sha256 of the immutable fields on which ``offsets`` and ``state`` depend.

    A fork from a time of the source (``from_ms``, milliseconds UTC) has the version -1, the offsets of this time, and neither state nor hint.
    """

    log: str
    pipeline_uuid: str
    version: int
    config: str
    offsets: Offsets
    state: Json = None
    hint: Json = field(default=None, metadata=SPARSE)
    from_ms: int | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRecord:
    """
    ``pipeline.json``: the identity of a pipeline and the features of its log.

    ``spec`` is the spec of the run that created the log. Its immutable fields need not be those of the log. Plan(0) fixes these, with its own spec (W13a).
    ``fork`` is set if the pipeline starts at a version of another one (K4).
    """

    entry: ClassVar[str] = "pipeline"
    spillable: ClassVar[tuple[str, ...]] = ("fork",)
    pipeline_uuid: str
    name: str
    spec: str
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()
    moved_from: str = field(default="", metadata=SPARSE)
    fork: Fork | None = field(default=None, metadata=SPARSE)
    nonce: str

    @property
    def initial_state(self) -> Json:
        """The state before version 0: that of the forked version, or ``None``."""
        return None if self.fork is None else self.fork.state


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """
    ``moved/<sha256>.json``: records that the log was moved from ``moved_from`` to ``moved_to``, and that the move is complete.

    Ownership markers that name ``moved_from`` are valid for the log at ``moved_to``, and for a log to which that one was moved later. ``sources`` is the prefix
    under which the mover copied the discoveries of the sources.
    """

    entry: ClassVar[str] = "moved"
    spillable: ClassVar[tuple[str, ...]] = ()
    moved_from: str
    moved_to: str
    pipeline_uuid: str
    sources: str
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """
    One staged file.

    ``key`` is relative to the dataset. ``partition`` maps each partition column to its value as text, or to ``None`` for null. ``checksum`` includes the name
    of its algorithm. ``stats`` is a text in the form of the sink that publishes the file. A log stores none that contains values of rows, because its
    entries are never deleted.
    """

    key: str
    bytes: int
    rows: int
    checksum: str
    partition: Mapping[str, str | None] = field(default_factory=dict)
    stats: str = field(default="", metadata=SPARSE)

    def __post_init__(self) -> None:
        if not keys_.is_written(self.key):
            raise LogDamagedError("a file's key is not a valid key below its dataset", invariant="R6", key=self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Committable:
    """Staged output of one sink. For a file sink, the files become visible with the outcome. For a sink outside the log, the publisher publishes their rows."""

    format: str
    rows: int
    files: tuple[DataFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """Records that could not be parsed. ``keys`` are JSON Lines objects, relative to the log's root."""

    rows: int = 0
    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key in self.keys:
            if not keys_.is_written(key) or not key.startswith(keys_.QUARANTINE):
                summary = "a key of quarantined records is not a valid key below the log's quarantine"
                raise LogDamagedError(summary, invariant="R6", key=key)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedGate:
    """
    A condition that the staged rows of an attempt do not satisfy.

    :param found: a sentence that says what was found. It contains no values of rows
    :param holds: whether only a user may commit the attempt (W49)
    """

    found: str
    holds: bool = field(default=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteTime:
    """
    Until when the partitions by event time are complete: those that end at or before ``until_ms``. No result announces a partition before ``since_ms``.

    Both are milliseconds since the epoch. ``since_ms`` is the start of the earliest partition with rows that were not late. ``until_ms`` is ``None`` while the
    rule of the pipeline gives no time.
    """

    since_ms: int
    until_ms: int | None = field(default=None, metadata=SPARSE)

    def has(self, end_ms: int) -> bool:
        """Return whether a partition that ends at a time is complete."""
        return self.until_ms is not None and end_ms <= self.until_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadInterval:
    """
    A period of time whose records a pipeline with intervals has read: one interval, or several that follow each other without a gap.

    :param start_ms: its start, inclusive, in milliseconds since the epoch
    :param end_ms: its end, exclusive
    :param bounds: partition → the offsets at the start and at the end. They are equal if the partition has no records of this time
    """

    start_ms: int
    end_ms: int
    bounds: Ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """
    The rows of earlier versions that a version, or a segment, hides from readers of its version and of later ones (R4).

    :param commits: versions whose rows are hidden, in ascending order. The rows of a version that hides single commits replace theirs
    :param after: the rows of all versions above this one are hidden; ``None`` hides none
    :param sinks: sinks whose rows are hidden
    """

    commits: tuple[int, ...] = ()
    after: int | None = None
    sinks: tuple[str, ...] = ()


class Earlier(Protocol):
    """The versions before one, which a verification has read."""

    @property
    def kept(self) -> Mapping[int, Outcome]:
        """The closed versions that no rollback has removed."""

    @property
    def visible(self) -> Set[int]:
        """The commits whose rows are visible."""

    def plan(self, version: int) -> Plan | None:
        """Return the plan of a version; ``None`` if it cannot be read."""

    def counts_after(self, version: int) -> Mapping[str, int]:
        """Return the counts, except zeros, that the versions after this one have added to the totals."""

    def published_after(self, version: int) -> Set[str]:
        """Return the sinks that have rows of versions after this one, according to the receipts (P10)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """
    What a version does. There is one subclass for each kind of version, in :mod:`airflow_provider_streamsem.protocol.kinds`.

    An instance is the payload of a plan, and of the outcome that commits it. The methods of this class describe a version that has no rows, hides no rows, and
    changes neither offsets, columns, state nor markers. A subclass overrides what its versions do.
    """

    kind: ClassVar[str]
    """The name of the kind in the log."""
    name: ClassVar[str]
    """The name of a version of this kind in messages."""
    label: ClassVar[str]
    """The text and the color with which the web view shows a committed version."""
    color: ClassVar[str]
    invariant: ClassVar[str]
    """The id of the invariants of this kind."""
    has_rows: ClassVar[bool] = False
    """Whether the version reads records and writes their rows. Only such commits can be reprocessed, and only they count for ``state.keep_versions``."""
    reads_new_records: ClassVar[bool] = False
    """Whether the version reads records that no version before it has read. Its outcome then has the hint of its plan, after an abort too."""
    stages: ClassVar[bool] = False
    """Whether an attempt writes files. If not, the outcome follows from the plan, so any process can commit the version."""
    is_announced: ClassVar[bool] = True
    """Whether the result of a run announces the commit, because it may change which rows are visible. Readers show only such a commit as rolled back."""
    is_planned_again: ClassVar[bool] = False
    """Whether the run of a commit that a rollback has removed plans it again (W53). Otherwise the run stays complete."""
    uses_spec: ClassVar[bool] = False
    """Whether the version is processed with the spec in its plan."""
    chains: ClassVar[tuple[str, ...]] = ()
    """The entries of :attr:`Outcome.newest` that name the newest commit of this kind."""
    changes_fields: ClassVar[bool] = False
    """Whether the commit may have other immutable fields than the version before it."""
    ends_log: ClassVar[bool] = False
    """Whether no entry may follow the plan."""

    @property
    def is_held(self) -> bool:
        """Whether the version stays open until it is committed or aborted on request (W39)."""
        return False

    @property
    def based_on(self) -> int | None:
        """The version whose columns and state the commit has; ``None``: those of the version before it."""
        return None

    @property
    def publish(self) -> tuple[str, ...]:
        """The sinks outside the log from which publishing the commit removes rows."""
        return ()

    @property
    def removed_counts(self) -> Mapping[str, int]:
        """The row counts that the commit subtracts from the totals."""
        return {}

    @property
    def hidden(self) -> Hidden:
        """The rows that the commit hides."""
        return Hidden()

    @property
    def new_partitions(self) -> Offsets:
        """The offsets at which partitions start that the log does not have before the commit."""
        return {}

    def rewrites(self, version: int) -> tuple[SegmentRewrite, ...]:
        """Return the rewrites that the commit adds. ``version`` is its version."""
        return ()

    def newest(self, version: int) -> Mapping[str, int]:
        """Return the entries of :attr:`Outcome.newest` that the commit sets."""
        return dict.fromkeys(self.chains, version)

    def next_offsets(self, plan: Plan, *, committed: bool) -> Offsets:
        """Return the offsets that the outcome sets, by partition."""
        return {}

    def intervals_after(self, intervals: tuple[ReadInterval, ...]) -> tuple[ReadInterval, ...]:
        """Return the time that the pipeline has read after the commit. ``intervals`` is that of the version on which it is based."""
        return intervals

    def state_after(self, state: Json) -> Json:
        """Return the state of the commit. ``state`` is that of the version on which it is based."""
        return state

    def schemas_after(self, schemas: Mapping[str, str]) -> Mapping[str, str]:
        """Return sink → the columns of the commit. ``schemas`` are those of the version on which it is based."""
        return schemas

    def markers_after(self, markers: Mapping[str, Marker]) -> Mapping[str, Marker]:
        """Return the markers of the commit. ``markers`` are those before it."""
        return markers

    def is_staged_by(self, manifest: StagedManifest) -> bool:
        """Return whether an attempt has staged what the payload requires."""
        return True

    def staged(self, manifest: StagedManifest) -> Kind:
        """Return the payload of the outcome that commits an attempt."""
        return self

    def describe(self) -> str:
        """Return what the version does, in a few words."""
        return self.name

    def is_outcome_of(self, planned: Kind) -> bool:
        """Return whether a commit with this payload follows from a plan with the payload ``planned``."""
        return self == planned

    def check_plan(self, plan: Plan, *, before: Outcome | None, next: Offsets) -> None:
        """
        Check the invariants of a plan.

        :param before: the outcome before the plan
        :param next: the offsets before the plan
        """
        if not self.has_rows and (plan.ranges or plan.gaps):
            raise self.damaged(f"the plan of a version of kind `{self.kind}` has ranges or gaps", plan.version)

    def check_outcome(self, outcome: Outcome) -> None:
        """Check the invariants of a commit that need no other entry. Readers follow references between versions, so these must name earlier versions."""
        if not self.has_rows and (outcome.sinks or outcome.counts or outcome.publish != self.publish):
            summary = (
                f"an outcome of kind `{self.kind}` has output or counts, or publishes to other sinks than its plan"
            )
            raise self.damaged(summary, outcome.version)
        if self.hidden.commits and not self.has_rows:
            summary = f"an outcome of kind `{self.kind}` replaces the rows of a commit, and has no rows"
            raise self.damaged(summary, outcome.version)

    def check_commit(self, plan: Plan, outcome: Outcome, *, before: Outcome | None) -> None:
        """
        Check the invariants of a commit with its plan.

        :param before: the outcome before the plan
        """
        if not self.is_outcome_of(plan.work):
            raise plan.work.damaged("an outcome has another payload than its plan", plan.version)
        if self.has_rows or self.based_on is not None or before is None:
            return
        state, schemas = self.state_after(before.state), self.schemas_after(before.schemas)
        if outcome.state != state or dict(outcome.schemas) != dict(schemas) or outcome.spec != plan.spec:
            summary = (
                f"the spec, the columns or the state of an outcome of kind `{self.kind}` do not follow from its plan"
            )
            raise self.damaged(summary, plan.version)

    def check_earlier(self, plan: Plan, outcome: Outcome | None, earlier: Earlier) -> None:
        """
        Check the version against all versions before it. Only ``verify`` calls this method.

        :param outcome: ``None`` if the version is open
        """

    def damaged(self, summary: str, version: int, **fields: object) -> LogDamagedError:
        """Return the error for a version that breaks an invariant of this kind."""
        return LogDamagedError(summary, invariant=self.invariant, version=version, **fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """
    Plan(n): the work of version n. The planner creates it before any executor reads a row.

    ``work`` says what the version does.
    """

    entry: ClassVar[str] = "plan"
    spillable: ClassVar[tuple[str, ...]] = (
        "pins",
        "lookups",
        "ranges",
        "initial_offsets",
        "hint",
        "work",
    )
    version: int
    work: Kind
    previous: str
    initial_offsets: Offsets | None = field(default=None, metadata=SPARSE)
    ranges: Ranges
    gaps: Gaps = field(default_factory=dict)
    pins: Json = None
    lookups: Mapping[str, Json] = field(default_factory=dict, metadata=SPARSE)
    hint: Json = field(default=None, metadata=SPARSE)
    run_key: str
    j: int
    target: Offsets | None = None
    run_start: Offsets
    run_counts: Mapping[str, int] = field(default_factory=dict)
    planned_at_ms: int
    planning_ms: int = field(default=0, metadata=SPARSE)
    lag: int | None = field(default=None, metadata=SPARSE)
    """The number of unread items of the source, those of this plan included. Only for users, like ``planning_ms``."""
    spec: str
    transform: str
    state: str | None = None
    watermark_ms: int | None = None
    source_time_ms: int | None = field(default=None, metadata=SPARSE)
    """Every record that arrived in the source before this time is in the ranges of this plan or of an earlier one, in milliseconds since the epoch."""
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedManifest:
    """``attempts/<n>/<attempt>.json``: the complete output of one attempt. Any writer can build the outcome of the version from it."""

    entry: ClassVar[str] = "manifest"
    spillable: ClassVar[tuple[str, ...]] = ("sinks", "schemas", "state", "time_partitions")
    version: int
    attempt_id: str
    plan: str
    spec: str
    transform: str
    sinks: Mapping[str, Committable]
    schemas: Mapping[str, str]
    quarantine: Quarantine
    counts: Mapping[str, int]
    publish: tuple[str, ...] = field(default=(), metadata=SPARSE)
    state: Json = field(default=None, metadata=SPARSE)
    failed_gates: tuple[FailedGate, ...] = field(default=(), metadata=SPARSE)
    time_partitions: Mapping[str, int] = field(default_factory=dict, metadata=SPARSE)
    complete: CompleteTime | None = field(default=None, metadata=SPARSE)
    staged_ms: int
    nonce: str

    @property
    def is_held(self) -> bool:
        """Whether only a user may commit the attempt (W49)."""
        return any(failed.holds for failed in self.failed_gates)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """The commit that set the marker of a transactional sink: its version, and the sha256 of the bytes of its outcome."""

    version: int
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    Outcome(n): version n was committed or aborted. The version is closed from the moment at which this single object exists.

    ``work`` is what the commit does. It is ``None`` exactly if the version was aborted.
    """

    entry: ClassVar[str] = "outcome"
    spillable: ClassVar[tuple[str, ...]] = ("sinks", "schemas", "hint", "state", "work", "time_partitions", "intervals")
    version: int
    result: Literal["commit", "abort"]
    work: Kind | None = field(default=None, metadata=SPARSE)
    plan: str
    attempt_id: str | None
    sinks: Mapping[str, Committable] = field(default_factory=dict)
    schemas: Mapping[str, str] = field(default_factory=dict)
    quarantine: Quarantine = field(default_factory=Quarantine)
    failed_gates: tuple[FailedGate, ...] = field(default=(), metadata=SPARSE)
    """The conditions that the committed rows do not satisfy. A user has requested the commit if one of them holds."""
    time_partitions: Mapping[str, int] = field(default_factory=dict, metadata=SPARSE)
    """Partition by event time → number of rows that the version wrote."""
    complete: CompleteTime | None = field(default=None, metadata=SPARSE)
    """Until when these partitions are complete after the version."""
    intervals: tuple[ReadInterval, ...] = field(default=(), metadata=SPARSE)
    """The time that the pipeline has read, in ascending order and without overlap, if its versions read intervals."""
    gaps: Gaps = field(default_factory=dict)
    newest: Mapping[str, int] = field(default_factory=dict, metadata=SPARSE)
    """
    Kind → the version of its newest commit up to and including this version, for ``rollback``, ``alter``, ``rewrite`` and ``erase``. An erasure counts as a
    rewrite, too. ``expire`` → the oldest readable version. A kind without a commit is absent. Readers follow these references to find the earlier commits.
    """
    counts: Mapping[str, int] = field(default_factory=dict)
    next: Offsets
    hint: Json = None
    publish: tuple[str, ...] = field(default=(), metadata=SPARSE)
    markers: Mapping[str, Marker] = field(default_factory=dict, metadata=SPARSE)
    """Transactional sink → the newest commit *before* this version that set the sink's marker, according to its receipts."""
    spec: str
    transform: str
    state: Json = None
    watermark_ms: int | None = None
    max_event_time_ms: int | None = None
    decided_at_ms: int
    duration_ms: int = 0
    staged_ms: int = field(default=0, metadata=SPARSE)
    reason: str = ""
    nonce: str

    def __post_init__(self) -> None:
        if (self.work is None) != (self.result == "abort"):
            raise LogDamagedError("an abort has a payload, or a commit has none", invariant="I2", version=self.version)
        if (self.work is None or self.work.has_rows) and not {*self.publish} <= {*self.sinks}:
            raise LogDamagedError(
                "an outcome requires publishing to sinks for which it has no output",
                invariant="I18",
                version=self.version,
            )
        if self.work is not None:
            self.work.check_outcome(self)
        # Readers follow these references backwards. With a reference to a later version, they would not terminate.
        if any(not 0 <= newest <= self.version for newest in self.newest.values()):
            raise LogDamagedError(
                "an outcome names a later version as the newest commit of a kind", invariant="I21", version=self.version
            )
        is_erasure = (
            self.newest.get("erase") == self.version
        )  # the only version that lets all versions before it expire
        if "expire" in self.newest and not 0 < self.oldest_readable < self.version + is_erasure:
            raise LogDamagedError(
                "the oldest readable version of an outcome is not an earlier version",
                invariant="I24",
                version=self.version,
            )

    @property
    def committed(self) -> bool:
        """Whether the outcome makes the output of the version visible."""
        return self.result == "commit"

    @property
    def has_rows(self) -> bool:
        """Whether the outcome commits the rows of a batch or of a reprocessing run."""
        return self.work is not None and self.work.has_rows

    @property
    def hidden(self) -> Hidden:
        """The rows of earlier versions that the outcome hides."""
        return Hidden() if self.work is None else self.work.hidden

    @property
    def replaces(self) -> int | None:
        """The commit whose rows the outcome of a reprocessing run replaces; ``None`` for any other outcome."""
        return self.hidden.commits[0] if self.hidden.commits else None

    @property
    def rewrites(self) -> tuple[SegmentRewrite, ...]:
        """The rewrite that the outcome commits, if it is one."""
        return () if self.work is None else self.work.rewrites(self.version)

    @property
    def oldest_readable(self) -> int:
        """The oldest readable version; 0 if no version has expired."""
        return self.newest.get("expire", 0)

    @property
    def requires_receipts(self) -> bool:
        """
        Whether the outcome is a commit with sinks outside the log, so that it requires receipts.

        This property does not show whether the receipts exist. :attr:`ClosedHead.has_pending_publishes` does.
        """
        return self.committed and bool(self.publish)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """
    Result of publishing one version to one sink outside the log.

    :param result: ``applied``: the sink has the rows. ``skipped``: an operator skipped the version, and the sink has no row of it. ``unknown``: it is unknown
        whether all at-most-once effects were performed
    :param rows: number of rows known to be applied
    :param detail: details from the sink, for operators
    """

    result: Literal["applied", "skipped", "unknown"]
    rows: int
    detail: Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipts:
    """
    Receipts(n): the results of all sinks outside the log for one commit. ``outcome`` is the sha256 of the bytes of that commit's outcome.

    ``markers``: transactional sink → the newest commit up to and including this one that set the sink's marker.
    """

    entry: ClassVar[str] = "receipts"
    spillable: ClassVar[tuple[str, ...]] = ()
    version: int
    outcome: str
    sinks: Mapping[str, Receipt]
    markers: Mapping[str, Marker] = field(default_factory=dict, metadata=SPARSE)
    published_at_ms: int
    duration_ms: int = 0
    reason: str = ""
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """
    Exclusive claim on one round of a chunk of a version's at-most-once effects. Only the publisher that generated ``nonce`` may perform them.

    A *chunk* is a consecutive set of records of the version. Round 0 starts with the first record of the chunk. Each later round starts with the first record
    that the previous round has not performed.
    """

    entry: ClassVar[str] = "claim"
    spillable: ClassVar[tuple[str, ...]] = ()
    version: int
    sink: str
    chunk: int
    round: int = field(default=0, metadata=SPARSE)
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """
    Result of one round of a chunk. The publisher creates it after the last effect of the round. All counts are records.

    ``done`` effects were acknowledged. ``refused`` effects will never be performed. ``unknown`` effects may have been performed. An operator skipped the
    ``skipped`` effects, and they will never be performed. ``left`` counts the records at the end of the chunk that the next round performs. A round with
    ``left=0`` completes the chunk.
    """

    entry: ClassVar[str] = "effects"
    spillable: ClassVar[tuple[str, ...]] = ()
    version: int
    sink: str
    chunk: int
    done: int
    refused: int = 0
    unknown: int = 0
    skipped: int = 0
    left: int = field(default=0, metadata=SPARSE)
    round: int = field(default=0, metadata=SPARSE)
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPointer:
    """Records that ``version`` is the j-th version that was planned under a run key; j starts at 0. Its bytes are a function of Plan(version)."""

    entry: ClassVar[str] = "pointer"
    spillable: ClassVar[tuple[str, ...]] = ()
    run_key: str
    j: int
    version: int
    target: Offsets | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialOffsets:
    """Initial offsets of a source. The first run with these source arguments creates the entry. Plan(0) contains the offsets at which the log starts."""

    entry: ClassVar[str] = "initial_offsets"
    spillable: ClassVar[tuple[str, ...]] = ("offsets",)
    offsets: Offsets
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """
    The versions that the result of a run announces: from ``since`` (exclusive) to ``upto`` (inclusive).

    ``version`` is the last version of the run, or the newest closed version if the run planned none. A run creates the announcement before it returns its
    result. So if a run dies before the create, the next run announces its versions. If it dies after the create, its retry announces the same versions.
    """

    entry: ClassVar[str] = "announcement"
    spillable: ClassVar[tuple[str, ...]] = ()
    version: int
    since: int
    upto: int
    run_key: str
    nonce: str


SEGMENT_WIDTH = 100
"""Number of versions in a segment of level 1, and of child segments in a segment of a higher level (W23)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFile:
    """A visible file and the version that made it visible."""

    version: int
    sink: str
    file: DataFile


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRewrite:
    """
    A committed rewrite.

    :param version: its version
    :param sink: the sink whose files it rewrites
    :param commits: the versions whose rows it stores in new files, in ascending order
    :param rows: number of the rows that these commits wrote
    :param output: the new files, with the same rows, except those that were erased
    :param erased: number of these rows that this rewrite or an earlier one has erased
    """

    version: int
    sink: str
    commits: tuple[int, ...]
    rows: int
    output: Committable
    erased: int = field(default=0, metadata=SPARSE)

    @property
    def named(self) -> set[tuple[str, int]]:
        """Sink and version of each commit that it rewrites."""
        return {(self.sink, commit) for commit in self.commits}


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """
    The summary of a fixed range of outcomes, from which readers compute the state of the log.

    A segment of level 1 summarizes the versions ``[100·index, 100·(index+1))`` and contains their files. A segment of level k > 1 contains the totals of 100
    segments of level k-1. If a reprocessing run has replaced a version, all values are those after the replacement:

    * ``files`` are the files that are still visible after the last of these versions.
    * ``hidden`` are the rows of versions *before* the first of these versions that these versions hide.
    * ``rewrites`` are the rewrites among these versions, also those that no longer apply. ``files`` has the files of the commits, not those of the rewrites.
    * ``counts`` are the counts of the commits minus the counts of the commits that they replaced.
    * ``last`` is the sha256 of the newest folded outcome, and ``next`` its offsets.
    * ``children`` holds the sha256 of each child's bytes. It is empty at level 1.
    """

    entry: ClassVar[str] = "segment"
    spillable: ClassVar[tuple[str, ...]] = ()
    level: int
    index: int
    last: str
    next: Offsets
    commits: int
    aborts: int
    counts: Mapping[str, int]
    files: tuple[SegmentFile, ...] = ()
    hidden: Hidden = field(default_factory=Hidden, metadata=SPARSE)
    rewrites: tuple[SegmentRewrite, ...] = field(default=(), metadata=SPARSE)
    children: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile:
    """
    A file of a listing.

    ``path`` is relative to the source's root. ``identity`` is ``etag:<etag>`` or ``mtime:<ns>``. ``mtime_ns`` determines the order in which new files get
    their ordinals, and which nodes of the tree of known files a comparison reads.
    """

    path: str
    bytes: int
    identity: str
    mtime_ns: int

    def __post_init__(self) -> None:
        if not keys_.is_relative(self.path):
            raise LogDamagedError(
                "a discovered file's path is not a valid path below the source", invariant="R6", path=self.path
            )


FileKey: TypeAlias = tuple[str, str]
"""Path and fingerprint of a file. Keys are sorted by path, as a listing is, and then by fingerprint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRef:
    """
    Reference to a page of ``files`` files with consecutive ordinals. A page of level 0 holds the files. A page above it references pages of the level below.
    """

    sha256: str
    level: int
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePage:
    """``files/<sha256>``: discovered files in the order of their ordinals, or references to the pages that hold them."""

    entry: ClassVar[str] = "page"
    spillable: ClassVar[tuple[str, ...]] = ()
    files: tuple[FoundFile, ...] = field(default=(), metadata=SPARSE)
    pages: tuple[PageRef, ...] = field(default=(), metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRange:
    """
    Reference to a node of the tree of known files, with a summary of the files in and below the node.

    ``first`` and ``last`` are the smallest and the largest key, both inclusive. ``files`` counts the files. ``listed`` counts those that were listed when a
    writer last compared the node with a listing, and ``digest`` is their digest. Bit i of ``absent`` is set if the i-th of the node's own files was not listed.
    """

    sha256: str
    first: FileKey
    last: FileKey
    files: int
    listed: int
    digest: int
    absent: int = field(default=0, metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownNode:
    """``known/<sha256>``: files in ascending order of key, and non-overlapping ranges in ascending order. A leaf has no ranges."""

    entry: ClassVar[str] = "known"
    spillable: ClassVar[tuple[str, ...]] = ()
    files: tuple[FileKey, ...] = field(default=(), metadata=SPARSE)
    ranges: tuple[KnownRange, ...] = field(default=(), metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """
    ``discovered/<i>``: all files discovered so far (PROTOCOL.md, 9). The newest discovery is the root of the pages and of the tree of known files.

    The files with ordinals ``[0, paged)`` are in ``pages``, ordered by ordinal, and in ``known``, ordered by key. The files with ordinals ``[paged, end)`` are
    in ``recent``. This discovery assigned the ordinals ``[first, end)``. Every file in ``known`` has ``mtime_ns < settled_ns``. ``listed_at_ms`` is the time of
    the newest complete listing of a source that is notified of new files (D9).
    """

    entry: ClassVar[str] = "discovery"
    spillable: ClassVar[tuple[str, ...]] = ()
    i: int
    first: int
    recent: tuple[FoundFile, ...]
    pages: tuple[PageRef, ...]
    known: tuple[KnownRange, ...]
    settled_ns: int
    listed_at_ms: int | None = field(default=None, metadata=SPARSE)
    nonce: str

    @property
    def paged(self) -> int:
        """The ordinal of the first recent file."""
        return sum(page.files for page in self.pages)

    @property
    def end(self) -> int:
        """The next ordinal to assign."""
        return self.paged + len(self.recent)


Entry: TypeAlias = (
    PipelineRecord
    | Moved
    | Plan
    | StagedManifest
    | Outcome
    | Receipts
    | Claim
    | Effects
    | RunPointer
    | InitialOffsets
    | Announcement
    | Segment
    | FilePage
    | KnownNode
    | Discovery
)
