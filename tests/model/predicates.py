"""
The invariants. Each is a predicate that returns a description of the violation, or an empty string.

``STORED`` checks the log and the sinks outside the log. ``RETURNED`` checks the results that callers got. ``STEPS`` compares the states before and after a step.
I10 is a property of the whole graph and is in ``explore.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from tests.model.configurations import (
    ALTER_RUN,
    COMPACTION,
    EXPIRY,
    INTERVAL_RUN,
    REPROCESS_RUN,
    ROLLBACK_RUN,
    TXN,
    Configuration,
)
from tests.model.state import (
    ALTER,
    APPLIED,
    BATCH,
    COMPLETED,
    DONE,
    EXPIRE,
    INTERVAL,
    LOCATE,
    NO_STATE,
    NONE,
    REPROCESS,
    REWRITE,
    ROLLBACK,
    SENT,
    SKIPPED,
    WHOLE,
    WITHOUT_ATTEMPT,
    WITHOUT_PUBLISH,
    WITHOUT_ROWS,
    Log,
    Outcome,
    State,
    applied_rewrites,
    committed,
    config_after,
    has_needed_files,
    is_loadable,
    kept,
    newest_alter,
    newest_closed,
    next_after,
    oldest_readable,
    pointer,
    root_of,
    state_after,
    visible,
)

KINDS = {
    REPROCESS_RUN: REPROCESS,
    ROLLBACK_RUN: ROLLBACK,
    ALTER_RUN: ALTER,
    COMPACTION: REWRITE,
    EXPIRY: EXPIRE,
    INTERVAL_RUN: INTERVAL,
}
"""Kind of a run → kind of its versions. All other runs plan batches."""

Predicate = Callable[[State, Configuration], str]


def i2(s: State, c: Configuration) -> str:
    """Plan(n) exists only if Outcome(n-1) exists, and Receipts(n-1) if it requires them. Claims and receipts exist only for a commit."""
    for n, version in enumerate(s.log):
        before = s.log[n - 1] if n else None
        if before is not None and before.outcome is None:
            return f"version {n} is planned while version {n - 1} is open"
        needs_receipts = (
            before is not None and c.sinks and committed(before) and before.plan.kind not in WITHOUT_PUBLISH
        )
        if before is not None and needs_receipts and before.receipts is None:
            return f"version {n} is planned while version {n - 1} has no receipts"
        if (version.claim or version.receipts is not None) and not committed(version):
            return f"version {n} has a claim or receipts but is not a commit"
    return ""


def i3(s: State, _: Configuration) -> str:
    """A commit names an attempt of its version. An abort, a rollback or an alter names none. I1 checks that a version has one outcome."""
    for n, version in enumerate(s.log):
        if version.outcome is not None:
            x = version.outcome.attempt
            has_attempt = committed(version) and version.plan.kind not in WITHOUT_ATTEMPT
            if has_attempt != (0 <= x < len(version.attempts)):
                return f"the outcome of version {n} names attempt {x}"
    return ""


def i4(s: State, _: Configuration) -> str:
    """
    The range of a batch starts at Outcome(n-1).next, and its commit sets next to the range's end. A rollback returns to the next of an earlier outcome.
    Reprocessing runs and aborts do not change next.
    """
    for n, version in enumerate(s.log):
        plan, before = version.plan, next_after(s.log, n - 1)
        if plan.kind == BATCH and plan.start != before:
            return f"version {n} starts at {plan.start}, next of the outcome before it is {before}"
        expected = plan.end if plan.kind == BATCH and committed(version) else before
        if plan.kind == ROLLBACK and committed(version):
            expected = next_after(s.log, plan.to)
        if version.outcome is not None and version.outcome.next != expected:
            return f"Outcome({n}).next is {version.outcome.next}, expected {expected}"
    return ""


def i5(s: State, _: Configuration) -> str:
    """
    The ranges of the committed batches that are not rolled back are together [0, head.next), and each committed attempt read the planned range.
    """
    reached = 0
    for n, version in enumerate(s.log):
        if not committed(version):
            continue
        assert version.outcome is not None
        if version.plan.kind == ROLLBACK:
            reached = version.outcome.next
            continue
        if version.plan.kind in (ALTER, EXPIRE):
            continue
        if version.attempts[version.outcome.attempt].read != version.plan.end:
            return f"the attempt of version {n} did not read the planned range"
        if version.plan.kind == BATCH:
            if version.plan.start != reached:
                return f"version {n} starts at {version.plan.start}, committed is [0, {reached})"
            reached = version.plan.end
    return ""


def i6(s: State, _: Configuration) -> str:
    """Every file that readers of the head need exists completely."""
    for n in range(len(s.log)):
        if has_needed_files(s.log, n, newest_closed(s.log)) and not has_committed_files(s.log, n):
            return f"files of version {n} are visible but missing"
    return ""


def i7(s: State, _: Configuration) -> str:
    """A version reads the same at any later time: files that readers of an earlier version need still exist, from the oldest readable version on."""
    closed = newest_closed(s.log)
    for at in range(oldest_readable(s.log, closed), closed + 1):
        for n in range(at + 1):
            if has_needed_files(s.log, n, at) and not has_committed_files(s.log, n):
                return f"files of version {n} are missing, and readers of version {at} need them"
    return ""


def i8(s: State, _: Configuration) -> str:
    """No two attempts share a key."""
    for n, version in enumerate(s.log):
        for x, attempt in enumerate(version.attempts):
            if attempt.entries > 1:
                return f"attempt {x} of version {n} was staged {attempt.entries} times"
    return ""


def i16(s: State, _: Configuration) -> str:
    """Outcome(n) exists only if the run pointer of Plan(n) exists and names n."""
    for n, version in enumerate(s.log):
        if version.outcome is not None and pointer(s, version.plan.run, version.plan.j) != n:
            return f"version {n} has an outcome but pointer {version.plan.j} of its run does not name it"
    return ""


def i17(s: State, _: Configuration) -> str:
    """At most one publisher performs an at-most-once effect, and only that of a commit."""
    for n in s.external.effects:
        if s.external.effects.count(n) > 1:
            return f"the effect of version {n} was performed twice"
        if not committed(s.log[n]):
            return f"the effect of version {n} was performed, but the version is not a commit"
    return ""


def i18(s: State, c: Configuration) -> str:
    """A transactional sink holds exactly the rows of the log up to its marker, and receipts are true."""
    sink = s.external
    rows: dict[int, tuple[int, int, int]] = {}
    for n, version in enumerate(s.log):
        if not committed(version) or version.plan.kind in WITHOUT_PUBLISH:
            continue
        assert version.outcome is not None
        if n <= sink.marker and n not in sink.skipped and TXN in c.sinks:
            if version.plan.kind == ROLLBACK:
                rows = {root: row for root, row in rows.items() if root <= version.plan.to}
            else:
                rows[root_of(s.log, n)] = (root_of(s.log, n), n, version.outcome.attempt)
        for result in version.receipts or ():
            if not receipt_is_true(s, n, result):
                return f"receipts of version {n} wrongly record {result}"
    expected = tuple(sorted(rows.values()))
    return (
        ""
        if expected == sink.rows
        else f"the sink holds {sink.rows}, the log up to marker {sink.marker} has {expected}"
    )


def receipt_is_true(s: State, n: int, result: str) -> bool:
    """Whether a result in the receipts of version n is true."""
    sink = s.external
    if result == APPLIED:
        return n <= sink.marker and n not in sink.skipped
    if result == SKIPPED:
        return n <= sink.marker and n in sink.skipped
    if result == DONE:
        return n in sink.effects
    if result == SENT:
        return n in sink.delivered
    return True  # "unknown" is always true


def i19(s: State, _: Configuration) -> str:
    """The run key of a single batch commits at most one range. A drain has one target in all its plans, and plans nothing beyond it."""
    runs: dict[int, tuple[int, bool]] = {}  # run -> target, whether it committed
    for n, version in enumerate(s.log):
        plan = version.plan
        target, has_committed = runs.get(plan.run, (plan.target, False))
        if plan.target != target:
            return f"version {n} of a drain has target {plan.target}, the first target of its run is {target}"
        if plan.target != NONE and not plan.start < plan.end <= plan.target:
            return f"version {n} of a drain plans [{plan.start}, {plan.end}), its target is {plan.target}"
        is_repeated = plan.kind == INTERVAL and plan.j and pointer(s, plan.run, plan.j - 1) not in kept(s.log, n - 1)
        if plan.target == NONE and has_committed and committed(version) and not is_repeated:
            return f"version {n} is the second commit of its run key"
        runs[plan.run] = target, has_committed or committed(version)
    return ""


def i20(s: State, _: Configuration) -> str:
    """A reprocessing run replaces a commit that is visible at Outcome(n-1), with its range. Of the runs of one chain exactly the newest commit is visible."""
    for n, version in enumerate(s.log):
        plan = version.plan
        if (plan.kind == REPROCESS) != (plan.replaces != NONE):
            return f"version {n} is a {plan.kind} and replaces {plan.replaces}"
        if plan.kind != REPROCESS:
            continue
        if plan.replaces not in visible(s.log, n - 1):
            return f"version {n} replaces version {plan.replaces}, which is not visible before it"
        old = s.log[plan.replaces].plan
        if (plan.start, plan.end) != (old.start, old.end):
            return f"version {n} reprocesses another range than that of version {plan.replaces}"
    return newest_is_visible(s.log)


def i21(s: State, _: Configuration) -> str:
    """A rollback returns to a version that is not rolled back. Visible files and state are again those after that version."""
    for n, version in enumerate(s.log):
        plan, outcome = version.plan, version.outcome
        if (plan.kind == ROLLBACK) != (plan.to != NONE):
            return f"version {n} is a {plan.kind} and returns to {plan.to}"
        if plan.kind != ROLLBACK:
            continue
        if plan.to not in kept(s.log, n - 1):
            return f"version {n} returns to version {plan.to}, which is rolled back"
        if not committed(version):
            continue
        if visible(s.log, n) != visible(s.log, plan.to):
            return f"at version {n}, {visible(s.log, n)} are visible, at version {plan.to} {visible(s.log, plan.to)}"
        if outcome is not None and outcome.state != state_after(s.log, plan.to):
            return f"the state of Outcome({n}) is {outcome.state}, that of Outcome({plan.to}) {state_after(s.log, plan.to)}"
    return ""


def i23(s: State, _: Configuration) -> str:
    """A rewrite names commits that are visible before it. Readers of the head find all files of the rewrites that apply, and read each visible commit once."""
    for n, version in enumerate(s.log):
        plan = version.plan
        if (plan.kind == REWRITE) != bool(plan.commits):
            return f"version {n} is a {plan.kind} and names the commits {plan.commits}"
        if not {*plan.commits} <= visible(s.log, n - 1):
            return f"version {n} rewrites {plan.commits}, visible before it are {sorted(visible(s.log, n - 1))}"
    head = newest_closed(s.log)
    applied = applied_rewrites(s.log, head)
    for n in applied:
        if not has_committed_files(s.log, n):
            return f"files of the rewrite {n} are missing, and readers of version {head} need them"
    rewritten = [commit for n in applied for commit in s.log[n].plan.commits]
    read = sorted([*rewritten, *(visible(s.log, head) - {*rewritten})])
    return "" if read == sorted(visible(s.log, head)) else f"readers of version {head} read the rows of {read}"


def i24(s: State, _: Configuration) -> str:
    """An expiry raises the oldest readable version, at most to the version before it. No other version names one."""
    for n, version in enumerate(s.log):
        plan, before = version.plan, oldest_readable(s.log, n - 1)
        if plan.kind != EXPIRE and plan.oldest != NONE:
            return f"version {n} is a {plan.kind} and names the oldest readable version {plan.oldest}"
        if plan.kind == EXPIRE and not before < plan.oldest < n:
            return f"version {n} makes {plan.oldest} the oldest readable version, before it is {before}"
    return ""


def i28(s: State, _: Configuration) -> str:
    """
    The intervals of an outcome are those whose rows are visible. No record is in two of them, and none is between two that follow each other.
    """
    for n, version in enumerate(s.log):
        if version.outcome is None:
            continue
        roots = sorted({root_of(s.log, m) for m in visible(s.log, n)})
        plans = [s.log[root].plan for root in roots]
        read = sorted((plan.interval, plan.start, plan.end) for plan in plans if plan.kind == INTERVAL)
        if [*version.outcome.intervals] != read:
            return f"the intervals of Outcome({n}) are {version.outcome.intervals}, those of the visible rows {read}"
        for (number, _, end), (following, start, _) in pairwise(read):
            if number == following or end > start or (number + 1 == following and end != start):
                return f"at version {n}, interval {number} ends at {end}, and interval {following} begins at {start}"
    return ""


def w53(before: State, after: State, c: Configuration) -> str:
    """
    A run that begins after a rollback of its interval does not return the version that was rolled back. A run may return a version that is rolled back while it
    commits it.
    """
    for i, (old, new) in enumerate(zip(before.processes, after.processes, strict=True)):
        is_found = c.actors[i].kind == INTERVAL_RUN and old.at == LOCATE and new.at == COMPLETED
        if is_found and new.n not in kept(after.log, max(old.n, new.n)):
            return f"process {i} returned the interval of version {new.n}, which was rolled back"
    return ""


def w35(s: State, _: Configuration) -> str:
    """Each plan has the immutable fields of the outcome before it, except an alter, and so has each attempt at the version."""
    for n, version in enumerate(s.log):
        plan, config = version.plan, config_after(s.log, n - 1)
        if plan.kind != ALTER and plan.config != config:
            return f"version {n} is planned with the immutable fields {plan.config}, those of the log are {config}"
        for x, attempt in enumerate(version.attempts):
            if attempt.config != plan.config:
                return f"attempt {x} of version {n} has the immutable fields {attempt.config}, its plan {plan.config}"
    return ""


def w28(s: State, _: Configuration) -> str:
    """
    The operators' state of an outcome is that of the newest committed batch that is not rolled back. Each attempt loaded the state before its batch, or before the batch that it
    reprocesses. So each record is counted once.
    """
    before = [NO_STATE]
    for n, version in enumerate(s.log):
        outcome = version.outcome
        is_batch = version.plan.kind == BATCH and committed(version)
        after = before[version.plan.to + 1] if version.plan.kind == ROLLBACK and committed(version) else before[-1]
        after = NO_STATE if version.plan.kind == ALTER and committed(version) else after
        before.append((n, outcome.attempt) if outcome is not None and is_batch else after)
        if outcome is not None and outcome.state != before[-1]:
            return f"the state of Outcome({n}) is that of {outcome.state}, expected {before[-1]}"
        expected = before[root_of(s.log, n)]
        for x, attempt in enumerate(version.attempts):
            if attempt.base != expected:
                return f"attempt {x} of version {n} loaded the state {attempt.base}, expected {expected}"
    return ""


def v7(s: State, c: Configuration) -> str:
    """
    Vacuum keeps the state that the next batch loads, that to which an open rollback returns, and those before and after each of the newest ``keep`` versions,
    now and before each rollback. An attempt at a version that is closed may miss its state, because it cannot win.
    """
    closed = newest_closed(s.log)
    needed = [closed]
    if s.log and s.log[-1].outcome is None and s.log[-1].plan.kind == ROLLBACK:
        needed.append(s.log[-1].plan.to)
    heads = [closed, *(n - 1 for n in range(closed + 1) if s.log[n].plan.kind == ROLLBACK and committed(s.log[n]))]
    histories = [kept(s.log, head) for head in heads]
    needed += [n for n in histories[0] if all(n in history[-1 - c.keep :] for history in histories if n in history)]
    needed = [n for n in needed if n >= newest_alter(s.log, closed)]  # no run loads an earlier state (W38)
    for n in needed:
        if not is_loadable(s.log, state_after(s.log, n)):
            return f"files of the state after version {n} are deleted"
    return ""


def newest_is_visible(log: Log) -> str:
    """Of each chain, the newest commit and no other version is visible at the head."""
    newest: dict[int, int] = {}
    for n in kept(log, len(log) - 1):
        if committed(log[n]) and log[n].plan.kind not in WITHOUT_ROWS:
            newest[root_of(log, n)] = n
    visible_versions = visible(log, len(log) - 1)
    return (
        ""
        if visible_versions == set(newest.values())
        else f"visible are {sorted(visible_versions)}, the newest are {sorted(newest.values())}"
    )


def has_committed_files(log: Log, n: int) -> bool:
    """Whether the attempt that Outcome(n) names has all its files."""
    outcome = log[n].outcome
    if log[n].plan.kind in WITHOUT_ATTEMPT:
        return True
    return outcome is not None and log[n].attempts[outcome.attempt].files == WHOLE


def i12(s: State, c: Configuration) -> str:
    """The result of a run is a closed version of its own run and kind. For a drain, the head has reached the target."""
    for i, process in enumerate(s.processes):
        if process.at != COMPLETED:
            continue
        n, actor = process.n, c.actors[i]
        version = s.log[n]
        subject = f"process {i} returned version {n}, which"
        if version.outcome is None:
            return f"{subject} is open"
        if version.plan.run != actor.run or version.plan.kind != KINDS.get(actor.kind, BATCH):
            return f"{subject} is not of its run"
        if c.sinks and committed(version) and version.plan.kind not in WITHOUT_PUBLISH and version.receipts is None:
            return f"{subject} has no receipts"
        target = version.plan.target
        if target == NONE and not committed(version):
            return f"{subject} was aborted"
        # A rollback may return below the target later.
        ends = [after.outcome.next for after in s.log[n:] if after.outcome is not None]
        if target != NONE and max(ends) < target:
            return f"{subject} is of a drain whose target the head has not reached"
    return ""


def i1(before: State, after: State, _: Configuration) -> str:
    """The bytes under a key never change, and a deleted key is not created with other bytes."""
    for n, old in enumerate(before.log):
        new = after.log[n]
        if old.plan != new.plan or (old.receipts is not None and old.receipts != new.receipts):
            return f"Plan({n}) or Receipts({n}) changed"
        old_outcome = old.outcome or dict(after.deleted).get(n)
        if (
            old_outcome is not None
            and new.outcome is not None
            and _without_attempt(old_outcome) != _without_attempt(new.outcome)
        ):
            return f"Outcome({n}) changed: {old_outcome.result} to {new.outcome.result}"
        if (
            old_outcome is not None
            and new.outcome is not None
            and len(old.attempts) == len(new.attempts)
            and old_outcome.attempt != new.outcome.attempt
        ):
            return f"Outcome({n}) changed from attempt {old_outcome.attempt} to attempt {new.outcome.attempt}"
    for old_chain, new_chain in zip(before.pointers, after.pointers, strict=True):
        if any(a >= 0 and a != b for a, b in zip(old_chain, new_chain, strict=False)) or len(old_chain) > len(
            new_chain
        ):
            return f"a run pointer changed: {old_chain} to {new_chain}"
    return ""


def _without_attempt(outcome: Outcome) -> Outcome:
    """An outcome without the number of its attempt, which folding changes."""
    return outcome._replace(attempt=NONE, state=(outcome.state[0], NONE))


def i15(before: State, after: State, _: Configuration) -> str:
    """A sink's marker never goes back."""
    old, new = before.external.marker, after.external.marker
    return f"the marker went back from {old} to {new}" if new < old else ""


STORED: dict[str, Predicate] = {
    "I2": i2,
    "I3": i3,
    "I4": i4,
    "I5": i5,
    "I6": i6,
    "I7": i7,
    "I8": i8,
    "I16": i16,
    "I17": i17,
    "I18": i18,
    "I19": i19,
    "I20": i20,
    "I21": i21,
    "I23": i23,
    "I24": i24,
    "I28": i28,
    "W28": w28,
    "W35": w35,
    "V7": v7,
}
RETURNED: dict[str, Predicate] = {"I12": i12}
STEPS: dict[str, Callable[[State, State, Configuration], str]] = {"I1": i1, "I15": i15, "W53": w53}
OF_PROCESSES = frozenset({"W53"})
"""The predicates of :data:`STEPS` that compare processes. The others compare what is stored."""
