"""
The invariants of PROTOCOL.md section 8, one predicate each, run at every write and every read of what they speak about.

Each raises :class:`LogDamagedError` with the id of the invariant, or returns nothing. I1 is checked by the codec (checksums) and by a create that meets
other bytes than its own where the bytes are a function of what they describe; I7, I8, I10 to I13 are properties of the whole machine, held by its tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_provider_streamsem.errors import DataError, LogDamagedError, StageError
from airflow_provider_streamsem.protocol import offsets
from airflow_provider_streamsem.protocol.entries import (
    Committable,
    DataFile,
    Marker,
    Outcome,
    Plan,
    Receipts,
    RunPointer,
    Segment,
)
from airflow_provider_streamsem.protocol.offsets import Offsets, Ranges


def check_i1(key: str, stored: bytes, expected: bytes) -> None:
    """An object whose bytes are a function of what it describes holds exactly those bytes."""
    if stored != expected:
        raise LogDamagedError(
            "an object holds other bytes than every writer of it would write", invariant="I1", key=key
        )


def check_i2(plan: Plan | None, outcome: Outcome) -> None:
    """An outcome stands on a plan of the same version."""
    if plan is None or plan.version != outcome.version:
        raise LogDamagedError("an outcome stands without its plan", invariant="I2", version=outcome.version)


def check_i2_receipts(plan: Plan, *, owes: bool) -> None:
    """No plan follows a commit that owes receipts before they are there."""
    if owes:
        raise LogDamagedError(
            "a plan follows a commit whose receipts are not there", invariant="I2", version=plan.version
        )


def check_i3_plan(plan: Plan, *, after: str) -> None:
    """A plan names the sha256 of the outcome before it."""
    if plan.previous != after:
        raise LogDamagedError(
            "a plan does not follow the outcome before it",
            invariant="I3",
            version=plan.version,
            previous=plan.previous,
            stored=after,
        )


def check_i3_outcome(outcome: Outcome, *, plan_sha: str) -> None:
    """An outcome names the sha256 of its plan."""
    if outcome.plan != plan_sha:
        raise LogDamagedError(
            "an outcome was decided for another plan",
            invariant="I3",
            version=outcome.version,
            named=outcome.plan,
            stored=plan_sha,
        )


def check_i4(plan: Plan, *, closed: int, next: Offsets) -> None:
    """A plan is for the version after the closed one, and a batch's ranges start where the last outcome ended."""
    if plan.version != closed + 1:
        raise LogDamagedError(
            "a plan is for another version than its place", invariant="I4", version=plan.version, expected=closed + 1
        )
    if (plan.kind == "redo") != (plan.replaces is not None) or (plan.replaces and plan.replaces.version > closed):
        raise LogDamagedError(
            "a redo, and only a redo, replaces an earlier version", invariant="I20", version=plan.version
        )
    if plan.kind == "redo":
        return
    for partition, (start, end) in plan.ranges.items():
        if start != offsets.position(next, partition) or end <= start:
            raise LogDamagedError(
                "a plan's range does not start where the last outcome ended, or is empty",
                invariant="I4",
                version=plan.version,
                partition=partition,
                range=(start, end),
                next=offsets.position(next, partition),
            )


def check_carried(plan: Plan, outcome: Outcome) -> None:
    """The gaps of a commit, and what it replaces, are its plan's, the gaps in order and inside its ranges; an abort has neither (I5, I20)."""
    if outcome.replaces != (plan.replaces if outcome.committed else None):
        raise LogDamagedError(
            "an outcome replaces another version than its plan", invariant="I20", version=plan.version
        )
    if dict(outcome.gaps) != (dict(plan.gaps) if outcome.committed else {}):
        raise LogDamagedError("an outcome declares other gaps than its plan", invariant="I5", version=plan.version)
    for partition, gaps in plan.gaps.items():
        start, end = plan.ranges.get(partition, (0, 0))
        for first, last in gaps:
            if not start <= first < last <= end:
                what = "a plan's gaps overlap, are empty, or lie outside its ranges"
                raise LogDamagedError(
                    what, invariant="I5", version=plan.version, partition=partition, gap=(first, last)
                )
            start = last


