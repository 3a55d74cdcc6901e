"""
Checks of the invariants of PROTOCOL.md, section 8. Writers and readers call them for every entry that they write or read.

Each check returns ``None`` or raises :class:`LogDamagedError` with the id of the invariant. The codec also checks I1 through checksums. :func:`check_i1`
checks the objects whose bytes are a function of their key. I7, I8 and I10 to I13 are properties of the whole state machine, which its tests check.
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
from airflow_provider_streamsem.protocol.kinds.registry import KINDS
from airflow_provider_streamsem.protocol.offsets import Offsets, Ranges


def check_i1(key: str, stored: bytes, expected: bytes) -> None:
    """Check that a stored object has the bytes that every writer would write under its key."""
    if stored != expected:
        raise LogDamagedError(
            "an object's bytes differ from the bytes that every writer would write", invariant="I1", key=key
        )


def check_i2(plan: Plan, outcome: Outcome) -> None:
    """Check that an outcome has a plan of the same version."""
    if plan.version != outcome.version:
        raise LogDamagedError("an outcome has no plan of the same version", invariant="I2", version=outcome.version)


def check_i2_receipts(plan: Plan, *, has_pending_publishes: bool) -> None:
    """Check that no plan follows a commit with pending publishes."""
    if has_pending_publishes:
        raise LogDamagedError(
            "a plan follows a commit whose receipts are missing", invariant="I2", version=plan.version
        )


def check_i3_plan(plan: Plan, *, after: str) -> None:
    """Check that a plan names the sha256 of the previous outcome."""
    if plan.previous != after:
        raise LogDamagedError(
            "a plan does not name the sha256 of the previous outcome",
            invariant="I3",
            version=plan.version,
            previous=plan.previous,
            stored=after,
        )


def check_i3_outcome(outcome: Outcome, *, plan_sha: str) -> None:
    """Check that an outcome names the sha256 of its plan."""
    if outcome.plan != plan_sha:
        raise LogDamagedError(
            "an outcome does not name the sha256 of its plan",
            invariant="I3",
            version=outcome.version,
            named=outcome.plan,
            stored=plan_sha,
        )


def check_i4(plan: Plan, *, closed: int) -> None:
    """
    Check that a plan follows the newest closed version.

    :param closed: the newest closed version; -1 if there is none
    """
    if plan.version != closed + 1:
        raise LogDamagedError(
            "a plan's version does not follow the newest closed version",
            invariant="I4",
            version=plan.version,
            expected=closed + 1,
        )


def check_commit(plan: Plan, outcome: Outcome, *, before: Outcome | None) -> None:
    """
    Check what an outcome does (I20 to I25), that it names the newest commit of each kind, and that it has the gaps of its plan; an abort has none (I5).

    The gaps of a partition must be in ascending order, must not overlap, and must be inside the partition's range.
    """
    if outcome.work is None:
        _check_abort(plan, outcome, before=before)
    else:
        outcome.work.check_commit(plan, outcome, before=before)
    expected = newest_after(plan, before=before, committed=outcome.committed)
    if dict(outcome.newest) != expected:
        # The kind whose reference is wrong; that of the plan first, because a fault of the plan is the most probable one.
        names = [plan.work.kind, *sorted({*outcome.newest, *expected})]
        wrong = next(name for name in names if outcome.newest.get(name) != expected.get(name))
        raise LogDamagedError(
            "an outcome does not name the newest commit of a kind, or the oldest readable version",
            invariant=KINDS[wrong].invariant if wrong in KINDS else "I20",
            version=plan.version,
            kind=wrong,
            newest=outcome.newest.get(wrong),
            expected=expected.get(wrong),
        )
    if dict(outcome.gaps) != (dict(plan.gaps) if outcome.committed else {}):
        raise LogDamagedError("an outcome declares other gaps than its plan", invariant="I5", version=plan.version)
    for partition, gaps in plan.gaps.items():
        start, end = plan.ranges.get(partition, (0, 0))
        for first, last in gaps:
            if not start <= first < last <= end:
                summary = "a plan's gaps overlap, are empty, or are outside its ranges"
                raise LogDamagedError(
                    summary, invariant="I5", version=plan.version, partition=partition, gap=(first, last)
                )
            start = last


def _check_abort(plan: Plan, outcome: Outcome, *, before: Outcome | None) -> None:
    """Check that an abort changes nothing but the offsets (I25). The state before version 0 is that of a fork, which the entries do not have."""
    hint = None if before is None else before.hint
    is_unchanged = outcome.hint == (plan.hint if plan.work.reads_new_records else hint)
    for name in ("state", "schemas", "spec", "transform", "watermark_ms") if before is not None else ():
        is_unchanged = is_unchanged and getattr(outcome, name) == getattr(before, name)
    if not is_unchanged or outcome.sinks or outcome.counts or outcome.publish:
        summary = "an abort has output, or another state, columns, spec or hint than before it"
        raise LogDamagedError(summary, invariant="I25", version=plan.version)


def newest_after(plan: Plan, *, before: Outcome | None, committed: bool) -> dict[str, int]:
    """Return the field ``newest`` of the outcome of a plan. Writers compute it with this function, and :func:`check_commit` checks it with it."""
    found = {} if before is None else dict(before.newest)
    return {**found, **plan.work.newest(plan.version)} if committed else found


def next_after(plan: Plan, *, before: Offsets, committed: bool) -> dict[str, int]:
    """Return the ``next`` offsets of the outcome of a plan. Writers compute them with this function, and :func:`check_next` checks them with it."""
    return offsets.advance(before, plan.work.next_offsets(plan, committed=committed))


def check_next(plan: Plan, outcome: Outcome, *, before: Offsets) -> None:
    """
    Check the ``next`` offsets of an outcome (I4, I5).

    After a committed batch they are the ends of the plan's ranges. After an aborted batch they are the starts of these ranges. A reprocessing run does not
    change them. A rollback returns to those after an earlier version. An alter adds those of new partitions. Partitions that are not in the plan keep their
    offsets.
    """
    expected = next_after(plan, before=before, committed=outcome.committed)
    if dict(outcome.next) != expected:
        raise LogDamagedError(
            "an outcome's next offsets do not follow from its plan",
            invariant="I4",
            version=plan.version,
            next=dict(outcome.next),
            expected=expected,
        )


def check_i5(ranges: Iterable[Ranges], *, initial_offsets: Offsets, next: Offsets) -> None:
    """
    Check that committed ranges cover ``[initial_offsets, next)`` without gap or overlap.

    :param ranges: ranges of the commits, in order of versions
    """
    reached = dict(initial_offsets)
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
            "committed ranges do not end at the next offsets of the head",
            invariant="I5",
            reached=reached,
            next=dict(next),
        )


def check_i6(file: DataFile, *, version: int, found_bytes: int | None, found_checksum: str | None) -> None:
    """
    Check that a visible file exists with the recorded size and checksum.

    :param found_bytes: size of the file; ``None`` if it does not exist
    :param found_checksum: checksum of the file; ``None`` if the caller did not compute it
    """
    if found_bytes is None:
        raise LogDamagedError("a visible file is missing", invariant="I6", version=version, key=file.key)
    if found_bytes != file.bytes:
        raise LogDamagedError(
            "a visible file has another size than recorded",
            invariant="I6",
            version=version,
            key=file.key,
            bytes=found_bytes,
            recorded=file.bytes,
        )
    if found_checksum is not None and found_checksum != file.checksum:
        raise LogDamagedError(
            "a visible file was replaced or changed",
            invariant="I6",
            version=version,
            key=file.key,
            checksum=found_checksum,
            recorded=file.checksum,
        )


def check_i9(segment: Segment, expected: Segment) -> None:
    """Check that a segment equals the segment that its outcomes determine."""
    if segment != expected:
        raise LogDamagedError(
            "a segment differs from the segment that its versions determine",
            invariant="I9",
            level=segment.level,
            index=segment.index,
        )


def check_i14(outcome: Outcome) -> None:
    """Check that the counts of a commit add up, and that the row counts of its sinks match those of their files."""
    counts = outcome.counts
    if outcome.committed and counts.get("read", 0) != counts.get("parsed", 0) + counts.get("quarantined", 0):
        raise LogDamagedError(
            "the rows read do not equal the rows parsed plus the rows quarantined",
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
    counts: Mapping[str, int],
    sinks: Mapping[str, Committable],
    *,
    passed_to_writer: Mapping[str, int | None],
    rows: str,
) -> None:
    """
    Check the row counts of an attempt before its manifest is created.

    :param sinks: sink → its staged output
    :param passed_to_writer: sink → number of rows that the engine passed to the writer, as counted by the engine; ``None`` if it has no count
    :param rows: the pipeline's ``rows`` declaration. With ``"filter"``, the counts before and after the transform must add up
    :raises StageError: the number of rows passed to a writer differs from the number of rows in its files. The attempt was discarded. A retry may succeed,
        because a lost executor, whose tasks Spark repeats, can cause the difference
    :raises DataError: the row counts contradict the declaration. The attempt was discarded
    """
    for name, committable in sinks.items():
        # A missing count is valid only for 0 rows: Spark may drop the counter of a query plan without rows.
        if (passed_to_writer.get(name) or 0) != committable.rows:
            raise StageError(
                "the rows passed to a writer do not equal the rows in its files",
                invariant="I14",
                sink=name,
                passed_to_writer=passed_to_writer.get(name),
                files=committable.rows,
            )
        of_sink = [f"{what}_rows.{name}" for what in ("discarded", "dropped", "quarantined")]
        removed = {what: counts.get(what, 0) for what in ("filtered", "dropped", "duplicates", *of_sink)}
        if rows == "filter" and counts["parsed"] - sum(removed.values()) != committable.rows:
            raise DataError(
                'the pipeline declares rows="filter", but the rows parsed are not the rows removed before and after the transform + the rows written',
                invariant="I14",
                sink=name,
                parsed=counts["parsed"],
                **{what: number for what, number in removed.items() if number},
                written=committable.rows,
            )


def check_i15(outcome: Outcome, *, before: Mapping[str, Marker]) -> None:
    """Check that an outcome has the markers of the newest receipts before it. An alter has those of the sinks that it does not remove."""
    before = before if outcome.work is None else outcome.work.markers_after(before)
    if dict(outcome.markers) != dict(before):
        raise LogDamagedError(
            "an outcome carries other markers than the receipts before it",
            invariant="I15",
            version=outcome.version,
            markers=_versions(outcome.markers),
            expected=_versions(before),
        )


def check_i27(outcome: Outcome, before: Outcome | None) -> None:
    """Check that partitions which were complete before an outcome are complete after it, unless it returns to an earlier version, as a rollback does."""
    known = None if before is None else before.complete
    returns = outcome.work is not None and outcome.work.based_on is not None
    now = outcome.complete
    if known is None or returns:
        return
    is_kept = now is not None and now.since_ms <= known.since_ms
    if now is None or not is_kept or (known.until_ms is not None and not now.has(known.until_ms)):
        raise LogDamagedError(
            "partitions that were complete before an outcome are not complete after it",
            invariant="I27",
            version=outcome.version,
        )


def check_i28(outcome: Outcome, before: Outcome | None) -> None:
    """Check that an outcome names the time that the pipeline has read. ``verify`` checks a version that returns to an earlier one (:class:`Rollback`)."""
    known = () if before is None else before.intervals
    returns = outcome.work is not None and outcome.work.based_on is not None
    if not returns and outcome.intervals != (known if outcome.work is None else outcome.work.intervals_after(known)):
        raise LogDamagedError(
            "the intervals that a pipeline has read do not follow from its versions",
            invariant="I28",
            version=outcome.version,
        )


def check_i15_receipts(receipts: Receipts, outcome: Outcome) -> None:
    """Check that receipts have the markers of their outcome. For a sink whose marker this commit has set, the marker must be this commit."""
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
    """Check that a run pointer and its plan have the same run key, ``j`` and version."""
    if (pointer.run_key, pointer.j, pointer.version) != (plan.run_key, plan.j, plan.version):
        raise LogDamagedError(
            "a run pointer does not match its plan",
            invariant="I16",
            version=plan.version,
            pointer=pointer.version,
        )


def check_i18(receipts: Receipts, outcome: Outcome, *, outcome_sha: str) -> None:
    """Check that receipts belong to the stored commit and contain a result for exactly the sinks that it names."""
    if (receipts.version, receipts.outcome) != (outcome.version, outcome_sha) or not outcome.requires_receipts:
        raise LogDamagedError("receipts do not belong to the stored outcome", invariant="I18", version=outcome.version)
    if set(receipts.sinks) != set(outcome.publish):
        raise LogDamagedError(
            "receipts name other sinks than the commit publishes to",
            invariant="I18",
            version=outcome.version,
            sinks=sorted(receipts.sinks),
            named=list(outcome.publish),
        )


def check_i19(plan: Plan) -> None:
    """Check that a plan of a drain does not exceed the target, and that a run without a target has no earlier commit."""
    if plan.target is not None and not offsets.within(plan.ranges, plan.target):
        raise LogDamagedError(
            "a drain's plan reads beyond its target", invariant="I19", version=plan.version, target=dict(plan.target)
        )
    if plan.target is None and plan.run_counts:
        raise LogDamagedError("the run of a single batch committed twice", invariant="I19", version=plan.version)


def check_follows(version: int, last: int) -> None:
    """Check that versions are consecutive (R1)."""
    if version != last + 1:
        raise LogDamagedError("a version is missing or duplicated", invariant="I5", expected=last + 1, found=version)
