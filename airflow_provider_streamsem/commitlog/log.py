"""The commit log of a pipeline on a store. The procedures of the protocol yield requests, and :meth:`CommitLog.perform` sends them to the store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.clock import SYSTEM_CLOCK, Clock, later
from airflow_provider_streamsem.commitlog.retrying import RetryingStore, RetryPolicy
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
    Kind,
    Moved,
    Outcome,
    PipelineRecord,
    Plan,
    Quarantine,
    Receipts,
    RunPointer,
    SegmentRewrite,
    StagedManifest,
)
from airflow_provider_streamsem.protocol.kinds.alter import Alter
from airflow_provider_streamsem.protocol.kinds.erase import Erase, kept_in_quarantine
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
from airflow_provider_streamsem.protocol.specs import stored_spec
from airflow_provider_streamsem.protocol.view import ClosedHead, Head, LogView, OpenHead, fold, is_bound
from airflow_provider_streamsem.stores.contract import Store, UnknownResultError, open_store
from airflow_provider_streamsem.stores.prefix import PrefixStore

T = TypeVar("T")
K = TypeVar("K", bound=Kind)


@dataclass(slots=True)
class CommitLog:
    """
    The commit log of a pipeline on a store. All its state is in the store, so any number of instances and processes can use one log.

    Every method that sends requests may raise :class:`UnavailableError`, :class:`StoreRefusedError` and :class:`LogDamagedError`.

    :param store: the store that holds the log
    :param clock: the clock for timestamps and for delays between retries
    :param retry_policy: how often, and after which delays, a request with an unknown result is sent again
    """

    store: Store
    clock: Clock = SYSTEM_CLOCK
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    _sources: str | None = field(default=None, init=False, repr=False, compare=False)

    def perform(self, procedure: Procedure[T]) -> T:
        """
        Send the requests that a procedure yields, one after another, and return the result of the procedure.

        :raises UnavailableError: the result of ``retry_policy.tries`` consecutive requests is unknown. Whether the last one was applied is unknown
        :raises StoreRefusedError: the store refused a request. It was not applied
        """
        unknown_results = 0
        event: Event | None = None
        cause: UnknownResultError | None = None
        while True:
            try:
                request = next(procedure) if event is None else procedure.send(event)
            except StopIteration as stop:
                result: T = stop.value
                return result
            before = event
            try:
                event = self._event(request, may_be_applied=unknown_results > 0)
            except UnknownResultError as error:
                event, cause = Unknown(), error
            telemetry.emit(
                telemetry.LogRequest, request=type(request).__name__.lower(), unknown=isinstance(event, Unknown)
            )
            # If a key exists on create but is missing on read, the result of the create is unknown too.
            is_unknown = isinstance(event, Unknown) or (isinstance(event, Missing) and isinstance(before, Exists))
            unknown_results = unknown_results + 1 if is_unknown else unknown_results if isinstance(event, Exists) else 0
            if unknown_results >= self.retry_policy.tries:
                procedure.close()
                key = request.prefix if not isinstance(request, (Put, Get)) else request.key
                unavailable = UnavailableError(
                    "the store did not report the result of a request; whether the request was applied is unknown",
                    **{
                        "location": self.store.url,
                        "tries": unknown_results,
                        **({} if cause is None else cause.fields),
                        "key": key,
                    },
                )
                raise unavailable.advising((cause or unavailable).do) from cause
            if unknown_results:
                self.clock.sleep(self.retry_policy.wait_s(unknown_results))

    def _event(self, request: Request, *, may_be_applied: bool) -> Event:
        try:
            if isinstance(request, Put):
                return Created() if self.store.create(request.key, request.data) else Exists()
            if isinstance(request, Get):
                data = self.store.read(request.key)
                return Missing() if data is None else Found(data)
            return Listed(tuple(stat.key for stat in self.store.list(request.prefix, request.limit)))
        except StoreRefusedError as error:
            if not may_be_applied:
                raise
            # An earlier try of this request may have been applied (W7).
            summary = "the store refused the retry of a request whose result is unknown; whether the request was applied is unknown"
            raise UnavailableError(summary, location=self.store.url) from error

    @property
    def retrying(self) -> RetryingStore:
        """The store, whose reads, listings and deletions are repeated until their result is known."""
        return RetryingStore(self.store, self.clock, self.retry_policy)

    # --- objects that are not versions

    def create(self, key: str, data: bytes) -> Creation:
        """Create an object if its key is absent, and return the stored bytes, which may be those of another process."""
        return self.perform(create(key, data))

    def read(self, key: str) -> bytes | None:
        """Return the bytes of an object, or ``None`` if it does not exist."""
        return self.perform(get(key))

    def list_keys(self, prefix: str, limit: int | None = None) -> tuple[str, ...]:
        """Return the first ``limit`` keys with a prefix, in ascending order; default: all. The result is a hint, because a listing may lag (W8)."""
        return self.perform(list_keys(prefix, limit))

    def read_pipeline(self) -> PipelineRecord | None:
        """
        Return the content of ``pipeline.json``, or ``None`` if the log does not exist yet.

        :raises NewerFormatError: the log requires a feature that this release lacks
        :raises LogMovingError: a move to this location is not complete yet
        """
        stored = self.perform(procedures.read_entry(PipelineRecord, keys.PIPELINE))
        if stored is None:
            return None
        unknown = {*stored[0].reader_features} - READER_FEATURES or {*stored[0].writer_features} - WRITER_FEATURES
        if unknown:
            raise NewerFormatError(
                "the log requires features that this release lacks", location=self.store.url, features=sorted(unknown)
            )
        if stored[0].moved_from:
            moved = self.moved(stored[0].moved_from)
            if moved is None:
                summary = "the move of the log to this location is not complete; nothing was read or written"
                raise LogMovingError(summary, moved_from=stored[0].moved_from, log=self.store.url)
            self._sources = moved.sources
        else:
            self._sources = keys.SOURCES
        return stored[0]

    def existing_pipeline(self) -> PipelineRecord:
        """
        Return the content of ``pipeline.json``.

        :raises InvalidError: the log does not exist
        :raises StreamsemError: as :meth:`read_pipeline`
        """
        record = self.read_pipeline()
        if record is None:
            summary = "there is no log at this location: no run of a pipeline has created it yet, or the location is wrong; nothing was changed"
            raise InvalidError(summary, log=self.store.url).advising("run the pipeline once, or correct the location.")
        return record

    def moved(self, url: str) -> Moved | None:
        """Return the record of a completed move from ``url`` to this location, or ``None`` if there is none."""
        entry = self.perform(procedures.read_entry(Moved, keys.moved(url)))
        return None if entry is None else entry[0]

    def create_pipeline(self, record: PipelineRecord) -> PipelineRecord:
        """Create ``pipeline.json``, and return the stored record, which may be that of another process."""
        self.perform(procedures.create_entry(keys.PIPELINE, record))
        stored = self.read_pipeline()
        if stored is None:
            raise LogDamagedError("an object is missing after it was created", invariant="I1", key=keys.PIPELINE)
        return stored

    def put_spec(self, spec: bytes) -> str:
        """Store a pipeline spec under its sha256, and return the sha256."""
        digest = sha256(spec)
        self.create(keys.spec(digest), spec)
        return digest

    def read_spec(self, digest: str) -> bytes:
        """
        Return the pipeline spec with a sha256.

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

    def config_of(self, digest: str) -> dict[str, Json]:
        """
        Return the immutable fields of the pipeline spec with a sha256.

        :raises LogDamagedError: as :meth:`read_spec`, or the spec is not valid
        """
        config: dict[str, Json] = stored_spec(self.read_spec(digest))["immutable_config"]
        return config

    def initial_offsets(self, source: str) -> InitialOffsets | None:
        """Return the initial offsets of a source, or ``None`` if no run has stored them. ``source`` is the sha256 of the source's arguments."""
        entry = self.perform(procedures.read_entry(InitialOffsets, keys.initial_offsets(source)))
        return None if entry is None else entry[0]

    def put_initial_offsets(self, source: str, proposed: InitialOffsets) -> InitialOffsets:
        """Store the initial offsets of a source, and return the stored ones, which may be those of another process."""
        self.perform(procedures.create_entry(keys.initial_offsets(source), proposed))
        stored = self.initial_offsets(source)
        if stored is None:
            summary = "an object is missing after it was created"
            raise LogDamagedError(summary, invariant="I1", key=keys.initial_offsets(source))
        return stored

    def of_source(self, immutable_config: Json) -> CommitLog:
        """
        Return the log, restricted to the keys of one source's discoveries.

        The keys depend on the immutable fields of the source. So a run with a corrected path does not read the discoveries of a run with a wrong path.
        """
        return self.under(self.source_prefix(immutable_config))

    @property
    def sources(self) -> str:
        """The prefix of the discoveries of all sources. That of a moved log is stored with the move, so ``pipeline.json`` is read if it was not read yet."""
        if self._sources is None:
            self.read_pipeline()
        return self._sources or keys.SOURCES

    def source_prefix(self, immutable_config: Json) -> str:
        """Return the prefix of the discoveries of one source; see :meth:`of_source`."""
        return keys.source(sha256(canonical(immutable_config)), self.sources)

    def under(self, prefix: str) -> CommitLog:
        """Return the log, restricted to keys below a prefix, which must end with ``/``."""
        return CommitLog(PrefixStore(self.store, prefix), self.clock, self.retry_policy)

    # --- versions, for writers

    def find_head(self) -> Head:
        """Return the head at the newest version that a listing shows. The result is a hint, because a listing may lag (W8)."""
        return self.perform(procedures.find_head())

    def read_head(self, version: int) -> Head | None:
        """Return the head at ``version``, or ``None`` if the version has no plan and no outcome. The method lists nothing."""
        return self.perform(procedures.read_head(version))

    def confirm_head(self, head: Head) -> Head:
        """Return the head at the newest version, given a head that may lag. The method reads the keys of later versions and lists nothing."""
        return self.perform(procedures.confirm_head(head))

    def newest_head(self) -> Head:
        """Return the head at the newest version. A listing that lags does not affect it (W8)."""
        return self.confirm_head(self.find_head())

    def now_ms(self, head: Head) -> int:
        """
        Return the time of the step that follows a head, in milliseconds since the epoch.

        If the clocks of the machines differ by less than an hour, the times of plans and outcomes increase with the versions. The expiry of ids of the
        deduplication, and the search for a version by time, depend on this.
        """
        return later(self.clock.now_ms(), head.time_ms)

    def locate(self, run_key: str, head: Head) -> procedures.Position:
        """Return the position of a run in the log; see :func:`procedures.locate`."""
        return self.perform(procedures.locate(run_key, head))

    def remaining_versions(self, outcome: Outcome) -> list[range]:
        """Return the versions up to an outcome that no rollback has removed, as ranges in ascending order; see :func:`procedures.remaining_versions`."""
        return self.perform(procedures.remaining_versions(outcome))

    def commits_of(self, kind: type[K], outcome: Outcome | None, *, after: int = -1) -> list[tuple[int, K]]:
        """Return version and payload of the commits of a kind above version ``after`` up to an outcome, newest first; see :func:`procedures.commits_of`."""
        return [] if outcome is None else self.perform(procedures.commits_of(kind, outcome, after))

    def rewrites_of(self, outcome: Outcome, *, after: int) -> list[SegmentRewrite]:
        """Return the rewrites above version ``after`` up to an outcome, newest first; see :func:`procedures.rewrites_of`."""
        return self.perform(procedures.rewrites_of(outcome, after))

    def erased_quarantine(self, outcome: Outcome | None) -> dict[int, Quarantine]:
        """Return version → the quarantined records that erasures up to an outcome have kept, for the versions of which they erased any (W48)."""
        return kept_in_quarantine(erasure for _, erasure in reversed(self.commits_of(Erase, outcome)))

    def removed_at(self, sink: str, outcome: Outcome) -> int:
        """Return the newest alter up to an outcome that removed a sink, or -1. No row of this version or an earlier one is in the sink (W36)."""
        return next((version for version, alter in self.commits_of(Alter, outcome) if sink in alter.removed), -1)

    def reprocessing_runs_after(self, version: int, closed: int) -> list[int]:
        """Return the versions in ``(version, closed]`` that have reprocessed a version up to ``version``; see :func:`procedures.reprocessing_runs_after`."""
        return self.perform(procedures.reprocessing_runs_after(version, closed))

    def find_current(self, version: int, head: Head) -> int | None:
        """Return the newest commit in the reprocessing chain of a version, whose rows are the visible ones; ``None`` if it was rolled back."""
        return self.perform(procedures.find_current(version, head))

    def find_root(self, version: int) -> int:
        """Return the first commit in the reprocessing chain of a version. For a batch, it is the batch itself."""
        return self.perform(procedures.find_root(version))

    def run_versions(self, run_key: str) -> list[int]:
        """Return the versions that have a pointer of this run, oldest first; see :func:`procedures.run_versions`."""
        return self.perform(procedures.run_versions(run_key))

    def others_between(self, run_key: str, first: tuple[int, int], last: tuple[int, int]) -> list[int]:
        """Return the versions that other runs planned between two versions of a run; see :func:`announcements.others_between`."""
        return self.perform(announcements.others_between(run_key, first, last))

    def pointer(self, run_key: str, j: int) -> RunPointer | None:
        """Return pointer ``j`` of a run, or ``None`` if the run has fewer versions."""
        entry = self.perform(procedures.read_entry(RunPointer, keys.pointer(run_key, j)))
        return None if entry is None else entry[0]

    def newest_announced(self) -> int:
        """Return the version up to which all versions are announced; -1 if none is. The value is a hint: it may be too low (W8)."""
        return self.perform(announcements.newest_announced())

    def announcement(self, key: str) -> Announcement | None:
        """Return the announcement with a key, or ``None`` if it does not exist."""
        entry = self.perform(procedures.read_entry(Announcement, key))
        return None if entry is None else entry[0]

    def put_announcement(self, key: str, announcement: Announcement) -> Announcement:
        """Store an announcement, and return the stored one, which may be that of another process."""
        return self.perform(announcements.put_announcement(key, announcement))

    def put_plan(self, head: ClosedHead, plan: Plan) -> procedures.Planned:
        """Create the next plan; see :func:`procedures.put_plan`."""
        return self.perform(procedures.put_plan(head, plan))

    def find_staged(self, head: OpenHead) -> list[StagedManifest]:
        """Return the manifests of the attempts that were staged for the open plan."""
        return self.perform(procedures.find_staged(head))

    def put_staged(self, manifest: StagedManifest) -> None:
        """Store the manifest of an attempt. All files of the attempt must be complete before the call (W18)."""
        self.perform(procedures.create_entry(keys.attempt(manifest.version, manifest.attempt_id), manifest))

    def decide(self, head: OpenHead, outcome: Outcome) -> tuple[ClosedHead, Outcome]:
        """
        Create the run pointer and the outcome of the open plan. This closes the version as a commit or an abort.

        :return: the head after the stored outcome, and the stored outcome, which may be that of another process
        """
        return self.perform(procedures.decide(head, outcome))

    # --- receipts and effects, for publishers

    def receipts(self, version: int) -> Receipts | None:
        """Return the receipts of a version, or ``None`` if they are not stored yet."""
        entry = self.perform(procedures.read_entry(Receipts, keys.receipts(version)))
        return None if entry is None else entry[0]

    def put_receipts(self, head: ClosedHead, receipts: Receipts) -> tuple[ClosedHead, Receipts]:
        """
        Store the receipts of the head's commit.

        :return: the head without pending publishes, and the stored receipts, which may be those of another process
        """
        return self.perform(procedures.put_receipts(head, receipts))

    def claim(self, proposed: Claim) -> bool:
        """Claim one round of a chunk of a version's effects, and return whether the stored claim is ``proposed``."""
        return self.perform(procedures.claim(proposed))

    def effects(self, version: int, sink: str, chunk: int, round: int = 0) -> Effects | None:
        """Return the result of one round of a chunk of a version's effects, or ``None`` if no publisher has recorded it."""
        entry = self.perform(procedures.read_entry(Effects, keys.effects(version, sink, chunk, round)))
        return None if entry is None else entry[0]

    def put_effects(self, effects: Effects) -> Effects:
        """Record the result of one round of a chunk, and return the stored record, which may be that of another publisher."""
        return self.perform(procedures.put_effects(effects))

    def write_segments(self, version: int, known: list[tuple[Outcome, str]]) -> None:
        """
        Create the segments that became full when ``version`` was closed.

        :param known: outcomes that the caller has, with their sha256, so that they are not read again
        """
        self.perform(procedures.write_segments(version, known))

    # --- notes of vacuum

    def newest_note(self, prefix: str, closed: int) -> int:
        """
        Return the newest version up to ``closed`` of which vacuum has written a note; 0 if there is none. The value is a hint (W8).

        :param closed: the newest closed version. A note above it is one of a log that was restored from an older copy
        """
        versions = [keys.parse_newest_first(key) or 0 for key in self.list_keys(prefix)]
        return max((version for version in versions if version <= closed), default=0)

    def write_note(self, prefix: str, version: int) -> None:
        """Write a note about a version, and delete the earlier ones. A concurrent vacuum may have written a later one."""
        self.create(keys.newest_first(prefix, version), canonical({"version": version}))
        for key in self.list_keys(prefix):
            if keys.is_log_object(key) and (keys.parse_newest_first(key) or 0) < version:
                self.retrying.delete(key)

    # --- versions, for readers

    def plan(self, version: int) -> Plan | None:
        """Return the plan of a version, or ``None`` if it does not exist."""
        entry = self.perform(procedures.read_entry(Plan, keys.plan(version)))
        return None if entry is None else entry[0]

    def outcome(self, version: int) -> Outcome | None:
        """Return the outcome of a version, or ``None`` if the version is not closed."""
        entry = self.outcome_and_sha256(version)
        return None if entry is None else entry[0]

    def outcome_and_sha256(self, version: int) -> tuple[Outcome, str] | None:
        """Return the outcome of a version and the sha256 of its bytes, or ``None`` if the version is not closed."""
        return self.perform(procedures.read_entry(Outcome, keys.outcome(version)))

    def closed_outcome(self, version: int) -> Outcome:
        """
        Return the outcome of a closed version.

        :raises LogDamagedError: it is missing
        """
        return self.perform(procedures.closed_outcome(version))

    def closed_version(self, version: int) -> tuple[Plan, Outcome]:
        """
        Return the plan and the outcome of a closed version.

        :raises LogDamagedError: one of them is missing
        """
        plan = self.plan(version)
        if plan is None:
            raise LogDamagedError("a closed version lacks its plan", invariant="I2", version=version)
        return plan, self.closed_outcome(version)

    def closed_head(self) -> int:
        """Return the newest closed version that a listing shows; -1 if there is none."""
        return self.find_head().closed

    def view(
        self,
        *,
        version: int | None = None,
        since: int = -1,
        with_rewrites: bool = True,
        outcomes_from: int | None = None,
    ) -> LogView:
        """
        Return the visible files and the totals as of a version.

        :param version: a closed version, inclusive; -1 for an empty view; default: the newest closed version
        :param since: only files of versions above this one (exclusive)
        :param with_rewrites: whether to return the files of the rewrites that apply (R8) in place of the original files; if not, still those of bound rewrites
        :param outcomes_from: read the outcomes of this version and later ones, and no segments of them. Only outcomes show every fault of the rewrites
        :raises InvalidError: ``version`` is not closed yet; or ``since`` is above it, or between commits whose rows may be only in the same files (R9)
        :raises LogDamagedError: an entry is missing or damaged, or a rewrite breaks a rule (I23, I24)
        """
        newest = self.find_head()
        head, oldest = newest.closed, newest.oldest_readable
        if version is not None and version > head and self.outcome(version) is not None:
            head = version  # The listing lags. A version that a reader has read once must stay readable (I7).
        at = head if version is None else version
        if not -1 <= at <= head or not -1 <= since <= at:
            raise InvalidError(
                "`version` must be a closed version, and `since` must not be above `version`",
                version=version,
                since=since,
                newest_closed=head,
            )
        parts = self.perform(procedures.read_segments_and_outcomes(at, outcomes_from))
        view = fold(parts, initial_offsets={}, since=since, with_rewrites=with_rewrites, oldest_readable=oldest)
        if 0 <= since < oldest:
            _refuse_split(fold(parts, initial_offsets={}), since, oldest)
        if view.version != at:
            raise LogDamagedError(
                "the outcomes that were read do not end at the requested version",
                invariant="I5",
                version=at,
                reached=view.version,
            )
        return view


def _refuse_split(view: LogView, since: int, oldest_readable: int) -> None:
    """Check that no bound rewrite has rows of versions up to ``since``, and of later ones (R9)."""
    for rewrite in view.rewrites:
        commits = rewrite.commits
        if is_bound(rewrite, oldest_readable) and commits[0] <= since < commits[-1]:
            raise InvalidError(
                "the rows above `since` cannot be read separately: versions up to `since` and later ones were compacted together, and have expired",
                since=since,
                first=commits[0],
                last=commits[-1],
                rewrite=rewrite.version,
            ).advising(f"read since {commits[0] - 1} or since {commits[-1]}.")


def commit_log_at(url: str, *, clock: Clock = SYSTEM_CLOCK, retry_policy: RetryPolicy | None = None) -> CommitLog:
    """
    Open the log at a URL. The function sends no request.

    :param url: URL of a store, as for :func:`airflow_provider_streamsem.stores.contract.open_store`
    :raises InvalidError: the URL is not valid
    """
    return CommitLog(open_store(url), clock, retry_policy or RetryPolicy())