def next_after(plan: Plan, *, before: Offsets, committed: bool) -> dict[str, int]:
    """Where the offsets stand after a plan's outcome: the rule that writers follow and :func:`check_next` holds them to."""
    if plan.kind == "redo":
        return offsets.advance(before, {})
    return offsets.advance(before, offsets.ends(plan.ranges) if committed else offsets.starts(plan.ranges))


def check_next(plan: Plan, outcome: Outcome, *, before: Offsets) -> None:
    """After a commit of a batch the offsets stand at the plan's ends, after all else where they stood; other partitions are carried (I4, I5)."""
    expected = next_after(plan, before=before, committed=outcome.committed)
    if dict(outcome.next) != expected:
        raise LogDamagedError(
            "an outcome's next offsets are not those of its plan",
            invariant="I4",
            version=plan.version,
            next=dict(outcome.next),
            expected=expected,
        )


def check_i5(ranges: Iterable[Ranges], *, genesis: Offsets, next: Offsets) -> None:
    """Committed ranges tile ``[genesis, next)`` without hole or overlap; ``ranges`` in order of versions."""
    reached = dict(genesis)
    for item in ranges:
        for partition, (start, end) in item.items():
            if start != offsets.position(reached, partition):
                raise LogDamagedError(
                    "committed ranges overlap or leave a gap",
                    invariant="I5",
                    partition=partition,
                    range=(start, end),
                    reached=offsets.position(reached, partition),
                )
            reached[partition] = end
    if offsets.between(reached, next) or offsets.between(next, reached):
        raise LogDamagedError(
            "committed ranges do not end where the head stands", invariant="I5", reached=reached, next=dict(next)
        )


def check_i6(file: DataFile, *, version: int, found_bytes: int | None, found_checksum: str | None) -> None:
    """A visible file exists with the recorded size and checksum. ``None`` means absent, or not looked at for the checksum."""
    if found_bytes is None:
        raise LogDamagedError("a visible file is missing", invariant="I6", version=version, key=file.key)
    if found_bytes != file.bytes:
        raise LogDamagedError(
            "a visible file has another size",
            invariant="I6",
            version=version,
            key=file.key,
            bytes=found_bytes,
            recorded=file.bytes,
        )
    if found_checksum is not None and found_checksum != file.checksum:
        raise LogDamagedError(
            "a visible file was swapped or changed",
            invariant="I6",
            version=version,
            key=file.key,
            checksum=found_checksum,
            recorded=file.checksum,
        )


def check_i9(segment: Segment, expected: Segment) -> None:
    """A segment equals the fold of its outcomes."""
    if segment != expected:
        raise LogDamagedError(
            "a segment is not the fold of its versions", invariant="I9", level=segment.level, index=segment.index
        )


def check_i14(outcome: Outcome) -> None:
    """Committed counts add up, and rows of a manifest are those of its files."""
    counts = outcome.counts
    if outcome.committed and counts.get("read", 0) != counts.get("parsed", 0) + counts.get("quarantined", 0):
        raise LogDamagedError(
            "rows read are not rows parsed plus rows quarantined",
            invariant="I14",
            version=outcome.version,
            counts=dict(counts),
        )
    for name, committable in outcome.sinks.items():
        if not counts.get(f"written.{name}", -1) == committable.rows == sum(f.rows for f in committable.files):
            raise LogDamagedError(
                "rows of a sink differ between its counts, its manifest and its files",
                invariant="I14",
                version=outcome.version,
                sink=name,
            )


def check_i14_staged(
    counts: Mapping[str, int], sinks: Mapping[str, Committable], *, handed: Mapping[str, int | None], rows: str
) -> None:
    """
    The reconciliation of an attempt, before its manifest is sent.

    :param handed: sink → rows that the engine handed to the writer, as the engine counted them; ``None`` where it counted nothing
    :param rows: the pipeline's declaration; ``"filter"`` binds the counts across the transform
    :raises StageError: rows handed over and rows in the files differ: the attempt is void, another may fare better (a lost executor repeats tasks)
    :raises DataError: the transform breaks its declaration: the attempt is void
    """
    for name, committable in sinks.items():
        # What the engine did not count may only be nothing: a plan without rows may lose its counter.
        if (handed.get(name) or 0) != committable.rows:
            raise StageError(
                "a writer was handed another number of rows than its files hold; nothing became visible",
                invariant="I14",
                sink=name,
                handed=handed.get(name),
                files=committable.rows,
            )
        if rows == "filter" and counts["parsed"] != counts["filtered"] + counts.get("duplicates", 0) + committable.rows:
            raise DataError(
                'the transform declares rows="filter" but rows parsed are not rows filtered, duplicates and rows written',
                invariant="I14",
                sink=name,
                parsed=counts["parsed"],
                filtered=counts["filtered"],
                written=committable.rows,
            )


