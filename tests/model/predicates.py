"""
The invariants, each a predicate that says what is wrong, or nothing.

Those of ``STORED`` speak about what is stored, in the log and outside; those of ``TOLD`` about what callers were told; those of ``STEPS`` about two states, one
step apart. I10 speaks about the whole graph and is in ``explore.py``.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.model.configurations import REPROCESS_RUN, TXN, Configuration
from tests.model.state import (
    ANSWERED,
    APPLIED,
    BATCH,
    DONE_ONCE,
    NONE,
    REPROCESS,
    SENT_ON,
    SKIPPED,
    WHOLE,
    Log,
    State,
    base_of,
    committed,
    next_after,
    pointer,
)

Predicate = Callable[[State, Configuration], str]


def i2(s: State, c: Configuration) -> str:
    """Plan(n) exists only if Outcome(n-1) does, and the receipts that this commit owes; a claim or receipts only after a commit."""
    for n, version in enumerate(s.log):
        before = s.log[n - 1] if n else None
        if before is not None and before.outcome is None:
            return f"version {n} is planned, version {n - 1} is open"
        if before is not None and c.sinks and committed(before) and before.receipts is None:
            return f"version {n} is planned, version {n - 1} has no receipts"
        if (version.claim or version.receipts is not None) and not committed(version):
            return f"version {n} has a claim or receipts, and is no commit"
    return ""


def i3(s: State, _: Configuration) -> str:
    """A commit names an attempt of its version; an abort names none. (That outcomes are unique is what a key is for, see I1.)"""
    for n, version in enumerate(s.log):
        if version.outcome is not None:
            x = version.outcome.attempt
            if committed(version) != (0 <= x < len(version.attempts)):
                return f"the outcome of version {n} names attempt {x}"
    return ""


def i4(s: State, _: Configuration) -> str:
    """The range of a batch starts at Outcome(n-1).next; a commit of one ends at its own next; reprocessing runs and aborts leave next as it was."""
    for n, version in enumerate(s.log):
        plan, before = version.plan, next_after(s.log, n - 1)
        if plan.kind == BATCH and plan.start != before:
            return f"version {n} starts at {plan.start}, the outcome before it says {before}"
        expected = plan.end if plan.kind == BATCH and committed(version) else before
        if version.outcome is not None and version.outcome.next != expected:
            return f"Outcome({n}).next is {version.outcome.next}, expected {expected}"
    return ""


def i5(s: State, _: Configuration) -> str:
    """The ranges of committed batches are together [0, head.next), and what was read is what was planned."""
    reached = 0
    for n, version in enumerate(s.log):
        if not committed(version):
            continue
        assert version.outcome is not None
        if version.attempts[version.outcome.attempt].read != version.plan.end:
            return f"version {n} holds other rows than its plan says"
        if version.plan.kind == BATCH:
            if version.plan.start != reached:
                return f"version {n} starts at {version.plan.start}, committed is [0, {reached})"
            reached = version.plan.end
    return ""


def i6(s: State, _: Configuration) -> str:
    """Every file that is visible at the head exists, and is whole."""
    for n in visible(s.log, len(s.log) - 1):
        if not files_are_whole(s.log, n):
            return f"files of version {n} are visible and not there"
    return ""


def i7(s: State, _: Configuration) -> str:
    """A version reads the same forever: what was visible at any earlier version still exists."""
    for n, version in enumerate(s.log):
        if committed(version) and not files_are_whole(s.log, n):
            return f"files that a reader of version {n} reads are not there"
    return ""


def i8(s: State, _: Configuration) -> str:
    """No two attempts share a key."""
    for n, version in enumerate(s.log):
        for x, attempt in enumerate(version.attempts):
            if attempt.entries > 1:
                return f"{attempt.entries} entries to staging wrote under attempt {x} of version {n}"
    return ""


def i16(s: State, _: Configuration) -> str:
    """Outcome(n) exists only if the run pointer of Plan(n) does, and names n."""
    for n, version in enumerate(s.log):
        if version.outcome is not None and pointer(s, version.plan.run, version.plan.j) != n:
            return f"version {n} has an outcome, and pointer {version.plan.j} of its run does not name it"
    return ""


def i17(s: State, _: Configuration) -> str:
    """At most one entry ever performs an at-most-once effect, and only of a commit."""
    for n in s.outside.effects:
        if s.outside.effects.count(n) > 1:
            return f"the effect of version {n} was performed twice"
        if not committed(s.log[n]):
            return f"the effect of version {n} was performed, which is no commit"
    return ""


def i18(s: State, c: Configuration) -> str:
    """A transactional sink holds exactly the fold of the log up to its marker, and receipts say only what is true."""
    at = s.outside
    rows: dict[int, tuple[int, int, int]] = {}
    for n, version in enumerate(s.log):
        if not committed(version):
            continue
        assert version.outcome is not None
        if n <= at.marker and n not in at.skipped and TXN in c.sinks:
            rows[base_of(s.log, n)] = (base_of(s.log, n), n, version.outcome.attempt)
        for word in version.receipts or ():
            if not receipt_is_true(s, n, word):
                return f"receipts of version {n} say {word}"
    held = tuple(sorted(rows.values()))
    return "" if held == at.rows else f"the sink holds {at.rows}, the log up to marker {at.marker} says {held}"


def receipt_is_true(s: State, n: int, word: str) -> bool:
    """Whether what receipts say of version n is so."""
    at = s.outside
    if word == APPLIED:
        return n <= at.marker and n not in at.skipped
    if word == SKIPPED:
        return n <= at.marker and n in at.skipped
    if word == DONE_ONCE:
        return n in at.effects
    if word == SENT_ON:
        return n in at.delivered
    return True  # "unknown" claims nothing


def i19(s: State, _: Configuration) -> str:
    """The run key of a single batch commits at most one range; a drain has one target in all its plans, and plans nothing beyond it."""
    seen: dict[int, tuple[int, bool]] = {}  # run -> target, whether it committed
    for n, version in enumerate(s.log):
        plan = version.plan
        target, done = seen.get(plan.run, (plan.target, False))
        if plan.target != target:
            return f"version {n} of a drain has target {plan.target}, its run was to end at {target}"
        if plan.target != NONE and not plan.start < plan.end <= plan.target:
            return f"version {n} of a drain plans [{plan.start}, {plan.end}), its target is {plan.target}"
        if plan.target == NONE and done and committed(version):
            return f"version {n} is the second commit of its run key"
        seen[plan.run] = target, done or committed(version)
    return ""


def i20(s: State, _: Configuration) -> str:
    """A reprocessing run replaces a commit that is visible at Outcome(n-1), with its range; of the reprocessing runs of one commit exactly the newest is visible."""
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


def newest_is_visible(log: Log) -> str:
    """Of every batch and its reprocessing runs one version is visible at the head, and it is the newest that was committed."""
    newest: dict[int, int] = {}
    for n, version in enumerate(log):
        if committed(version):
            newest[base_of(log, n)] = n
    seen = visible(log, len(log) - 1)
    return (
        "" if seen == set(newest.values()) else f"visible are {sorted(seen)}, the newest are {sorted(newest.values())}"
    )


def visible(log: Log, at: int) -> set[int]:
    """The versions whose files are visible at version ``at`` (R4)."""
    found: set[int] = set()
    for n in range(at + 1):
        outcome = log[n].outcome
        if committed(log[n]):
            found.add(n)
        if outcome is not None:
            found.discard(outcome.replaces)
    return found


def files_are_whole(log: Log, n: int) -> bool:
    """Whether the attempt that Outcome(n) names lies there, every file of it."""
    outcome = log[n].outcome
    return outcome is not None and log[n].attempts[outcome.attempt].files == WHOLE


def i12(s: State, c: Configuration) -> str:
    """What was answered to a caller is what is stored: a closed version of its own run and kind; to a drain, that the head is at its target."""
    for i, process in enumerate(s.processes):
        if process.at != ANSWERED:
            continue
        n, actor = process.n, c.actors[i]
        version = s.log[n]
        who = f"process {i} was answered with version {n}, which"
        if version.outcome is None:
            return f"{who} is open"
        if version.plan.run != actor.run or (version.plan.kind == REPROCESS) != (actor.kind == REPROCESS_RUN):
            return f"{who} is not of its run"
        if c.sinks and committed(version) and version.receipts is None:
            return f"{who} has no receipts"
        target = version.plan.target
        if target == NONE and not committed(version):
            return f"{who} was aborted"
        if target != NONE and next_after(s.log, len(s.log) - 1) < target:
            return f"{who} is of a drain below its target"
    return ""


def i1(before: State, after: State, _: Configuration) -> str:
    """What is stored under a key never changes, and a key that was deleted is not opened again."""
    for n, old in enumerate(before.log):
        new = after.log[n]
        if old.plan != new.plan or (old.receipts is not None and old.receipts != new.receipts):
            return f"Plan({n}) or Receipts({n}) changed"
        gone = dict(after.gone).get(n)
        was = old.outcome or gone
        if was is not None and new.outcome is not None and was[:1] + was[2:] != new.outcome[:1] + new.outcome[2:]:
            return f"Outcome({n}) changed: {was.result} to {new.outcome.result}"
        if (
            was is not None
            and new.outcome is not None
            and len(old.attempts) == len(new.attempts)
            and was != new.outcome
        ):
            return f"Outcome({n}) changed from attempt {was.attempt} to attempt {new.outcome.attempt}"
    for old_chain, new_chain in zip(before.pointers, after.pointers, strict=True):
        if any(a >= 0 and a != b for a, b in zip(old_chain, new_chain, strict=False)) or len(old_chain) > len(
            new_chain
        ):
            return f"a run pointer changed: {old_chain} to {new_chain}"
    return ""


def i15(before: State, after: State, _: Configuration) -> str:
    """A sink's marker never goes back."""
    old, new = before.outside.marker, after.outside.marker
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
}
TOLD: dict[str, Predicate] = {"I12": i12}
STEPS: dict[str, Callable[[State, State, Configuration], str]] = {"I1": i1, "I15": i15}
