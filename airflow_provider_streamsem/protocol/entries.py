"""
Entries of the log: frozen dataclasses with the fields of PROTOCOL.md, section 2.

Times are milliseconds UTC, sizes are bytes, and ranges are ``[start, end)``. The constructors reject keys that point outside their root (R6).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

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
    of its algorithm. ``stats`` holds the column bounds as text, in the format of the sink that publishes the file. It is ``""`` if that sink needs no bounds.
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
class Replaced:
    """The visible commit whose rows a reprocessing run replaces. ``counts`` are the row counts of that commit. Totals over the log subtract them."""

    version: int
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack:
    """
    The position to which a rollback returns. The rows of all versions between ``to`` and the rollback, both exclusive, are no longer visible.

    ``next`` are the offsets after version ``to``, with every partition that the log has now. ``counts`` are the row counts that the versions in between added
    to the totals. Totals over the log subtract them. ``publish`` are the sinks outside the log that have rows of these versions. Publishing the rollback
    removes the rows from them.
    """

    to: int
    next: Offsets
    counts: Mapping[str, int]
    publish: tuple[str, ...] = field(default=(), metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Altered:
    """
    What an alter changes besides the spec.

    ``offsets`` are the offsets at which partitions start that the log does not have yet. ``state`` are the fields of the state that the next version starts
    without. ``removed`` are the sinks that the pipeline no longer has, and those whose dataset or table was replaced by another one. Their rows of all versions
    up to the alter are no longer visible through the log.
    """

    offsets: Offsets = field(default_factory=dict)
    state: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """
    A rewrite of one sink: the commits whose rows it stores in new files.

    ``commits`` are versions in ascending order, and ``rows`` is the number of rows that their files have in total. ``output`` are the new files, with the same
    rows. It is ``None`` in a plan, and in the plan's outcome it is set.
    """

    sink: str
    commits: tuple[int, ...]
    rows: int
    output: Committable | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """
    Plan(n): the work of version n. The planner creates it before any executor reads a row.

    A plan of kind ``move`` ends the log. The log continues at ``moved_to``, and no entry follows here.
    """

    entry: ClassVar[str] = "plan"
    spillable: ClassVar[tuple[str, ...]] = (
        "pins",
        "lookups",
        "ranges",
        "initial_offsets",
        "hint",
        "rolled_back",
        "altered",
        "rewritten",
    )
    version: int
    kind: Literal["batch", "reprocess", "rollback", "alter", "rewrite", "expire", "move"] = "batch"
    previous: str
    initial_offsets: Offsets | None = field(default=None, metadata=SPARSE)
    ranges: Ranges
    gaps: Gaps = field(default_factory=dict)
    replaces: Replaced | None = field(default=None, metadata=SPARSE)
    held: bool = field(default=False, metadata=SPARSE)
    """Whether the version of a reprocessing run stays open until it is committed or aborted on request (W39)."""
    rolled_back: RolledBack | None = field(default=None, metadata=SPARSE)
    altered: Altered | None = field(default=None, metadata=SPARSE)
    rewritten: Rewritten | None = field(default=None, metadata=SPARSE)
    expires: int | None = field(default=None, metadata=SPARSE)
    """Of a plan of kind ``expire``: the versions below this one expire (W43)."""
    moved_to: str = field(default="", metadata=SPARSE)
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
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedManifest:
    """``attempts/<n>/<attempt>.json``: the complete output of one attempt. Any writer can build the outcome of the version from it."""

    entry: ClassVar[str] = "manifest"
    spillable: ClassVar[tuple[str, ...]] = ("sinks", "schemas", "state")
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
    staged_ms: int
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """The commit that set the marker of a transactional sink: its version, and the sha256 of the bytes of its outcome."""

    version: int
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome(n): version n was committed or aborted. The version is closed from the moment at which this single object exists."""

    entry: ClassVar[str] = "outcome"
    spillable: ClassVar[tuple[str, ...]] = ("sinks", "schemas", "hint", "state", "rolled_back", "altered", "rewritten")
    version: int
    result: Literal["commit", "abort"]
    plan: str
    attempt_id: str | None
    sinks: Mapping[str, Committable] = field(default_factory=dict)
    schemas: Mapping[str, str] = field(default_factory=dict)
    quarantine: Quarantine = field(default_factory=Quarantine)
    gaps: Gaps = field(default_factory=dict)
    replaces: Replaced | None = field(default=None, metadata=SPARSE)
    rolled_back: RolledBack | None = field(default=None, metadata=SPARSE)
    newest_rollback: int | None = field(default=None, metadata=SPARSE)
    """The newest committed rollback up to and including this version. Readers follow it to find the versions that are not rolled back."""
    altered: Altered | None = field(default=None, metadata=SPARSE)
    newest_alter: int | None = field(default=None, metadata=SPARSE)
    """The newest committed alter up to and including this version. Readers follow it to find the sinks that a version wrote."""
    rewritten: Rewritten | None = field(default=None, metadata=SPARSE)
    newest_rewrite: int | None = field(default=None, metadata=SPARSE)
    """The newest committed rewrite up to and including this version. Vacuum follows it to find the rewrites whose files no reader needs."""
    expires: int | None = field(default=None, metadata=SPARSE)
    oldest_readable: int | None = field(default=None, metadata=SPARSE)
    """The oldest readable version according to the newest committed expiry up to and including this version; ``None`` if no version has expired."""
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
        if self.rolled_back is None and not {*self.publish} <= {*self.sinks}:
            raise LogDamagedError(
                "an outcome requires publishing to sinks for which it has no output",
                invariant="I18",
                version=self.version,
            )
        # Readers follow chains of reprocessing runs backwards. With a reference to a later version, they would not terminate.
        if self.replaces is not None and self.replaces.version >= self.version:
            raise LogDamagedError(
                "an outcome replaces a version that is not earlier", invariant="I20", version=self.version
            )
        if self.rolled_back is not None and not 0 <= self.rolled_back.to < self.version:
            raise LogDamagedError(
                "an outcome rolls back to a version that is not earlier", invariant="I21", version=self.version
            )
        if self.rolled_back is not None and (self.publish != self.rolled_back.publish or self.sinks):
            raise LogDamagedError(
                "a rollback has output, or requires publishing to other sinks than its plan",
                invariant="I21",
                version=self.version,
            )
        if self.altered is not None and (self.sinks or self.publish):
            raise LogDamagedError("an alter has output", invariant="I22", version=self.version)
        if self.rewritten is not None and (self.sinks or self.publish or self.counts):
            raise LogDamagedError(
                "the outcome of a rewrite has `sinks`, `publish` or `counts`", invariant="I23", version=self.version
            )
        if self.expires is not None and (self.sinks or self.publish or self.counts):
            raise LogDamagedError(
                "the outcome of an expiry has `sinks`, `publish` or `counts`", invariant="I24", version=self.version
            )
        if self.oldest_readable is not None and not 0 < self.oldest_readable < self.version:
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
    """A committed rewrite and its version."""

    version: int
    rewritten: Rewritten


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """
    The summary of a fixed range of outcomes, from which readers compute the state of the log.

    A segment of level 1 summarizes the versions ``[100·index, 100·(index+1))`` and contains their files. A segment of level k > 1 contains the totals of 100
    segments of level k-1. If a reprocessing run has replaced a version, all values are those after the replacement:

    * ``files`` are the files that are still visible after the last of these versions.
    * ``replaced`` are the versions *before* the first of these versions whose files reprocessing runs have replaced.
    * ``rolled_back_to``: the files of versions above it and *before* the first of these versions are no longer visible. ``None`` if no rollback among these
      versions returned to an earlier version than the first.
    * ``removed_sinks``: the files of these sinks *before* the first of these versions are no longer visible, because alters have removed the sinks.
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
    replaced: tuple[int, ...] = field(default=(), metadata=SPARSE)
    rolled_back_to: int | None = field(default=None, metadata=SPARSE)
    removed_sinks: tuple[str, ...] = field(default=(), metadata=SPARSE)
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
