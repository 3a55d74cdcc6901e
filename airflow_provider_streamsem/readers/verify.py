"""Verifies a log and its datasets: every invariant of the protocol that stored objects can show, and every visible file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from airflow_provider_streamsem.commitlog.log import CommitLog, commit_log_at
from airflow_provider_streamsem.connectors.files import layers
from airflow_provider_streamsem.connectors.ownership import claim_dataset
from airflow_provider_streamsem.connectors.sink import Sink
from airflow_provider_streamsem.errors import (
    ConflictError,
    LogDamagedError,
    MarkerLostError,
    NewerFormatError,
    StreamsemError,
)
from airflow_provider_streamsem.pipeline.spec.binding import find_record
from airflow_provider_streamsem.pipeline.spec.location import with_log_location
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.pipeline.versions.kept_states import oldest_kept
from airflow_provider_streamsem.pipeline.versions.publish import publishing_sink
from airflow_provider_streamsem.protocol import invariants, keys, procedures, segments
from airflow_provider_streamsem.protocol.entries import (
    SEGMENT_WIDTH,
    DataFile,
    Entry,
    Json,
    Outcome,
    Plan,
    Quarantine,
    Receipts,
    RunPointer,
    Segment,
)
from airflow_provider_streamsem.protocol.kinds.erase import Erase, kept_in_quarantine
from airflow_provider_streamsem.protocol.offsets import Ranges
from airflow_provider_streamsem.protocol.view import (
    ClosedHead,
    OpenHead,
    VisibleFiles,
    add_counts,
    hidden_sinks,
    net_counts,
    removed_by_rollbacks,
)
from airflow_provider_streamsem.readers.discoveries import DiscoveryCheck
from airflow_provider_streamsem.readers.files import CommittedLog, open_log
from airflow_provider_streamsem.state import files as state_files
from airflow_provider_streamsem.stores.dataset import open_dataset

logger = logging.getLogger(__name__)

_PROGRESS_EACH = 100

T = TypeVar("T")
E = TypeVar("E", bound=Entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """
    One violation of the protocol.

    :param invariant: the id of the broken invariant or rule
    :param what: a description
    :param version: the version concerned, or ``None``
    :param key: the key of the object concerned; may be empty
    :param do: what to do
    """

    invariant: str
    what: str
    version: int | None = None
    key: str = ""
    do: str = ""

    def __post_init__(self) -> None:
        if not self.do:
            is_of_version = self.version is not None or "{version}" not in _DO.get(self.invariant, "")
            advice = _DO.get(self.invariant, _RESTORE) if is_of_version else _RESTORE
            object.__setattr__(self, "do", advice.format(version=self.version))


_RESTORE = "restore the named object from a copy of the log; never delete or change entries; then verify again"
_DO = {
    "I6": "restore the file from a copy, or compute its rows again: `streamsem reprocess PIPELINE.toml {version}`; then verify again",
    "I14": "restore the file from a copy, or compute its rows again: `streamsem reprocess PIPELINE.toml {version}`; then verify again",
    "I15": "restore the newest copy of the table or topic (documentation: Recover), or fork the pipeline: `streamsem fork NEW.toml LOG`",
    "I18": "restore the newest copy of the log (documentation: Recover), and stop all runs until then",
    "R2": "upgrade airflow-provider-streamsem to the release that wrote the log",
}
"""Invariant → what to do about its violation. For all others: :data:`_RESTORE`."""
_REWRITTEN = (
    "restore the file from a copy. If the log was restored from an older copy, restore its newest copy: vacuum may have deleted the file since. "
    "Do not reprocess the version: readers would then need the files of all commits that were compacted with it"
)


@dataclass(slots=True, kw_only=True)
class Verdict:
    """
    The result of a verification.

    :param log: URL of the log
    :param versions: number of closed versions
    :param open: the version that was planned and is not closed yet; ``None`` if there is none
    :param commits: number of committed versions
    :param counts: row counts by name, summed over the visible commits. The counts of replaced commits are not included
    :param files: number of visible files. Files that reprocessing runs or rewrites replaced are checked too, but not counted
    :param rows: sink → number of rows in its visible files, counted from the files
    :param orphans: number of files of attempts that did not commit. They are invisible, and vacuum deletes them
    :param unchecked: names of the sinks whose files and markers were not checked, because only the user's pipeline defines how to access them
    :param violations: the violations
    """

    log: str
    versions: int = 0
    open: int | None = None
    commits: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    files: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    orphans: int = 0
    unchecked: tuple[str, ...] = ()
    violations: list[Violation] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether there are no violations."""
        return not self.violations


