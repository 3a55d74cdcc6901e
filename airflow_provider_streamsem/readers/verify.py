"""Whether a log and its datasets are what the protocol says: every invariant that can be read, every visible file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from airflow_provider_streamsem.batch.location import on_its_log
from airflow_provider_streamsem.batch.opening import claim_dataset, find_record
from airflow_provider_streamsem.batch.pipeline import Pipeline
from airflow_provider_streamsem.batch.publish import publishing
from airflow_provider_streamsem.commitlog.log import CommitLog, open_commit_log
from airflow_provider_streamsem.engines import dedup
from airflow_provider_streamsem.errors import (
    ConflictError,
    LogDamagedError,
    MarkerLostError,
    NewerFormatError,
    StreamsemError,
)
from airflow_provider_streamsem.protocol import invariants, keys, procedures, segments
from airflow_provider_streamsem.protocol.entries import (
    DataFile,
    Entry,
    Outcome,
    Plan,
    Receipts,
    RunPointer,
    Segment,
)
from airflow_provider_streamsem.protocol.offsets import Ranges
from airflow_provider_streamsem.protocol.view import Head, add_counts, net_counts
from airflow_provider_streamsem.readers.discoveries import DiscoveryCheck
from airflow_provider_streamsem.readers.files import CommittedLog, open_log
from airflow_provider_streamsem.sinks.contract import Sink
from airflow_provider_streamsem.stores.dataset import open_dataset

logger = logging.getLogger(__name__)

_TOLD_EACH = 100

T = TypeVar("T")
E = TypeVar("E", bound=Entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One contradiction: the invariant it breaks, where, and what is true now."""

    invariant: str
    what: str
    version: int | None = None
    key: str = ""


@dataclass(slots=True, kw_only=True)
class Verdict:
    """
    What a verification found.

    :param versions: closed versions
    :param counts: rows over all commits, as the outcomes have them
    :param files: visible files; ``rows`` by sink as counted in the files themselves. Files that redos replaced are checked too, and not counted
    :param orphans: files of attempts that lost or died: invisible, removed by vacuum
    :param unchecked: sinks whose files and markers were not looked at: only the pipeline's own file says how they are reached
    """

    log: str
    versions: int = 0
    commits: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    files: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    orphans: int = 0
    unchecked: tuple[str, ...] = ()
    findings: list[Finding] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


def verify(log: str | CommitLog | CommittedLog | Pipeline, *, files: bool = True) -> Verdict:
    """
    Check a log from its first version to its head, and every visible file: size, checksum, rows counted anew.

    Reads everything once; writes nothing. An open version is not a fault.

    :param log: URL of a log, an opened one, or the user's own pipeline. Only the pipeline says how sinks outside the log are reached, whose markers are then
        checked, too; and its datasets are looked at even where there is no log
    :param files: ``False`` checks only the log
    """
    if isinstance(log, Pipeline):
        return _verified(log, files=files)
    return _of_log(log if isinstance(log, CommittedLog) else open_log(log), files=files)


def _of_log(opened: CommittedLog, *, files: bool) -> Verdict:
    check = _Verification(opened, Verdict(log=opened.log.store.url))
    check.run(files)
    return check.verdict


@on_its_log
def _verified(pipeline: Pipeline, *, files: bool) -> Verdict:
    commit_log = open_commit_log(pipeline.log)
    if find_record(pipeline, commit_log) is None:
        return _without_log(pipeline)
    return _of_log(open_log(commit_log, pipeline=pipeline), files=files)


def _without_log(pipeline: Pipeline) -> Verdict:
    verdict = Verdict(log=pipeline.log)
    for name, sink in pipeline.sinks.items():
        try:
            sink.refuse_orphan(pipeline.log)
        except ConflictError as error:
            verdict.findings.append(Finding(invariant="I6", what=f"sink {name}: {error}", key=keys.DATASET_MARKER))
    return verdict


