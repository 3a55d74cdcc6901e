"""The only loop that performs requests of the protocol, and the log's face to the layers above."""

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
    Genesis,
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
from airflow_provider_streamsem.protocol.view import Head, LogView, fold
from airflow_provider_streamsem.stores.contract import Store, UnknownAnswerError, open_store
from airflow_provider_streamsem.stores.prefix import PrefixStore

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """
    How often and how long unknown answers are met with the same request again (W6, W7).

    :param tries: requests in a row without a clear answer, after which the writer gives up and reports *unknown*
    :param first_wait_s: seconds before the second request; doubled each time
    :param longest_wait_s: the longest wait between two requests, seconds
    """

    tries: int = 8
    first_wait_s: float = 0.1
    longest_wait_s: float = 5.0


@dataclass(slots=True)
class CommitLog:
    """
    A pipeline's log on a store. It holds nothing that matters: two of them on one store are as good as one.

    :param store: where the log lies
    :param clock: waits between repeated requests
    :param patience: for unknown answers
    :param sources: below which prefix planning keeps what it knows of sources; of a log that was moved, :meth:`read_pipeline` finds it
    """

    store: Store
    clock: Clock = SYSTEM_CLOCK
    patience: Patience = field(default_factory=Patience)
    sources: str = keys.SOURCES

    def perform(self, procedure: Procedure[T]) -> T:
        """
        Run a procedure to its end.

        :raises UnavailableError: too many unknown answers in a row; nothing was concluded from them
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
            telemetry.tell(
                telemetry.Requested, request=type(request).__name__.lower(), unknown=isinstance(event, Unknown)
            )
            # A key that exists but cannot be read, again and again, is no clear answer either.
            unclear = isinstance(event, Unknown) or (isinstance(event, Missing) and isinstance(before, Exists))
            unanswered = unanswered + 1 if unclear else unanswered if isinstance(event, Exists) else 0
            if unanswered >= self.patience.tries:
                procedure.close()
                key = request.prefix if not isinstance(request, (Put, Get)) else request.key
                raise UnavailableError(
                    "the store gave no clear answer; whether the last request was applied is unknown",
                    **{
                        "place": self.store.url,
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
            # An earlier sending of this request may have been applied (W7).
            what = "the store refused a request that it had not answered before; whether it was applied is unknown"
            raise UnavailableError(what, place=self.store.url) from error

    # --- objects that are not versions

    def create(self, key: str, data: bytes) -> Creation:
        """Create an object if absent, and say what is stored."""
        return self.perform(create(key, data))

    def read(self, key: str) -> bytes | None:
        """The bytes under a key, or ``None``."""
        return self.perform(get(key))

    def list_keys(self, prefix: str, limit: int | None = None) -> tuple[str, ...]:
        """The first keys under a prefix: a hint (W8)."""
        return self.perform(list_keys(prefix, limit))

    def read_pipeline(self) -> PipelineRecord | None:
        """
        ``pipeline.json``, or ``None`` where the log does not exist yet.

        :raises NewerFormatError: it requires a feature that this release lacks
        :raises LogMovingError: the log is being moved here and is not complete yet
        """
        found = self.perform(procedures.read_entry(PipelineRecord, keys.PIPELINE))
        if found is None:
            return None
        unknown = {*found[0].reader_features} - READER_FEATURES or {*found[0].writer_features} - WRITER_FEATURES
        if unknown:
            raise NewerFormatError(
                "the log requires features that this release lacks", place=self.store.url, features=sorted(unknown)
            )
        if found[0].moved_from:
            moved = self.moved(found[0].moved_from)
            if moved is None:
                what = "the log is being moved here and is not complete yet"
                raise LogMovingError(what, moved_from=found[0].moved_from, log=self.store.url)
            self.sources = moved.sources
        return found[0]

    def moved(self, url: str) -> Moved | None:
        """The record that this log was at ``url`` before, complete; ``None`` where there is none."""
        found = self.perform(procedures.read_entry(Moved, keys.moved(url)))
        return None if found is None else found[0]

    def create_pipeline(self, record: PipelineRecord) -> PipelineRecord:
        """Create ``pipeline.json``; returns what is stored, ours or another's who was first."""
        self.perform(procedures.create_entry(keys.PIPELINE, record))
        stored = self.read_pipeline()
        if stored is None:
            raise LogDamagedError("an object that was created cannot be read", invariant="I1", key=keys.PIPELINE)
        return stored

    def put_spec(self, spec: bytes) -> str:
        """Store a pipeline spec under its sha256, which is returned."""
        digest = sha256(spec)
        self.create(keys.spec(digest), spec)
        return digest

    def read_spec(self, digest: str) -> bytes:
        """A pipeline spec by its sha256."""
        if not keys.is_digest(digest):
            raise LogDamagedError("a pipeline spec is not named by its sha256", invariant="R6", spec=digest)
        data = self.read(keys.spec(digest))
        if data is None or sha256(data) != digest:
            raise LogDamagedError(
                "a pipeline spec is missing or differs from its name", invariant="I1", key=keys.spec(digest)
            )
        return data

    def genesis(self, source: str) -> Genesis | None:
        """Where version 0 starts with a source, by the sha256 of its arguments; ``None`` where no run has fixed it."""
        found = self.perform(procedures.read_entry(Genesis, keys.genesis(source)))
        return None if found is None else found[0]

    def put_genesis(self, source: str, wanted: Genesis) -> Genesis:
        """Fix where version 0 starts with a source; returns what is stored, ours or that of a process that was first."""
        self.perform(procedures.create_entry(keys.genesis(source), wanted))
        stored = self.genesis(source)
        if stored is None:
            what = "an object that was created cannot be read"
            raise LogDamagedError(what, invariant="I1", key=keys.genesis(source))
        return stored

    def of_source(self, guarded: Json) -> CommitLog:
        """
        The part of the log in which planning keeps what it knows of a source.

        Each source has its own, so that what a run with a wrong path discovered is never read by a run with the corrected one.

        :param guarded: the source's guarded fields
        """
        return self.under(keys.source(sha256(canonical(guarded)), self.sources))

    def under(self, prefix: str) -> CommitLog:
        """The part of the log below a prefix, which ends with ``/``."""
        return CommitLog(PrefixStore(self.store, prefix), self.clock, self.patience)

    # --- versions, for writers

    def find_head(self) -> Head:
        """The newest version that a listing hints at."""
        return self.perform(procedures.find_head())

    def read_head(self, version: int) -> Head | None:
        """The head at ``version``, by computed keys; ``None`` where nothing of it is stored."""
        return self.perform(procedures.read_head(version))

    def confirm_head(self, head: Head) -> Head:
        """The newest version by computed keys, whatever a listing has shown."""
        return self.perform(procedures.confirm_head(head))

    def locate(self, run_key: str, head: Head) -> procedures.Position:
        """Where a run stands."""
        return self.perform(procedures.locate(run_key, head))

    def find_current(self, version: int, head: Head) -> int:
        """The commit that holds the rows of a version at the head."""
        return self.perform(procedures.find_current(version, head))

    def find_root(self, version: int) -> int:
        """The commit at the root of a chain of redos; of a batch itself."""
        return self.perform(procedures.find_root(version))

    def run_versions(self, run_key: str) -> list[int]:
        """The versions that were planned under a run key and closed, oldest first."""
        return self.perform(procedures.run_versions(run_key))

    def others_between(self, run_key: str, first: tuple[int, int], last: tuple[int, int]) -> list[int]:
        """The versions that other runs planned between two of a run's own; see :func:`announcements.others_between`."""
        return self.perform(announcements.others_between(run_key, first, last))

    def pointer(self, run_key: str, j: int) -> RunPointer | None:
        """Pointer j of a run, or ``None`` where the run has not that many versions."""
        found = self.perform(procedures.read_entry(RunPointer, keys.pointer(run_key, j)))
        return None if found is None else found[0]

    def newest_announced(self) -> int:
        """Up to which version all are announced, as a listing hints; -1 where none is."""
        return self.perform(announcements.newest_announced())

    def announcement(self, key: str) -> Announcement | None:
        """An announcement, or ``None`` where it is missing."""
        found = self.perform(procedures.read_entry(Announcement, key))
        return None if found is None else found[0]

    def put_announcement(self, key: str, announcement: Announcement) -> Announcement:
        """Create an announcement; returns what is stored."""
        return self.perform(announcements.put_announcement(key, announcement))

    def put_plan(self, head: Head, plan: Plan) -> tuple[Head, bool]:
        """Create the next plan; see :func:`procedures.put_plan`."""
        return self.perform(procedures.put_plan(head, plan))

    def find_staged(self, head: Head) -> list[StagedManifest]:
        """Staged manifests of the open version."""
        return self.perform(procedures.find_staged(head))

    def put_staged(self, manifest: StagedManifest) -> None:
        """Create an attempt's manifest, after the last byte of its last file (W18)."""
        self.perform(procedures.create_entry(keys.attempt(manifest.version, manifest.attempt_id), manifest))

    def decide(self, head: Head, outcome: Outcome) -> Head:
        """Create pointer and outcome; returns the head with the outcome that is stored."""
        return self.perform(procedures.decide(head, outcome))

    # --- receipts and effects, for publishers

    def receipts(self, version: int) -> Receipts | None:
        """Receipts(version), or ``None`` where they are not there."""
        found = self.perform(procedures.read_entry(Receipts, keys.receipts(version)))
        return None if found is None else found[0]

    def put_receipts(self, head: Head, receipts: Receipts) -> tuple[Head, Receipts]:
        """Create the receipts of the head's commit; returns the head that owes nothing, and the receipts that are stored."""
        return self.perform(procedures.put_receipts(head, receipts))

    def claim(self, wanted: Claim) -> bool:
        """Claim one round of a part of a version's effects; whether the stored claim is this very entry's."""
        return self.perform(procedures.claim(wanted))

    def effects(self, version: int, sink: str, part: int, round: int = 0) -> Effects | None:
        """What became of one round of a part of a version's effects, or ``None`` where no entry recorded it."""
        found = self.perform(procedures.read_entry(Effects, keys.effects(version, sink, part, round)))
        return None if found is None else found[0]

    def put_effects(self, effects: Effects) -> Effects:
        """Record what became of one round of a part's effects; returns what is stored."""
        return self.perform(procedures.put_effects(effects))

    def write_segments(self, version: int, known: list[tuple[Outcome, str]]) -> None:
        """Create the segments that are full since ``version``."""
        self.perform(procedures.write_segments(version, known))

    # --- versions, for readers

    def plan(self, version: int) -> tuple[Plan, str] | None:
        """Plan(version) and the sha256 of its bytes."""
        return self.perform(procedures.read_entry(Plan, keys.plan(version)))

    def outcome(self, version: int) -> tuple[Outcome, str] | None:
        """Outcome(version) and the sha256 of its bytes."""
        return self.perform(procedures.read_entry(Outcome, keys.outcome(version)))

    def closed_head(self) -> int:
        """The newest closed version as a listing shows it; -1 where there is none."""
        return self.find_head().closed

    def view(self, *, version: int | None = None, since: int = -1) -> LogView:
        """
        The log folded at ``version`` (default: the newest closed one), files above ``since`` only.

        :raises InvalidError: ``version`` is not closed yet, or the two contradict each other
        """
        head = self.closed_head()
        if version is not None and version > head and self.outcome(version) is not None:
            head = version  # the listing lags: what was read once must read again (I7)
        at = head if version is None else version
        if not -1 <= at <= head or not -1 <= since <= at:
            raise InvalidError(
                "a version to read must be closed, and `since` not above it",
                version=version,
                since=since,
                newest_closed=head,
            )
        view = fold(self.perform(procedures.read_parts_to(at)), genesis={}, since=since)
        if view.version != at:
            raise LogDamagedError(
                "a read did not reach the version it was fixed at", invariant="I5", version=at, reached=view.version
            )
        return view


def open_commit_log(url: str, *, clock: Clock = SYSTEM_CLOCK, patience: Patience | None = None) -> CommitLog:
    """The log at a URL; no request is sent."""
    return CommitLog(open_store(url), clock, patience or Patience())
