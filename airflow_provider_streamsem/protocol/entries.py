"""
The entries of the log: frozen records, fields as in PROTOCOL.md section 2.

They hold no behaviour beyond naming themselves, and refuse keys that lead out of their place (R6).
Times are milliseconds UTC, sizes bytes, ranges ``[start, end)``.
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
"""the writer feature of a log with sinks outside it: who does not know it would plan before the receipts are there"""
WRITER_FEATURES: frozenset[str] = frozenset({PUBLISH})

SPARSE = {"sparse": True}
"""marks a field that is left out of the bytes where it has its default (W2)"""

Json: TypeAlias = Any
"""a value that JSON can hold: dict, list, str, int, bool, None"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRecord:
    """``pipeline.json``: what never changes about a pipeline. ``spec`` is that of the run that created the log; only Plan(0) makes a spec count."""

    entry: ClassVar[str] = "pipeline"
    spillable: ClassVar[tuple[str, ...]] = ()
    pipeline_uuid: str
    name: str
    spec: str
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()
    moved_from: str = field(default="", metadata=SPARSE)
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """
    Says that the pipeline's log was at ``moved_from`` and is here now, complete: marks of datasets that name that place count for this log.

    ``sources`` is the prefix below which the sources' discoveries were copied.
    """

    entry: ClassVar[str] = "moved"
    spillable: ClassVar[tuple[str, ...]] = ()
    moved_from: str
    pipeline_uuid: str
    sources: str
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """
    One staged file.

    ``key`` is relative to the dataset; ``partition`` maps column → text, or ``None`` for null; ``checksum`` names its own method.

    ``stats``: the bounds of its columns, as text in the form of the sink that publishes it; ``""`` where that sink needs none.
    """

    key: str
    bytes: int
    rows: int
    checksum: str
    partition: Mapping[str, str | None] = field(default_factory=dict)
    stats: str = field(default="", metadata=SPARSE)

    def __post_init__(self) -> None:
        if not keys_.is_written(self.key):
            raise LogDamagedError("a file's key leads out of its dataset", invariant="R6", key=self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Committable:
    """What staging one sink returns: the files that become visible with the outcome, or that a sink outside the log is to publish."""

    format: str
    rows: int
    files: tuple[DataFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """Records that could not be parsed: JSON lines under ``keys``, relative to the log's root."""

    rows: int = 0
    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key in self.keys:
            if not keys_.is_written(key) or not key.startswith(keys_.QUARANTINE):
                what = "a key of quarantined records leads out of the log's quarantine"
                raise LogDamagedError(what, invariant="R6", key=key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """The visible commit whose files a redo replaces, and that commit's counts, so that totals stay net."""

    version: int
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """
    Plan(n): what version n will do. Written before the first row is read.

    The kind ``move`` ends the log: it goes on at ``moved_to``, and nothing follows here.
    """

    entry: ClassVar[str] = "plan"
    spillable: ClassVar[tuple[str, ...]] = ("pins", "ranges", "genesis")
    version: int
    kind: Literal["batch", "redo", "move"] = "batch"
    previous: str
    genesis: Offsets | None = field(default=None, metadata=SPARSE)
    ranges: Ranges
    gaps: Gaps = field(default_factory=dict)
    replaces: Replaced | None = field(default=None, metadata=SPARSE)
    moved_to: str = field(default="", metadata=SPARSE)
    pins: Json = None
    run_key: str
    j: int
    target: Offsets | None = None
    run_start: Offsets
    run_counts: Mapping[str, int] = field(default_factory=dict)
    planned_at_ms: int
    spec: str
    transform: str
    state: str | None = None
    watermark_ms: int | None = None
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedManifest:
    """Everything that one attempt produced: complete, so that anyone can decide it."""

    entry: ClassVar[str] = "manifest"
    spillable: ClassVar[tuple[str, ...]] = ("sinks", "schemas", "source", "state")
    version: int
    attempt_id: str
    plan: str
    spec: str
    transform: str
    sinks: Mapping[str, Committable]
    schemas: Mapping[str, str]
    quarantine: Quarantine
    counts: Mapping[str, int]
    source: Json = None
    publish: tuple[str, ...] = field(default=(), metadata=SPARSE)
    state: Json = field(default=None, metadata=SPARSE)
    staged_ms: int
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """Which commit set a transactional sink's marker: its version, and the sha256 of the bytes of its outcome."""

    version: int
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome(n): what became of version n. The one object that decides."""

    entry: ClassVar[str] = "outcome"
    spillable: ClassVar[tuple[str, ...]] = ("sinks", "schemas", "source", "state")
    version: int
    result: Literal["commit", "abort"]
    plan: str
    attempt_id: str | None
    sinks: Mapping[str, Committable] = field(default_factory=dict)
    schemas: Mapping[str, str] = field(default_factory=dict)
    quarantine: Quarantine = field(default_factory=Quarantine)
    gaps: Gaps = field(default_factory=dict)
    replaces: Replaced | None = field(default=None, metadata=SPARSE)
    counts: Mapping[str, int] = field(default_factory=dict)
    next: Offsets
    source: Json = None
    publish: tuple[str, ...] = field(default=(), metadata=SPARSE)
    markers: Mapping[str, Marker] = field(default_factory=dict, metadata=SPARSE)
    """transactional sink → the newest *earlier* commit that set its marker, by that version's receipts"""
    spec: str
    transform: str
    state: Json = None
    watermark_ms: int | None = None
    max_event_time_ms: int | None = None
    decided_at_ms: int
    duration_ms: int = 0
    reason: str = ""
    nonce: str

    def __post_init__(self) -> None:
        if not {*self.publish} <= {*self.sinks}:
            raise LogDamagedError(
                "an outcome owes receipts of sinks without output", invariant="I18", version=self.version
            )
        # Chains of redos are followed back: one that led forward would never end.
        if self.replaces is not None and self.replaces.version >= self.version:
            raise LogDamagedError("an outcome replaces no earlier version", invariant="I20", version=self.version)

    @property
    def committed(self) -> bool:
        """Whether the version's output is decided to become visible."""
        return self.result == "commit"

    @property
    def owes(self) -> bool:
        """Whether receipts must follow: the commit names sinks outside the log."""
        return self.committed and bool(self.publish)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """
    What a sink outside the log answered for one version.

    ``applied``: the rows are there. ``skipped``: a person gave them up, none is there by this version. ``unknown``: at-most-once effects of which nobody
    knows whether all were performed. ``rows``: how many were applied, as far as it is known; ``detail`` is the sink's own, for people.
    """

    result: Literal["applied", "skipped", "unknown"]
    rows: int
    detail: Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipts:
    """
    Receipts(n): what the sinks outside the log answered for the commit whose bytes have the sha256 ``outcome``.

    ``markers``: transactional sink → the newest commit up to this one that set its marker.
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
    Who alone may perform one round of a part of a version's at-most-once effects: the entry to publishing that minted ``nonce``.

    ``round`` 0 begins with the part's first record, each later one with the first record that the round before it left.
    """

    entry: ClassVar[str] = "claim"
    spillable: ClassVar[tuple[str, ...]] = ()
    version: int
    sink: str
    part: int
    round: int = field(default=0, metadata=SPARSE)
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """
    What became of the effects of one round of a part, written after the last of them; in records.

    ``done`` were acknowledged, ``refused`` never will be, ``unknown`` may have been performed, ``skipped`` were given up by an operator.
    ``left``: the last records of the part, which the next round performs. A part is over with the round that leaves none.
    """

    entry: ClassVar[str] = "effects"
    spillable: ClassVar[tuple[str, ...]] = ()
    version: int
    sink: str
    part: int
    done: int
    refused: int = 0
    unknown: int = 0
    skipped: int = 0
    left: int = field(default=0, metadata=SPARSE)
    round: int = field(default=0, metadata=SPARSE)
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPointer:
    """Says that the j-th version planned under a run key is ``version``; the bytes are a function of Plan(version)."""

    entry: ClassVar[str] = "pointer"
    spillable: ClassVar[tuple[str, ...]] = ()
    run_key: str
    j: int
    version: int
    target: Offsets | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Genesis:
    """Where version 0 starts with a source, fixed by the first run with these arguments of the source. Plan(0) names the offsets that count."""

    entry: ClassVar[str] = "genesis"
    spillable: ClassVar[tuple[str, ...]] = ("offsets",)
    offsets: Offsets
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """
    Says which versions the result of a run announces: those above ``since``, up to and including ``upto``.

    ``version`` is the run's last version, or the newest closed one where the run planned none.

    Created before the run returns its result, so that the next run announces what a dead run has not, and a retry announces the same again.
    """

    entry: ClassVar[str] = "announcement"
    spillable: ClassVar[tuple[str, ...]] = ()
    version: int
    since: int
    upto: int
    run_key: str
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFile:
    """A visible file with the version that made it visible."""

    version: int
    sink: str
    file: DataFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """
    A fold of outcomes. Level 1: versions ``[100·index, 100·(index+1))`` with their files. Level k > 1: totals of 100 segments of level k-1.

    Net of redos: ``files`` are those that are still visible after the last of the versions, ``replaced`` the versions *before* the first whose files are not,
    ``counts`` those of the commits less those of the commits that were replaced.
    ``last`` is the sha256 of the newest outcome folded, ``next`` its offsets, ``children`` the sha256 of each child's bytes (empty at level 1).
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
    children: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile:
    """
    A file as a listing showed it.

    ``path`` is relative to the source's place, ``identity`` is ``etag:<etag>`` or ``mtime:<ns>``; ``mtime_ns`` only orders.
    """

    path: str
    bytes: int
    identity: str
    mtime_ns: int

    def __post_init__(self) -> None:
        if not keys_.is_relative(self.path):
            raise LogDamagedError("a discovered file's path leads out of the source", invariant="R6", path=self.path)


FileKey: TypeAlias = tuple[str, str]
"""path and fingerprint of a file; their order is that of a listing"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRef:
    """Names a page: ``files`` files with consecutive ordinals; at level 0 the page holds them, above it names pages of the level below."""

    sha256: str
    level: int
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePage:
    """``files/<sha256>``: discovered files in the order of their ordinals, or the pages that hold them."""

    entry: ClassVar[str] = "page"
    spillable: ClassVar[tuple[str, ...]] = ()
    files: tuple[FoundFile, ...] = field(default=(), metadata=SPARSE)
    pages: tuple[PageRef, ...] = field(default=(), metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRange:
    """
    Names a node of the tree of known files, and summarises the files in and below it.

    ``first`` and ``last`` are the smallest and the largest key, both inclusive. ``files`` counts the files. ``listed`` of them were listed when the node was
    last compared with a listing, and ``digest`` is the digest of these. Bit i of ``absent`` is set where the i-th of the node's own files was not listed.
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
    """``known/<sha256>``: files by key, ascending, and ranges that do not overlap, ascending. A leaf has no ranges."""

    entry: ClassVar[str] = "known"
    spillable: ClassVar[tuple[str, ...]] = ()
    files: tuple[FileKey, ...] = field(default=(), metadata=SPARSE)
    ranges: tuple[KnownRange, ...] = field(default=(), metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """
    ``discovered/<i>``: every file that was discovered so far (PROTOCOL.md, 9). The newest discovery is the root of both trees.

    The files with the ordinals ``[0, paged)`` are in ``pages``, in the order of their ordinals, and in ``known``, by key. Those with the ordinals
    ``[paged, end)`` are ``recent``. This discovery gave the ordinals ``[first, end)``. Every file of ``known`` has ``mtime_ns < settled_ns``.
    """

    entry: ClassVar[str] = "discovery"
    spillable: ClassVar[tuple[str, ...]] = ()
    i: int
    first: int
    recent: tuple[FoundFile, ...]
    pages: tuple[PageRef, ...]
    known: tuple[KnownRange, ...]
    settled_ns: int
    nonce: str

    @property
    def paged(self) -> int:
        """The ordinal of the first recent file."""
        return sum(page.files for page in self.pages)

    @property
    def end(self) -> int:
        """The next ordinal to give."""
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
    | Genesis
    | Announcement
    | Segment
    | FilePage
    | KnownNode
    | Discovery
)