@dataclass(slots=True)
class _Verification:
    opened: CommittedLog
    verdict: Verdict
    _published: dict[int, Receipts] = field(default_factory=dict)

    def run(self, files: bool) -> None:
        outcomes = self._versions()
        self.verdict.commits = sum(o.committed for o, _ in outcomes)
        for outcome, _ in outcomes:
            self.verdict.counts = add_counts(self.verdict.counts, net_counts(outcome))
        self._segments(outcomes)
        self._discoveries()
        for outcome, _ in outcomes:
            self._quarantine(outcome)
        if files:
            self._files(outcomes)

    def _try(self, check: Callable[[], T], *, version: int | None = None) -> T | None:
        """What a check returns; a contradiction becomes a finding, and the verification goes on."""
        try:
            return check()
        except StreamsemError as error:
            where = error.fields.get("key") or error.fields.get("where") or ""
            what = str(error).split(". Do:")[0]
            rule = "R2" if isinstance(error, NewerFormatError) else str(error.fields.get("invariant", "I1"))
            self._found(rule, what, version=version, key=str(where))
            return None

    def _found(self, invariant: str, what: str, *, version: int | None = None, key: str = "") -> None:
        self.verdict.findings.append(Finding(invariant=invariant, what=what, version=version, key=key))

    def _entry(self, cls: type[E], key: str, version: int | None = None) -> tuple[E, str] | None:
        return self._try(partial(self.opened.log.perform, procedures.read_entry(cls, key)), version=version)

    def _versions(self) -> list[tuple[Outcome, str]]:
        """Every version in order, each held against the one before it."""
        log = self.opened.log
        listed = [parsed for parsed in map(keys.parse_entry, log.list_keys(keys.LOG)) if parsed is not None]
        newest = max((version for version, _ in listed), default=-1)
        outcomes: list[tuple[Outcome, str]] = []
        head, genesis = Head(), dict[str, int]()
        ranges: list[Ranges] = []
        visible: set[int] = set()
        for version in range(newest + 1):
            if version % _TOLD_EACH == 0:
                logger.info("reading the log: version %d of %d", version, newest)
            plan = self._entry(Plan, keys.plan(version), version)
            if version == 0 and plan is not None:
                genesis = dict(plan[0].genesis or {})
                head = Head(genesis=genesis)
            if plan is not None and plan[0].kind == "move":
                head.planned(*plan)  # raises: the log was moved
            outcome = self._entry(Outcome, keys.outcome(version), version)
            if plan is None:
                self._found("I2", "a version has no plan that can be read", version=version)
            if outcome is None and version < newest:
                self._found("I2", "a version below the head has no outcome that can be read", version=version)
            if plan is not None:
                self._version(head, plan, outcome)
            if plan is not None and outcome is not None and outcome[0].committed:
                if plan[0].replaces is None:
                    ranges.append(plan[0].ranges)
                else:
                    self._redo(plan[0], visible)
                    visible.discard(plan[0].replaces.version)
                visible.add(version)
            if outcome is not None:
                head = Head(outcome=outcome[0], outcome_sha=outcome[1], markers=outcome[0].markers)
                outcomes.append(outcome)
                if outcome[0].owes:
                    head = self._receipts(head, newest)
        self._try(partial(invariants.check_i5, ranges, genesis=genesis, next=head.next))
        self.verdict.versions = len(outcomes)
        return outcomes

    def _receipts(self, head: Head, newest: int) -> Head:
        """The receipts of a commit that owes some: there below the newest version, and of this very commit."""
        receipts = self._entry(Receipts, keys.receipts(head.closed), head.closed)
        if receipts is not None:
            self._try(partial(head.published, receipts[0]), version=head.closed)
            self._published[head.closed] = receipts[0]
            return replace(head, markers=receipts[0].markers)
        if head.closed < newest:
            self._found("I2", "a version below the head lacks the receipts that it owes", version=head.closed)
        return head

    def _markers(self, pipeline: Pipeline, found_outcomes: list[tuple[Outcome, str]]) -> None:
        """Each transactional sink's marker is of the newest commit that it got (I15, I18)."""
        outcomes = [outcome for outcome, _ in found_outcomes]
        shas = {outcome.version: sha for outcome, sha in found_outcomes}
        by_version = {outcome.version: outcome for outcome in outcomes}
        for name in pipeline.publishes:
            sink = publishing(pipeline, name)
            owed = [o.version for o in outcomes if name in o.publish and self._needs_marker(by_version, o, name)]
            got = [version for version in owed if version in self._published]
            try:
                found = sink.marker(self.opened.record.pipeline_uuid, name)
            except MarkerLostError as error:
                self._found("I15", f"sink {name}: {error.truth}", version=max(got, default=None))
                continue
            except StreamsemError as error:
                self._found("I15", f"the marker of sink {name} cannot be read: {str(error).split('. Do:')[0]}")
                continue
            at = -1 if found is None else found.version
            if found is not None and at in shas and not found.is_of(at, shas[at]):
                what = f"the marker of sink {name} was set by another commit of version {at}: the log was restored from an older copy, or has two copies"
                self._found("I18", what, version=at)
            if at > max(owed, default=-1):
                self._found("I18", f"the marker of sink {name} is above every version that it is owed", version=at)
            if sink.delivery == "exactly_once" and at < max(got, default=-1):
                lost = (
                    "is missing: its table or topic was deleted, renamed or created again"
                    if found is None
                    else f"is at version {at}: an older copy was restored"
                )
                what = f"the marker of sink {name} {lost}. Receipts say that version {max(got)} was published"
                self._found("I15", what, version=max(got))

    def _needs_marker(self, by_version: Mapping[int, Outcome], outcome: Outcome, name: str) -> bool:
        """Whether a version brings rows to a sink, or takes out what stands there of its chain (P2, P3)."""
        if outcome.sinks[name].files:
            return True
        while outcome.replaces is not None and outcome.replaces.version in by_version:
            receipts = self._published.get(outcome.replaces.version)
            outcome = by_version[outcome.replaces.version]
            if receipts is not None and name in receipts.sinks and receipts.sinks[name].result == "applied":
                return name in outcome.sinks and bool(outcome.sinks[name].files)
        return False

    def _redo(self, redone: Plan, visible: set[int]) -> None:
        """A redo against the commit that it replaces (I20)."""
        assert redone.replaces is not None
        replaced = redone.replaces.version
        plan = self._entry(Plan, keys.plan(replaced), replaced)
        outcome = self._entry(Outcome, keys.outcome(replaced), replaced)
        if replaced not in visible:
            self._found("I20", "a redo replaces a version that is not visible", version=redone.version)
        elif plan is not None and outcome is not None:
            self._try(partial(invariants.check_i20, redone, plan[0], outcome[0]), version=redone.version)

    def _version(self, head: Head, plan: tuple[Plan, str], outcome: tuple[Outcome, str] | None) -> None:
        """A version against the head before it."""
        version = plan[0].version
        self._try(partial(invariants.check_i19, plan[0]), version=version)
        self._try(partial(head.planned, *plan), version=version)
        if outcome is None:
            return
        if head.outcome is not None and head.outcome.owes and head.closed not in self._published:
            head = replace(head, markers=outcome[0].markers)  # receipts that cannot be read are a finding of their own
        opened = replace(head, plan=plan[0], plan_sha=plan[1])
        self._try(partial(opened.decided, *outcome), version=version)
        pointer = self._entry(RunPointer, keys.pointer(plan[0].run_key, plan[0].j), version)
        if pointer is None:
            self._found("I16", "a closed version has no run pointer", version=version)
        else:
            self._try(partial(invariants.check_i16, pointer[0], plan[0]), version=version)

    def _segments(self, outcomes: list[tuple[Outcome, str]]) -> None:
        """Every segment that is stored equals its fold; one that is missing is no fault (R5)."""
        children: dict[int, Segment] = {}
        for index in range(len(outcomes) // segments.WIDTH):
            part = outcomes[index * segments.WIDTH : (index + 1) * segments.WIDTH]
            if [o.version for o, _ in part] != list(range(index * segments.WIDTH, (index + 1) * segments.WIDTH)):
                return
            children[index] = segments.level_1(index, [o for o, _ in part], part[-1][1])
        level = 1
        while children:
            for index, expected in children.items():
                stored = self._entry(Segment, keys.segment(level, index))
                if stored is not None:
                    self._try(partial(invariants.check_i9, stored[0], expected))
            level += 1
            children = {
                index: segments.parent(
                    level, index, [children[i] for i in range(index * segments.WIDTH, (index + 1) * segments.WIDTH)]
                )
                for index in range(len(children) // segments.WIDTH)
            }

    def _discoveries(self) -> None:
        """Check what each source has discovered."""
        found = [key.partition(keys.DISCOVERED) for key in self.opened.log.list_keys(keys.SOURCES)]
        for prefix in sorted({before for before, sep, _ in found if sep}):
            numbers = [keys.parse_newest_first(sep + name) for before, sep, name in found if before == prefix and sep]
            newest = max((i for i in numbers if i is not None), default=None)
            if newest is not None:
                log = self.opened.log.under(prefix)
                DiscoveryCheck(log=log, prefix=prefix, attempt=self._try, report=self._found).run(newest)

    def _quarantine(self, outcome: Outcome) -> None:
        rows = 0
        for key in outcome.quarantine.keys:
            data = self.opened.log.read(key)
            if data is None:
                self._found("I6", "quarantined records are missing", version=outcome.version, key=key)
                return
            rows += data.count(b"\n")
        if rows != outcome.quarantine.rows:
            self._found("I14", "quarantined records are more or fewer than recorded", version=outcome.version)

    def _files(self, found_outcomes: list[tuple[Outcome, str]]) -> None:
        """Every visible file: there, unchanged, counted anew, and named once."""
        if self.opened.pipeline is not None:
            self._try(partial(self._markers, self.opened.pipeline, found_outcomes))
        outcomes = [outcome for outcome, _ in found_outcomes]
        place = self.opened.log.store.url
        state = None if not outcomes else outcomes[-1].state
        if self._try(partial(dedup.is_complete, place, state)) is False:
            self._found("I6", "a file of what is remembered is missing or was changed", version=outcomes[-1].version)
        named: set[tuple[str, str]] = set()
        replaced = {o.replaces.version for o in outcomes if o.replaces is not None}
        sinks = self._own_sinks(is_marked=bool(outcomes))
        for outcome in outcomes:
            if outcome.version % _TOLD_EACH == 0:
                logger.info("checking files: version %d of %d", outcome.version, outcomes[-1].version)
            for name, committable in outcome.sinks.items():
                if name not in self.opened.sinks:
                    self._found("I8", "an outcome names a sink that the spec does not have", version=outcome.version)
                for file in committable.files if name in sinks else ():
                    if (name, file.key) in named or f"/{outcome.attempt_id}/" not in file.key:
                        what = "a file is named twice, or lies outside its attempt's own place"
                        self._found("I8", what, version=outcome.version, key=file.key)
                    named.add((name, file.key))
                    if sinks[name].publishes and outcome.version in self._published:
                        continue  # they are the table's own now, or vacuum's
                    check = partial(_file, sinks[name], file, committable.format, outcome.version)
                    rows = self._try(check, version=outcome.version) or 0
                    if outcome.version not in replaced:
                        self.verdict.rows[name], self.verdict.files = (
                            self.verdict.rows[name] + rows,
                            self.verdict.files + 1,
                        )
        for name, sink in sinks.items():
            self.verdict.orphans += sum((name, key) not in named for key in _data_keys(sink))

    def _own_sinks(self, *, is_marked: bool) -> dict[str, Sink]:
        """
        The sinks whose places this log owns: no other place is looked into, whatever a stored spec names.

        :param is_marked: a first run that died before its first version may have left its datasets unmarked
        """
        found: dict[str, Sink] = {}
        for name, sink in (self._try(lambda: self.opened.sinks) or {}).items():
            if isinstance(sink, str):
                self.verdict.unchecked = (*self.verdict.unchecked, name)
                continue
            self.verdict.rows[name] = 0
            log, record = self.opened.log, self.opened.record
            claim = partial(claim_dataset, name, sink, log, record, url=log.store.url, new=False)
            known = len(self.verdict.findings)
            if is_marked:
                self._try(claim)
            if len(self.verdict.findings) == known:
                found[name] = sink
        return found


def _file(sink: Sink, file: DataFile, format: str, version: int) -> int:
    """Rows of one visible file, counted in the file."""
    size, checksum = sink.identify(file.key, format) or (None, None)
    invariants.check_i6(file, version=version, found_bytes=size, found_checksum=checksum)
    rows = sink.count(file.key, format)
    if rows != file.rows:
        what = "a visible file holds another number of rows than recorded"
        raise LogDamagedError(what, invariant="I14", key=file.key, rows=rows, recorded=file.rows)
    return rows


def _data_keys(sink: Sink) -> Iterator[str]:
    """What attempts wrote: other writers of a table may put files there, too."""
    stats = open_dataset(sink.place).list("data/")
    return (stat.key for stat in stats if keys.attempt_of_data(stat.key) and not stat.key.endswith("/"))
