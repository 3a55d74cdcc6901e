"""The commit log of a pipeline on a store. It contains the only loop that performs the requests of the protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.clock import SYSTEM_CLOCK, Clock
from airflow_provider_streamsem.errors import (
    InvalidError,
    LogDamagedError,
    LogMovingError,
    NewerFormatError,
    StoreRefusedError,
    UnavailableError,
)
from airflow_provider_streamsem.protocol import announcements, keys, procedures
from airflow_provider_streamsem.protocol.codec import canonical, sha256
from airflow_provider_streamsem.protocol.entries import (
    READER_FEATURES,
    WRITER_FEATURES,
    Announcement,
    Claim,
    Effects,
    InitialOffsets,
    Json,
    Moved,
    Outcome,
    PipelineRecord,
    Plan,
    Receipts,
    RunPointer,
    StagedManifest,
)
from airflow_provider_streamsem.protocol.machine import (
    Created,
    Creation,
    Event,
    Exists,
    Found,
    Get,
    Listed,
    Missing,
    Procedure,
    Put,
    Request,
    Unknown,
    create,
    get,
    list_keys,
)
from airflow_provider_streamsem.protocol.view import ClosedHead, Head, LogView, OpenHead, fold
from airflow_provider_streamsem.stores.contract import Store, UnknownAnswerError, open_store
from airflow_provider_streamsem.stores.prefix import PrefixStore

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """
    Retry policy for requests without a clear answer (W6, W7).

    :param tries: consecutive requests without a clear answer after which the writer stops and reports *unknown*
    :param first_wait_s: delay before the second request, in seconds; it doubles with each retry
    :param longest_wait_s: maximum delay between two requests, in seconds
    """

    tries: int = 8
    first_wait_s: float = 0.1
    longest_wait_s: float = 5.0


@dataclass(slots=True)
class CommitLog:
    """
    A pipeline's log on a store. All its state is in the store, so several instances can use the same store.

    :param store: the store that holds the log
    :param clock: used to wait between retries
    :param patience: retry policy
    :param sources: prefix of the discoveries of all sources; :meth:`read_pipeline` sets it for a moved log
    """

    store: Store
    clock: Clock = SYSTEM_CLOCK
    patience: Patience = field(default_factory=Patience)
    sources: str = keys.SOURCES

    def perform(self, procedure: Procedure[T]) -> T:
        """
        Run a procedure to completion.

        :raises UnavailableError: too many consecutive requests had no clear answer. Whether the last one was applied is unknown.
        """
        unanswered = 0
        event: Event | None = None
        cause: UnknownAnswerError | None = None
        while True:
            try:
                request = next(procedure) if event is None else procedure.send(event)
            except StopIteration as stop:
                result: T = stop.value
                return result
            before = event
            try:
                event = self._event(request, unsure=unanswered > 0)
            except UnknownAnswerError as error:
                event, cause = Unknown(), error
            telemetry.emit(
                telemetry.LogRequest, request=type(request).__name__.lower(), unknown=isinstance(event, Unknown)
            )
            # A key that repeatedly exists on create but is missing on read is not a clear answer either.
            unclear = isinstance(event, Unknown) or (isinstance(event, Missing) and isinstance(before, Exists))
            unanswered = unanswered + 1 if unclear else unanswered if isinstance(event, Exists) else 0
            if unanswered >= self.patience.tries:
                procedure.close()
                key = request.prefix if not isinstance(request, (Put, Get)) else request.key
                raise UnavailableError(
                    "the store gave no clear answer; whether the last request was applied is unknown",
                    **{
                        "location": self.store.url,
                        "tries": unanswered,
                        **({} if cause is None else cause.fields),
                        "key": key,
                    },
                ) from cause
            if unanswered:
                self.clock.sleep(min(self.patience.first_wait_s * 2 ** (unanswered - 1), self.patience.longest_wait_s))

    def _event(self, request: Request, *, unsure: bool) -> Event:
        try:
            if isinstance(request, Put):
                return Created() if self.store.create(request.key, request.data) else Exists()
            if isinstance(request, Get):
                data = self.store.read(request.key)
                return Missing() if data is None else Found(data)
            return Listed(tuple(stat.key for stat in self.store.list(request.prefix, request.limit)))
        except StoreRefusedError as error:
            if not unsure:
                raise
            # An earlier send of this request may have been applied (W7).
            what = "the store refused the retry of a request that had no clear answer; whether the request was applied is unknown"
            raise UnavailableError(what, location=self.store.url) from error

    # --- objects that are not versions

    def create(self, key: str, data: bytes) -> Creation:
        """Create an object if it is absent, and return the stored bytes."""
        return self.perform(create(key, data))

    def read(self, key: str) -> bytes | None:
        """Return the bytes under a key, or ``None``."""
        return self.perform(get(key))

    def list_keys(self, prefix: str, limit: int | None = None) -> tuple[str, ...]:
        """Return the first keys under a prefix. The result is a hint (W8)."""
        return self.perform(list_keys(prefix, limit))

    def read_pipeline(self) -> PipelineRecord | None:
        """
        Read ``pipeline.json``. Returns ``None`` if the log does not exist yet.

        :raises NewerFormatError: the log requires a feature that this release lacks
        :raises LogMovingError: the log is being moved here and is not complete yet
        """
        found = self.perform(procedures.read_entry(PipelineRecord, keys.PIPELINE))
        if found is None:
            return None
        unknown = {*found[0].reader_features} - READER_FEATURES or {*found[0].writer_features} - WRITER_FEATURES
        if unknown:
            raise NewerFormatError(
                "the log requires features that this release lacks", location=self.store.url, features=sorted(unknown)
            )
        if found[0].moved_from:
            moved = self.moved(found[0].moved_from)
            if moved is None:
                what = "the log is being moved here and is not complete yet"
                raise LogMovingError(what, moved_from=found[0].moved_from, log=self.store.url)
            self.sources = moved.sources
        return found[0]

    def moved(self, url: str) -> Moved | None:
        """Return the record that this log was moved here from ``url`` and is complete, or ``None``."""
        found = self.perform(procedures.read_entry(Moved, keys.moved(url)))
        return None if found is None else found[0]

    def create_pipeline(self, record: PipelineRecord) -> PipelineRecord:
        """Create ``pipeline.json``. Returns the stored record, which may be that of another process."""
        self.perform(procedures.create_entry(keys.PIPELINE, record))
        stored = self.read_pipeline()
        if stored is None:
            raise LogDamagedError("an object that was created cannot be read", invariant="I1", key=keys.PIPELINE)
        return stored

    def put_spec(self, spec: bytes) -> str:
        """Store a pipeline spec and return its sha256, which names it."""
        digest = sha256(spec)
        self.create(keys.spec(digest), spec)
        return digest

    def read_spec(self, digest: str) -> bytes:
        """
        Read a pipeline spec by its sha256.

        :raises LogDamagedError: ``digest`` is not a sha256, or the spec is missing or has another sha256
        """
        if not keys.is_digest(digest):
            raise LogDamagedError("the name of a pipeline spec is not a sha256", invariant="R6", spec=digest)
        data = self.read(keys.spec(digest))
        if data is None or sha256(data) != digest:
            raise LogDamagedError(
                "a pipeline spec is missing, or its sha256 differs from its name", invariant="I1", key=keys.spec(digest)
            )
        return data

    def initial_offsets(self, source: str) -> InitialOffsets | None:
        """Return the initial offsets of a source, or ``None`` if no run has created them. ``source`` is the sha256 of the source's arguments."""
        found = self.perform(procedures.read_entry(InitialOffsets, keys.initial_offsets(source)))
        return None if found is None else found[0]

    def put_initial_offsets(self, source: str, wanted: InitialOffsets) -> InitialOffsets:
        """Create the initial offsets of a source. Returns the stored ones, which may be those of another process."""
        self.perform(procedures.create_entry(keys.initial_offsets(source), wanted))
        stored = self.initial_offsets(source)
        if stored is None:
            what = "an object that was created cannot be read"
            raise LogDamagedError(what, invariant="I1", key=keys.initial_offsets(source))
        return stored

    def of_source(self, immutable_config: Json) -> CommitLog:
        """
        Return the section of the log that holds the discoveries of a source.

        Each source has its own section. A run with a corrected path therefore never reads the discoveries of a run with a wrong path.

        :param immutable_config: the source's immutable fields
        """
        return self.under(keys.source(sha256(canonical(immutable_config)), self.sources))

    def under(self, prefix: str) -> CommitLog:
        """Return the section of the log below a prefix, which must end with ``/``."""
        return CommitLog(PrefixStore(self.store, prefix), self.clock, self.patience)

    # --- versions, for writers

    def find_head(self) -> Head:
        """Return the newest version that a listing shows. The result is a hint (W8)."""
        return self.perform(procedures.find_head())

    def read_head(self, version: int) -> Head | None:
        """Return the head at ``version`` by computed keys, or ``None`` if the version has no plan and no outcome."""
        return self.perform(procedures.read_head(version))

    def confirm_head(self, head: Head) -> Head:
        """Follow computed keys from a listed head to the newest version."""
        return self.perform(procedures.confirm_head(head))

    def locate(self, run_key: str, head: Head) -> procedures.Position:
        """Return the position of a run."""
        return self.perform(procedures.locate(run_key, head))

    def find_current(self, version: int, head: Head) -> int:
        """Return the commit that holds the rows of a version at the head."""
        return self.perform(procedures.find_current(version, head))

    def find_root(self, version: int) -> int:
        """Return the first commit in the chain of a reprocessing run. A batch is its own root."""
        return self.perform(procedures.find_root(version))

    def run_versions(self, run_key: str) -> list[int]:
        """Return the versions that have a pointer of this run, oldest first; see :func:`procedures.run_versions`."""
        return self.perform(procedures.run_versions(run_key))

    def others_between(self, run_key: str, first: tuple[int, int], last: tuple[int, int]) -> list[int]:
        """Return the versions that other runs planned between two versions of a run; see :func:`announcements.others_between`."""
        return self.perform(announcements.others_between(run_key, first, last))

    def pointer(self, run_key: str, j: int) -> RunPointer | None:
        """Return pointer ``j`` of a run, or ``None`` if the run has fewer versions."""
        found = self.perform(procedures.read_entry(RunPointer, keys.pointer(run_key, j)))
        return None if found is None else found[0]

    def newest_announced(self) -> int:
        """Return the version up to which all versions are announced, or -1 if none is. The value is a hint: it may be too low (W8)."""
        return self.perform(announcements.newest_announced())

    def announcement(self, key: str) -> Announcement | None:
        """Return an announcement, or ``None`` if it is missing."""
        found = self.perform(procedures.read_entry(Announcement, key))
        return None if found is None else found[0]

    def put_announcement(self, key: str, announcement: Announcement) -> Announcement:
        """Create an announcement and return the stored one."""
        return self.perform(announcements.put_announcement(key, announcement))

    def put_plan(self, head: ClosedHead, plan: Plan) -> tuple[Head, bool]:
        """Create the next plan; see :func:`procedures.put_plan`."""
        return self.perform(procedures.put_plan(head, plan))

    def find_staged(self, head: OpenHead) -> list[StagedManifest]:
        """Return the staged manifests that were made for the open plan."""
        return self.perform(procedures.find_staged(head))

    def put_staged(self, manifest: StagedManifest) -> None:
        """Create the manifest of an attempt. The caller must have written all its files completely (W18)."""
        self.perform(procedures.create_entry(keys.attempt(manifest.version, manifest.attempt_id), manifest))

    def decide(self, head: OpenHead, outcome: Outcome) -> tuple[ClosedHead, Outcome]:
        """Create the run pointer and the outcome of the open plan. Returns the head at the stored outcome."""
        return self.perform(procedures.decide(head, outcome))

    # --- receipts and effects, for publishers

    def receipts(self, version: int) -> Receipts | None:
        """Return Receipts(version), or ``None`` if they do not exist."""
        found = self.perform(procedures.read_entry(Receipts, keys.receipts(version)))
        return None if found is None else found[0]

    def put_receipts(self, head: ClosedHead, receipts: Receipts) -> tuple[ClosedHead, Receipts]:
        """Create the receipts of the head's commit. Returns the head without pending publishes, and the stored receipts."""
        return self.perform(procedures.put_receipts(head, receipts))

    def claim(self, wanted: Claim) -> bool:
        """Claim one round of a chunk of a version's effects. Returns whether the stored claim is this one."""
        return self.perform(procedures.claim(wanted))

    def effects(self, version: int, sink: str, part: int, round: int = 0) -> Effects | None:
        """Return the result of one round of a chunk of a version's effects, or ``None`` if no publisher recorded it."""
        found = self.perform(procedures.read_entry(Effects, keys.effects(version, sink, part, round)))
        return None if found is None else found[0]

    def put_effects(self, effects: Effects) -> Effects:
        """Record the result of one round of a chunk. Returns the stored record."""
        return self.perform(procedures.put_effects(effects))

    def write_segments(self, version: int, known: list[tuple[Outcome, str]]) -> None:
        """Create the segments that became full when ``version`` was closed."""
        self.perform(procedures.write_segments(version, known))

    # --- versions, for readers

    def plan(self, version: int) -> tuple[Plan, str] | None:
        """Return Plan(version) and the sha256 of its bytes, or ``None``."""
        return self.perform(procedures.read_entry(Plan, keys.plan(version)))

    def outcome(self, version: int) -> tuple[Outcome, str] | None:
        """Return Outcome(version) and the sha256 of its bytes, or ``None``."""
        return self.perform(procedures.read_entry(Outcome, keys.outcome(version)))

    def closed_head(self) -> int:
        """Return the newest closed version that a listing shows, or -1 if there is none."""
        return self.find_head().closed

    def view(self, *, version: int | None = None, since: int = -1) -> LogView:
        """
        Return the log folded up to ``version`` (default: the newest closed version).

        :param version: a closed version; -1 for an empty view
        :param since: keep only files of versions above this one
        :raises InvalidError: ``version`` is not closed yet, or ``since`` is above it
        """
        head = self.closed_head()
        if version is not None and version > head and self.outcome(version) is not None:
            head = version  # The listing lags. A version that was read once must stay readable (I7).
        at = head if version is None else version
        if not -1 <= at <= head or not -1 <= since <= at:
            raise InvalidError(
                "`version` must be a closed version, and `since` must not be above it",
                version=version,
                since=since,
                newest_closed=head,
            )
        view = fold(self.perform(procedures.read_parts_to(at)), initial_offsets={}, since=since)
        if view.version != at:
            raise LogDamagedError(
                "the outcomes that were read do not end at the requested version",
                invariant="I5",
                version=at,
                reached=view.version,
            )
        return view


def open_commit_log(url: str, *, clock: Clock = SYSTEM_CLOCK, patience: Patience | None = None) -> CommitLog:
    """Open the log at a URL. Sends no request."""
    return CommitLog(open_store(url), clock, patience or Patience())