def verify(log: str | CommitLog | CommittedLog | Pipeline, *, files: bool = True) -> Verdict:
    """
    Verify a log from its first version to its head, and the size, checksum and number of rows of every visible file.

    The verification reads every object, so its time grows with the size of the datasets. It writes nothing. An open version is not a violation.

    :param log: URL of a log, an open log, or the user's pipeline. The markers of sinks outside the log are checked only if a pipeline is given, because only
        the pipeline defines how to access these sinks. With a pipeline, its datasets are checked even if there is no log
    :param files: ``False`` checks only the entries of the log and the quarantined records: no data files, markers, deduplication state or operators' state
    :raises InvalidError: there is no log at the URL
    :raises LogMovedError: the log was moved to another location
    :raises UnavailableError: the store does not respond
    """
    if isinstance(log, Pipeline):
        return _verified(log, files=files)
    return _of_log(log if isinstance(log, CommittedLog) else open_log(log), files=files)


def _of_log(opened: CommittedLog, *, files: bool) -> Verdict:
    check = _Verification(opened, Verdict(log=opened.log.store.url))
    check.run(files)
    return check.verdict


@with_log_location
def _verified(pipeline: Pipeline, *, files: bool) -> Verdict:
    commit_log = commit_log_at(pipeline.log)
    if find_record(pipeline, commit_log) is None:
        return _without_log(pipeline)
    return _of_log(open_log(commit_log, pipeline=pipeline), files=files)


def _without_log(pipeline: Pipeline) -> Verdict:
    verdict = Verdict(log=pipeline.log)
    for name, sink in pipeline.sinks.items():
        try:
            sink.refuse_existing_output(pipeline.log)
        except ConflictError as error:
            verdict.violations.append(Violation(invariant="I6", what=f"sink {name}: {error}", key=keys.DATASET_MARKER))
    return verdict