def check_i15(outcome: Outcome, *, before: Mapping[str, Marker]) -> None:
    """
    An outcome carries the markers of the receipts before it.

    :param before: those of the newest earlier receipts
    """
    if dict(outcome.markers) != dict(before):
        raise LogDamagedError(
            "an outcome carries other markers than the receipts before it",
            invariant="I15",
            version=outcome.version,
            markers=_versions(outcome.markers),
            expected=_versions(before),
        )


def check_i15_receipts(receipts: Receipts, outcome: Outcome) -> None:
    """Receipts carry the markers of their outcome, and their own commit for sinks that set theirs for it."""
    own = Marker(version=receipts.version, outcome=receipts.outcome)
    for name in {*receipts.markers, *outcome.markers}:
        now, before = receipts.markers.get(name), outcome.markers.get(name)
        if now != before and not (now == own and name in outcome.publish):
            raise LogDamagedError(
                "receipts carry another marker of a sink than their outcome",
                invariant="I15",
                version=receipts.version,
                sink=name,
                marker=None if now is None else now.version,
                expected=None if before is None else before.version,
            )


def _versions(markers: Mapping[str, Marker]) -> dict[str, int]:
    return {name: marker.version for name, marker in markers.items()}


def check_i16(pointer: RunPointer, plan: Plan) -> None:
    """The run pointer of a decided plan names that plan's version."""
    if (pointer.run_key, pointer.j, pointer.version) != (plan.run_key, plan.j, plan.version):
        raise LogDamagedError(
            "a run's pointer names another version than its plan",
            invariant="I16",
            version=plan.version,
            pointer=pointer.version,
        )


def check_i18(receipts: Receipts, outcome: Outcome, *, outcome_sha: str) -> None:
    """Receipts are of the commit that is stored, and answer for each of the sinks that it names."""
    if (receipts.version, receipts.outcome) != (outcome.version, outcome_sha) or not outcome.owes:
        raise LogDamagedError("receipts are of another outcome", invariant="I18", version=outcome.version)
    if set(receipts.sinks) != set(outcome.publish):
        raise LogDamagedError(
            "receipts answer for other sinks than the commit names",
            invariant="I18",
            version=outcome.version,
            sinks=sorted(receipts.sinks),
            named=list(outcome.publish),
        )


def check_i20(plan: Plan, replaced: Plan, outcome: Outcome) -> None:
    """A redo has ranges and gaps of the commit that it replaces, and knows its counts."""
    same = plan.ranges == replaced.ranges and plan.gaps == replaced.gaps
    if plan.replaces is None or not (same and outcome.committed and plan.replaces.counts == outcome.counts):
        raise LogDamagedError(
            "a redo is not of the commit that it replaces",
            invariant="I20",
            version=plan.version,
            replaces=replaced.version,
        )


def check_i19(plan: Plan) -> None:
    """A drain plans nothing beyond its target; a single batch is the first committed plan of its run."""
    if plan.target is not None and not offsets.within(plan.ranges, plan.target):
        raise LogDamagedError(
            "a drain's plan reads beyond its target", invariant="I19", version=plan.version, target=dict(plan.target)
        )
    if plan.target is None and plan.run_counts:
        raise LogDamagedError("the run of a single batch committed twice", invariant="I19", version=plan.version)


def check_follows(version: int, last: int) -> None:
    """Versions come one after the other (R1)."""
    if version != last + 1:
        raise LogDamagedError("a version is missing or doubled", invariant="I5", expected=last + 1, found=version)