@dataclass(slots=True)
class _Verification:
    opened: CommittedLog
    verdict: Verdict
    _published: dict[int, Receipts] = field(default_factory=dict)
    _configs: dict[str, Json] = field(default_factory=dict)
    _wrong_rewrites: set[int] = field(default_factory=set)

    def run(self, files: bool) -> None:
        outcomes = self._versions()
        self.verdict.commits = sum(o.committed for o, _ in outcomes)
        for outcome, _ in outcomes:
            self.verdict.counts = add_counts(self.verdict.counts, net_counts(outcome))
        self._rewrites([outcome for outcome, _ in outcomes])
        self._segments(outcomes)
        self._discoveries()
        erased = kept_in_quarantine(outcome.work for outcome, _ in outcomes if isinstance(outcome.work, Erase))
        for outcome, _ in outcomes:
            self._quarantine(outcome.version, erased.get(outcome.version, outcome.quarantine))
        if files:
            self._files(outcomes)

    def _rewrites(self, outcomes: Sequence[Outcome]) -> None:
        """Check each rewrite against the versions before it, and each later version against the rewrites that apply (I23, I24)."""
        visible = VisibleFiles()
        for outcome in outcomes:
            faults = [*visible.faults(outcome)]
            for invariant, what in faults:
                self._report(invariant, what, version=outcome.version)
            if faults and outcome.rewrites:
                self._wrong_rewrites.add(outcome.version)
            visible.add(self._without_wrong(outcome))

    def _without_wrong(self, outcome: Outcome) -> Outcome:
        """Return the outcome, without its rewrite if that breaks a rule. Readers refuse such a log, so the checks of files ignore the rewrite."""
        return replace(outcome, result="abort", work=None) if outcome.version in self._wrong_rewrites else outcome

    def _try(self, check: Callable[[], T], *, version: int | None = None, do: str = "") -> T | None:
        try:
            return check()
        except StreamsemError as error:
            where = error.fields.get("key") or error.fields.get("where") or ""
            what = str(error).split(". Do:")[0]
            rule = "R2" if isinstance(error, NewerFormatError) else str(error.fields.get("invariant", "I1"))
            self._report(rule, what, version=version, key=str(where), do=do)
            return None

    def _report(self, invariant: str, what: str, *, version: int | None = None, key: str = "", do: str = "") -> None:
        self.verdict.violations.append(Violation(invariant=invariant, what=what, version=version, key=key, do=do))

    def _entry(self, cls: type[E], key: str, version: int | None = None) -> tuple[E, str] | None:
        return self._try(partial(self.opened.log.perform, procedures.read_entry(cls, key)), version=version)

    def _versions(self) -> list[tuple[Outcome, str]]:
        """Check the versions in ascending order, each against the head before it, and return the outcomes that can be read."""
        log = self.opened.log
        listed = [parsed for parsed in map(keys.parse_entry, log.list_keys(keys.LOG)) if parsed is not None]
        newest = max((version for version, _ in listed), default=-1)
        outcomes: list[tuple[Outcome, str]] = []
        head, initial_offsets = ClosedHead(), dict[str, int]()
        ranges: dict[int, Ranges] = {}
        earlier = _EarlierVersions(self._published, self._plan)
        for version in range(newest + 1):
            if version % _PROGRESS_EACH == 0:
                logger.info("reading the log: version %d of %d", version, newest)
            stored_plan = self._entry(Plan, keys.plan(version), version)
            plan = None if stored_plan is None else stored_plan[0]
            if version == 0 and plan is not None:
                initial_offsets = dict(plan.initial_offsets or {})
                head = ClosedHead(initial_offsets=initial_offsets)
            if stored_plan is not None and stored_plan[0].work.ends_log:
                head.with_plan(*stored_plan)  # raises: the log was moved
            stored_outcome = self._entry(Outcome, keys.outcome(version), version)
            outcome = None if stored_outcome is None else stored_outcome[0]
            if stored_plan is None or plan is None:
                self._report("I2", "the plan of a version is missing or cannot be read", version=version)
            else:
                self._version(head, stored_plan, stored_outcome)
                self._immutable_config(plan, head, outcome)
                self._try(partial(plan.work.check_earlier, plan, outcome, earlier), version=version)
            if outcome is None and version < newest:
                self._report(
                    "I2", "the outcome of a version below the head is missing or cannot be read", version=version
                )
            if plan is not None and outcome is not None and outcome.committed:
                initial_offsets |= plan.work.new_partitions
                if (to := plan.work.hidden.after) is not None:
                    ranges = {at: found for at, found in ranges.items() if at <= to}
                if plan.work.reads_new_records and not outcome.intervals:
                    ranges[version] = plan.ranges
            if stored_outcome is not None:
                outcomes.append(stored_outcome)
                closed, sha = stored_outcome
                earlier.add(closed)
                head = ClosedHead(outcome=closed, outcome_sha=sha, markers=closed.markers)
                if closed.requires_receipts:
                    head = self._receipts(head, newest)
        self._try(partial(invariants.check_i5, ranges.values(), initial_offsets=initial_offsets, next=head.next))
        self.verdict.versions = len(outcomes)
        self.verdict.open = newest if head.closed < newest else None
        return outcomes

    def _receipts(self, head: ClosedHead, newest: int) -> ClosedHead:
        """Below the newest version, the receipts must exist, and they must belong to this commit."""
        stored = self._entry(Receipts, keys.receipts(head.closed), head.closed)
        if stored is not None:
            receipts, _ = stored
            self._try(partial(head.with_receipts, receipts), version=head.closed)
            self._published[head.closed] = receipts
            return replace(head, markers=receipts.markers)
        if head.closed < newest:
            self._report(
                "I2", "the receipts of a version below the head are missing or cannot be read", version=head.closed
            )
        return head

    def _markers(self, pipeline: Pipeline, stored: list[tuple[Outcome, str]]) -> None:
        """Check that each transactional sink's marker names the newest commit published to it (I15, I18)."""
        outcomes = [outcome for outcome, _ in stored]
        hidden_in = hidden_sinks(outcomes)
        shas = {outcome.version: sha for outcome, sha in stored}
        by_version = {outcome.version: outcome for outcome in outcomes}
        for name in pipeline.sinks_outside_log:
            sink = publishing_sink(pipeline, name)
            publishing_versions = [
                o.version
                for o in outcomes
                if name in o.publish and name not in hidden_in[o.version] and self._needs_marker(by_version, o, name)
            ]
            published = [version for version in publishing_versions if version in self._published]
            try:
                marker = sink.marker(self.opened.record.pipeline_uuid, name)
            except MarkerLostError as error:
                self._report("I15", f"sink {name}: {error.summary}", version=max(published, default=None))
                continue
            except StreamsemError as error:
                self._report("I15", f"the marker of sink {name} cannot be read: {str(error).split('. Do:')[0]}")
                continue
            at = -1 if marker is None else marker.version
            if marker is not None and at in shas and not marker.is_of(at, shas[at]):
                what = f"the marker of sink {name} names another commit of version {at}: the log was restored from an older copy, or there are two copies of it"
                self._report("I18", what, version=at)
            if at > max(publishing_versions, default=-1):
                self._report(
                    "I18", f"the marker of sink {name} is above every version that this log publishes to it", version=at
                )
            if sink.sets_marker and at < max(published, default=-1):
                fault = (
                    "is missing: its table or topic was deleted, renamed or recreated"
                    if marker is None
                    else f"is at version {at}: an older copy of the table or topic was restored"
                )
                what = f"the marker of sink {name} {fault}. The receipts record that version {max(published)} was published"
                self._report("I15", what, version=max(published))

    def _needs_marker(self, by_version: Mapping[int, Outcome], outcome: Outcome, name: str) -> bool:
        """Return whether a version adds rows to a sink, or removes rows that an earlier version has published to it (P2, P3, P10)."""
        if name not in outcome.sinks or outcome.sinks[name].files:
            return True
        while outcome.replaces is not None and outcome.replaces in by_version:
            receipts = self._published.get(outcome.replaces)
            outcome = by_version[outcome.replaces]
            if receipts is not None and name in receipts.sinks and receipts.sinks[name].result == "applied":
                return name in outcome.sinks and bool(outcome.sinks[name].files)
        return False

    def _plan(self, version: int) -> Plan | None:
        stored = self._entry(Plan, keys.plan(version), version)
        return None if stored is None else stored[0]

    def _version(
        self, head: ClosedHead, stored_plan: tuple[Plan, str], stored_outcome: tuple[Outcome, str] | None
    ) -> None:
        plan, plan_sha = stored_plan
        version = plan.version
        self._try(partial(invariants.check_i19, plan), version=version)
        self._try(partial(head.with_plan, *stored_plan), version=version)
        if stored_outcome is None:
            return
        if head.outcome is not None and head.outcome.requires_receipts and head.closed not in self._published:
            # Receipts that cannot be read are a separate violation.
            head = replace(head, markers=stored_outcome[0].markers)
        opened = OpenHead(before=head, plan=plan, plan_sha=plan_sha)
        self._try(partial(opened.with_outcome, *stored_outcome), version=version)
        pointer = self._entry(RunPointer, keys.pointer(plan.run_key, plan.j), version)
        if pointer is None:
            self._report("I16", "a closed version has no run pointer", version=version)
        else:
            self._try(partial(invariants.check_i16, pointer[0], plan), version=version)

    def _immutable_config(self, plan: Plan, head: ClosedHead, outcome: Outcome | None) -> None:
        """Check that a plan has the immutable fields of the outcome before it, unless it is an alter, and that a commit has those of its plan (I22)."""
        specs = [] if plan.work.changes_fields or head.spec is None else [(head.spec, plan.spec)]
        specs += [] if outcome is None or not outcome.committed else [(plan.spec, outcome.spec)]
        for before, now in specs:
            configs = [self._config_of(spec, plan.version) for spec in (before, now)] if before != now else [None]
            if None not in configs and configs[0] != configs[1]:
                what = "a version has other immutable fields than the version before it, and is not an alter"
                self._report("I22", what, version=plan.version)

    def _config_of(self, spec: str, version: int) -> Json:
        if spec not in self._configs and keys.is_digest(spec):
            self._configs[spec] = self._try(partial(self.opened.log.config_of, spec), version=version)
        return self._configs.get(spec)

    def _segments(self, outcomes: list[tuple[Outcome, str]]) -> None:
        """Check that every stored segment equals the segment that its versions determine. A missing segment is not a violation (R5)."""
        children: dict[int, Segment] = {}
        for index in range(len(outcomes) // SEGMENT_WIDTH):
            span = outcomes[index * SEGMENT_WIDTH : (index + 1) * SEGMENT_WIDTH]
            if [o.version for o, _ in span] != list(range(index * SEGMENT_WIDTH, (index + 1) * SEGMENT_WIDTH)):
                return
            children[index] = segments.level_1(index, [o for o, _ in span], span[-1][1])
        level = 1
        while children:
            for index, expected in children.items():
                stored = self._entry(Segment, keys.segment(level, index))
                if stored is not None:
                    self._try(partial(invariants.check_i9, stored[0], expected))
            level += 1
            children = {
                index: segments.parent(
                    level, index, [children[i] for i in range(index * SEGMENT_WIDTH, (index + 1) * SEGMENT_WIDTH)]
                )
                for index in range(len(children) // SEGMENT_WIDTH)
            }

    def _discoveries(self) -> None:
        parts = [key.partition(keys.DISCOVERED) for key in self.opened.log.list_keys(keys.SOURCES)]
        for prefix in sorted({before for before, sep, _ in parts if sep}):
            numbers = [keys.parse_newest_first(sep + name) for before, sep, name in parts if before == prefix and sep]
            newest = max((i for i in numbers if i is not None), default=None)
            if newest is not None:
                log = self.opened.log.under(prefix)
                DiscoveryCheck(log=log, prefix=prefix, guarded=self._try, report=self._report).run(newest)

    def _quarantine(self, version: int, quarantine: Quarantine) -> None:
        rows = 0
        for key in quarantine.keys:
            data = self.opened.log.read(key)
            if data is None:
                self._report("I6", "quarantined records are missing", version=version, key=key)
                return
            rows += data.count(b"\n")
        if rows != quarantine.rows:
            what = "the number of stored quarantined records differs from the recorded number"
            self._report("I14", what, version=version)

    def _layers(self, newest: Outcome | None) -> None:
        state = self.opened.record.initial_state if newest is None else newest.state
        if self._try(partial(layers.is_complete, self.opened.log.store.url, state)) is False:
            what = "a file of the deduplication state, or of the tombstones of a sink, is missing or was changed"
            self._report("I6", what, version=None if newest is None else newest.version)

    def _operator_states(self, outcomes: list[Outcome]) -> None:
        """Check that the state after the newest version can be loaded. With a pipeline, check each state that ``state.keep_versions`` keeps."""
        pipeline = self.opened.pipeline
        kept = 0 if pipeline is None or pipeline.state is None else pipeline.state.keep_versions
        find = partial(oldest_kept, self.opened.log, outcomes[-1].version, kept) if kept and outcomes else None
        first = None if find is None else self._try(find)
        removed = removed_by_rollbacks(outcomes)
        visible = [
            outcome for outcome in outcomes if outcome.version not in removed and outcome.version >= (first or 0)
        ]
        newest = visible if kept else visible[-1:]
        states: list[tuple[int | None, Json]] = [(outcome.version, outcome.state) for outcome in newest]
        if first is None and (kept or not newest):  # version 0 of a fork can be reprocessed with the inherited state
            states.insert(0, (None, self.opened.record.initial_state))
        values = [state for _, state in states]
        for index in self._try(partial(state_files.unloadable, self.opened.log.store, values)) or []:
            what = "a file of the operators' state is missing, truncated or swapped"
            self._report("I6", what, version=states[index][0])

    def _files(self, stored: list[tuple[Outcome, str]]) -> None:
        if self.opened.pipeline is not None:
            self._try(partial(self._markers, self.opened.pipeline, stored))
        outcomes = [self._without_wrong(outcome) for outcome, _ in stored]
        self._layers(outcomes[-1] if outcomes else None)
        self._operator_states(outcomes)
        named: set[tuple[str, str]] = set()
        hidden_in = hidden_sinks(outcomes)
        files = self._needed_files(outcomes)
        sinks, earlier = self._own_sinks(is_marked=bool(outcomes)), set[str]()
        for outcome in outcomes:
            if outcome.version % _PROGRESS_EACH == 0:
                logger.info("checking files: version %d of %d", outcome.version, outcomes[-1].version)
            for name, committable in outcome.sinks.items():
                if name in hidden_in[outcome.version]:
                    # A later alter removed the sink. Readers of earlier versions need its files, which may be in the dataset of another sink now.
                    earlier |= {file.key for file in committable.files}
                    continue
                if name not in self.opened.sinks:
                    self._report("I8", "an outcome names a sink that the spec does not have", version=outcome.version)
                for file in committable.files if name in sinks else ():
                    if (name, file.key) in named or f"/{outcome.attempt_id}/" not in file.key:
                        what = "the log names a file twice, or a file outside the directory of its attempt"
                        self._report("I8", what, version=outcome.version, key=file.key)
                    named.add((name, file.key))
                    if not files.is_needed(outcome.version, name):
                        continue
                    if sinks[name].is_outside_log and outcome.version in self._published:
                        continue  # after the publish, the table owns these files or vacuum deletes them
                    check = partial(_file, sinks[name], file, committable.format, outcome.version)
                    do = _REWRITTEN if (outcome.version, name) in files.rewritten else ""
                    rows = self._try(check, version=outcome.version, do=do) or 0
                    if files.is_visible(outcome.version, name):
                        self.verdict.rows[name] += rows
                        self.verdict.files += 1
        named |= self._rewritten_files(outcomes, sinks, hidden_in, files)
        for name, sink in sinks.items():
            self.verdict.orphans += sum((name, key) not in named and key not in earlier for key in _data_keys(sink))

    def _needed_files(self, outcomes: Sequence[Outcome]) -> _NeededFiles:
        """Find the files that readers of the newest version need, and those that readers of any readable version need (V8)."""
        oldest = outcomes[-1].oldest_readable if outcomes else 0
        parts = [outcomes, [outcome for outcome in outcomes if outcome.version <= oldest]]
        views = [VisibleFiles() for _ in parts]
        for part, view in zip(parts, views, strict=True):
            for outcome in part:
                view.add(outcome)
        now, then = ({(file.version, file.sink) for file in view.with_rewrites(view.rewrites)} for view in views)
        rewritten = {(at, each.sink) for each in views[0].rewrites for at in each.commits}
        return _NeededFiles(oldest, now, then, rewritten)

    def _rewritten_files(
        self,
        outcomes: list[Outcome],
        sinks: Mapping[str, Sink],
        hidden_in: Mapping[int, set[str]],
        files: _NeededFiles,
    ) -> set[tuple[str, str]]:
        """Check the files of rewrites that readers read (I6, I8). ``hidden_in`` maps a version to the sinks that a later alter has removed."""
        named: set[tuple[str, str]] = set()
        attempts = {outcome.version: outcome.attempt_id for outcome in outcomes}
        for rewrite in (rewrite for outcome in outcomes for rewrite in outcome.rewrites):
            name, version, commits, output = rewrite.sink, rewrite.version, rewrite.commits, rewrite.output
            named |= {(name, file.key) for file in output.files}
            if name not in sinks or name in hidden_in[version]:
                continue
            for file in output.files:
                if f"/{attempts[version]}/" not in file.key:
                    what = "a rewrite names a file outside the directory of its attempt"
                    self._report("I8", what, version=version, key=file.key)
                elif files.is_needed(version, name):
                    reprocessable = commits[0] if commits[-1] >= files.oldest else None
                    rows = self._rewritten_file(file, sinks[name], output.format, version, reprocessable)
                    if files.is_visible(version, name):
                        self.verdict.rows[name] += rows
                        self.verdict.files += 1
        return named

    def _rewritten_file(self, file: DataFile, sink: Sink, format: str, version: int, commit: int | None) -> int:
        """Return the number of rows; 0 if it cannot be read. ``commit`` has rows in the file and can be reprocessed; ``None``: there is none."""
        try:
            return _file(sink, file, format, version)
        except StreamsemError as error:
            do = "restore the file from a copy"
            if commit is not None:
                do += (
                    f". Or run `streamsem reprocess PIPELINE.toml {commit}`: readers then read the files of the commits that were "
                    "rewritten"
                )
            rule, what = str(error.fields.get("invariant", "I6")), str(error).split(". Do:")[0]
            self.verdict.violations.append(Violation(invariant=rule, what=what, version=version, key=file.key, do=do))
            return 0

    def _own_sinks(self, *, is_marked: bool) -> dict[str, Sink]:
        """Stored specs may name other locations, which are not read. A first run that ended before its first outcome may have left no marker."""
        owned: dict[str, Sink] = {}
        for name, sink in (self._try(lambda: self.opened.sinks) or {}).items():
            if isinstance(sink, str):
                self.verdict.unchecked = (*self.verdict.unchecked, name)
                continue
            self.verdict.rows[name] = 0
            log, record = self.opened.log, self.opened.record
            claim = partial(claim_dataset, name, sink, log, record, url=log.store.url, new=False)
            violations_before = len(self.verdict.violations)
            if is_marked:
                self._try(claim)
            if len(self.verdict.violations) == violations_before:
                owned[name] = sink
        return owned


def _file(sink: Sink, file: DataFile, format: str, version: int) -> int:
    """Return the number of rows that the file contains."""
    size, checksum = sink.file_identity(file.key, format) or (None, None)
    invariants.check_i6(file, version=version, found_bytes=size, found_checksum=checksum)
    rows = sink.count(file.key, format)
    if rows != file.rows:
        summary = "the number of rows in a visible file differs from the recorded number"
        raise LogDamagedError(summary, invariant="I14", key=file.key, rows=rows, recorded=file.rows)
    return rows


@dataclass(frozen=True, slots=True)
class _NeededFiles:
    """
    Which files readers need, by version and sink.

    :param now: those that readers of the newest version read
    :param then: those that readers of the oldest readable version read
    :param rewritten: those whose rows readers of the newest version find in the files of a rewrite
    """

    oldest: int
    now: Set[tuple[int, str]]
    then: Set[tuple[int, str]]
    rewritten: Set[tuple[int, str]]

    def is_visible(self, version: int, sink: str) -> bool:
        return (version, sink) in self.now

    def is_needed(self, version: int, sink: str) -> bool:
        """Return whether readers of a readable version may read the files. Vacuum may have deleted all others (V8)."""
        return version > self.oldest or (version, sink) in self.then or (version, sink) in self.now


def _data_keys(sink: Sink) -> Iterator[str]:
    """Yield the keys of files that attempts wrote. A table may have other writers, which store files below ``data/`` too."""
    stats = open_dataset(sink.location).list("data/")
    return (stat.key for stat in stats if keys.attempt_of_data(stat.key) and not stat.key.endswith("/"))


class _EarlierVersions:
    """
    The versions that the verification has read; see :class:`airflow_provider_streamsem.protocol.entries.Earlier`.

    :param receipts: version → receipts. The caller adds those of later versions
    """

    def __init__(self, receipts: Mapping[int, Receipts], plan: Callable[[int], Plan | None]) -> None:
        self._receipts, self.plan = receipts, plan
        self._outcomes: list[Outcome] = []
        self.kept: dict[int, Outcome] = {}
        self.visible: set[int] = set()

    def add(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        after = outcome.hidden.after
        if after is not None:
            self.kept = {version: found for version, found in self.kept.items() if version <= after}
            self.visible = {version for version in self.visible if version <= after}
        self.kept[outcome.version] = outcome
        self.visible -= {*outcome.hidden.commits}
        self.visible |= {outcome.version} if outcome.has_rows else set()

    def counts_after(self, version: int) -> Mapping[str, int]:
        counts: Mapping[str, int] = {}
        for outcome in self._outcomes:
            if outcome.version > version:
                counts = add_counts(counts, net_counts(outcome))
        return {name: count for name, count in counts.items() if count}

    def published_after(self, version: int) -> set[str]:
        """A rollback removed no version of ``kept``, so the newest rows of a chain in a sink are those of its newest commit that was applied."""
        counted: set[tuple[int, str]] = set()
        found: set[str] = set()
        for later in sorted((at for at in self.kept if at > version), reverse=True):
            root, receipts = self.kept[later], self._receipts.get(later)
            while root.replaces is not None and root.replaces in self.kept:
                root = self.kept[root.replaces]
            for name, receipt in {} if receipts is None else receipts.sinks.items():
                output = self.kept[later].sinks.get(name)
                if receipt.result == "applied" and output is not None and (root.version, name) not in counted:
                    counted.add((root.version, name))
                    found |= {name} if output.files else set()
        return found
