"""
Checks of the invariants of PROTOCOL.md, section 8. Writers and readers call them for every entry that they write or read.

Each check returns ``None`` or raises :class:`LogDamagedError` with the id of the invariant. The codec also checks I1 through checksums. :func:`check_i1`
checks the objects whose bytes are a function of their key. I7, I8 and I10 to I13 are properties of the whole state machine, which its tests check.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

from airflow_provider_streamsem.errors import DataError, LogDamagedError, StageError
from airflow_provider_streamsem.protocol import offsets
from airflow_provider_streamsem.protocol.entries import (
    Altered,
    Committable,
    DataFile,
    Json,
    Marker,
    Outcome,
    Plan,
    Receipts,
    Rewritten,
    RunPointer,
    Segment,
)
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


def check_i4(plan: Plan, *, closed: int, next: Offsets) -> None:
    """
    Check that a plan follows the newest closed version (I4, I20). The ranges of a batch must start at ``next``.

    :param closed: the newest closed version; -1 if there is none
    :param next: the ``next`` offsets of the newest outcome; for version 0 the initial offsets
    """
    if plan.version != closed + 1:
        raise LogDamagedError(
            "a plan's version does not follow the newest closed version",
            invariant="I4",
            version=plan.version,
            expected=closed + 1,
        )
    if (plan.kind == "reprocess") != (plan.replaces is not None) or (plan.replaces and plan.replaces.version > closed):
        raise LogDamagedError(
            "a plan of kind `reprocess`, and no other plan, must replace an earlier version",
            invariant="I20",
            version=plan.version,
        )
    if plan.kind != "batch":
        return
    if plan.watermark_ms is not None and plan.ranges:
        raise LogDamagedError(
            "a plan has both ranges and a watermark; only a no-data batch, which has no ranges, may set a watermark",
            invariant="I4",
            version=plan.version,
        )
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
    """
    Check that a commit has the ``gaps`` and ``replaces`` of its plan, and that an abort has none (I5, I20).

    The gaps of a partition must be in ascending order, must not overlap, and must be inside the partition's range.
    """
    if outcome.replaces != (plan.replaces if outcome.committed else None):
        raise LogDamagedError(
            "an outcome replaces another version than its plan", invariant="I20", version=plan.version
        )
    if outcome.rolled_back != (plan.rolled_back if outcome.committed else None):
        raise LogDamagedError(
            "an outcome rolls back to another position than its plan", invariant="I21", version=plan.version
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


def next_after(plan: Plan, *, before: Offsets, committed: bool) -> dict[str, int]:
    """
    Return the ``next`` offsets of the outcome of a plan. Writers compute them with this function, and :func:`check_next` checks them with it.

    :param before: the ``next`` offsets before the plan
    :param committed: whether the outcome is a commit
    """
    if plan.rolled_back is not None and committed:
        return offsets.advance(before, plan.rolled_back.next)
    if plan.altered is not None and committed:
        return offsets.advance(before, plan.altered.offsets)
    if plan.kind != "batch":
        return offsets.advance(before, {})
    return offsets.advance(before, offsets.ends(plan.ranges) if committed else offsets.starts(plan.ranges))


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

    :param counts: row counts of the attempt by name
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
                "the rows passed to a writer do not equal the rows in its files; nothing became visible",
                invariant="I14",
                sink=name,
                passed_to_writer=passed_to_writer.get(name),
                files=committable.rows,
            )
        if rows == "filter" and counts["parsed"] != counts["filtered"] + counts.get("duplicates", 0) + committable.rows:
            raise DataError(
                'the pipeline declares rows="filter", but the rows parsed are not the rows filtered + duplicates + rows written; nothing became visible',
                invariant="I14",
                sink=name,
                parsed=counts["parsed"],
                filtered=counts["filtered"],
                written=committable.rows,
            )


def check_i15(outcome: Outcome, *, before: Mapping[str, Marker]) -> None:
    """
    Check that an outcome has the markers of the newest receipts before it. An alter has those of the sinks that it does not remove.

    :param before: markers of the newest earlier receipts
    """
    before = altered_markers(before, outcome.altered)
    if dict(outcome.markers) != before:
        raise LogDamagedError(
            "an outcome carries other markers than the receipts before it",
            invariant="I15",
            version=outcome.version,
            markers=_versions(outcome.markers),
            expected=_versions(before),
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


def check_i20(plan: Plan, replaced: Plan, outcome: Outcome) -> None:
    """Check that a reprocessing run has the ranges, gaps and watermark of the commit that it replaces, and records the counts of that commit."""
    same = (plan.ranges, plan.gaps, plan.watermark_ms) == (replaced.ranges, replaced.gaps, replaced.watermark_ms)
    if plan.replaces is None or not (same and outcome.committed and plan.replaces.counts == outcome.counts):
        raise LogDamagedError(
            "a reprocessing run does not match the commit that it replaces",
            invariant="I20",
            version=plan.version,
            replaces=replaced.version,
        )


def check_i21_plan(plan: Plan, *, next: Offsets) -> None:
    """
    Check that a plan of kind ``rollback``, and no other plan, names a position, which is at or below the offsets of the head in every partition (I21).

    :param next: the ``next`` offsets before the plan
    """
    found = plan.rolled_back
    if (plan.kind == "rollback") != (found is not None):
        raise LogDamagedError(
            "a plan of kind `rollback`, and no other plan, must name a position", invariant="I21", version=plan.version
        )
    if found is None:
        return
    is_earlier = 0 <= found.to < plan.version and set(found.next) == set(next) and offsets.reached(next, found.next)
    if not is_earlier or plan.ranges or plan.gaps:
        raise LogDamagedError(
            "a rollback has ranges, or a position that is not before it",
            invariant="I21",
            version=plan.version,
            to=found.to,
        )


def check_i21(plan: Plan, outcome: Outcome | None, restored: Outcome, *, counts: Mapping[str, int]) -> None:
    """
    Check a rollback against the version to which it returns.

    :param outcome: the outcome of the rollback; ``None`` if it is open
    :param restored: the outcome of the version to which it returns
    :param counts: the counts that the versions in between added to the totals
    """
    found = plan.rolled_back
    expected = (
        {} if found is None else {partition: offsets.position(restored.next, partition) for partition in found.next}
    )
    has_state = outcome is None or not outcome.committed or outcome.state == restored.state
    if found is None or not (found.next == expected and has_state and dict(found.counts) == dict(counts)):
        raise LogDamagedError(
            "a rollback does not match the version to which it returns",
            invariant="I21",
            version=plan.version,
            to=restored.version,
        )


def newest(
    kind: Literal["rollback", "alter", "rewrite"], plan: Plan, *, before: Outcome | None, committed: bool
) -> int | None:
    """
    Return the field ``newest_rollback``, ``newest_alter`` or ``newest_rewrite`` of the outcome of a plan.

    :param before: the outcome before the plan
    :param committed: whether the outcome is a commit
    """
    if plan.kind == kind and committed:
        return plan.version
    found: int | None = None if before is None else getattr(before, f"newest_{kind}")
    return found


def check_newest_rollback(plan: Plan, outcome: Outcome, *, before: Outcome | None) -> None:
    """Check that an outcome names the newest rollback (I21)."""
    expected = newest("rollback", plan, before=before, committed=outcome.committed)
    if outcome.newest_rollback != expected:
        raise LogDamagedError(
            "an outcome does not name the newest rollback",
            invariant="I21",
            version=plan.version,
            newest_rollback=outcome.newest_rollback,
            expected=expected,
        )


def check_i22_plan(plan: Plan, *, next: Offsets) -> None:
    """
    Check that a plan of kind ``alter``, and no other plan, names changes, that it has no ranges, and that its offsets are those of new partitions (I22).

    :param next: the ``next`` offsets before the plan
    """
    found = plan.altered
    if (plan.kind == "alter") != (found is not None):
        raise LogDamagedError(
            "a plan of kind `alter`, and no other plan, must name changes", invariant="I22", version=plan.version
        )
    if found is None:
        return
    if plan.ranges or plan.gaps or plan.version == 0 or found.offsets.keys() & next.keys():
        raise LogDamagedError(
            "an alter has ranges, is the first version, or moves the offset of a partition that the log has",
            invariant="I22",
            version=plan.version,
        )


def check_i22(plan: Plan, outcome: Outcome, *, before: Outcome | None) -> None:
    """
    Check that an outcome names the newest alter. A commit of an alter has the spec, the state and the columns that follow from its plan (I22).

    :param before: the outcome before the plan
    """
    expected = newest("alter", plan, before=before, committed=outcome.committed)
    altered = plan.altered if outcome.committed else None
    is_same = (outcome.altered, outcome.newest_alter) == (altered, expected)
    if altered is not None and before is not None:
        is_same &= (
            outcome.spec == plan.spec
            and outcome.state == altered_state(before.state, altered)
            and dict(outcome.schemas) == altered_schemas(before.schemas, altered)
        )
    if not is_same:
        raise LogDamagedError(
            "an outcome does not name the newest alter, or does not follow from the plan of an alter",
            invariant="I22",
            version=plan.version,
            newest_alter=outcome.newest_alter,
            expected=expected,
        )


def altered_state(state: Json, altered: Altered) -> Json:
    """Return a state without the fields that an alter drops; ``None`` if no field is left."""
    kept = {name: part for name, part in (state or {}).items() if name not in altered.state}
    return kept or None


def altered_schemas(schemas: Mapping[str, str], altered: Altered) -> dict[str, str]:
    """Return the columns of the sinks that an alter does not remove."""
    return {name: schema for name, schema in schemas.items() if name not in altered.removed}


def altered_markers(markers: Mapping[str, Marker], altered: Altered | None) -> dict[str, Marker]:
    """Return the markers after an alter: those of the sinks that it does not remove. ``altered`` is ``None`` for any other outcome."""
    return {name: marker for name, marker in markers.items() if altered is None or name not in altered.removed}


def names_earlier_commits(rewritten: Rewritten, version: int) -> bool:
    """Return whether a rewrite names versions before its own, each once and in ascending order (I23)."""
    commits = rewritten.commits
    return bool(commits) and [*commits] == sorted({*commits}) and commits[0] >= 0 and commits[-1] < version


def has_its_rows(rewritten: Rewritten) -> bool:
    """Return whether a committed rewrite has files with as many rows as it names (I23)."""
    output = rewritten.output
    return output is not None and rewritten.rows == output.rows == sum(file.rows for file in output.files)


def check_i23_plan(plan: Plan) -> None:
    """Check that a plan of kind ``rewrite``, and no other plan, names earlier commits in ascending order, and that it has no ranges (I23)."""
    found = plan.rewritten
    if (plan.kind == "rewrite") != (found is not None):
        raise LogDamagedError(
            "a plan of kind `rewrite`, and no other plan, must name the commits that it rewrites",
            invariant="I23",
            version=plan.version,
        )
    if found is None:
        return
    if not names_earlier_commits(found, plan.version) or found.output is not None or plan.ranges or plan.gaps:
        raise LogDamagedError(
            "the plan of a rewrite has ranges, gaps or output, or its `commits` are empty, not in ascending order, or not before it",
            invariant="I23",
            version=plan.version,
        )


def check_i23(plan: Plan, outcome: Outcome, *, before: Outcome | None) -> None:
    """
    Check that an outcome names the newest rewrite. A commit of a rewrite has the planned number of rows, and changes nothing but the files (I23).

    :param before: the outcome before the plan
    """
    expected = newest("rewrite", plan, before=before, committed=outcome.committed)
    if outcome.newest_rewrite != expected:
        raise LogDamagedError(
            "an outcome does not name the newest rewrite",
            invariant="I23",
            version=plan.version,
            newest_rewrite=outcome.newest_rewrite,
            expected=expected,
        )
    planned, found = plan.rewritten if outcome.committed else None, outcome.rewritten
    is_same = (planned is None) == (found is None)
    if planned is not None and found is not None and before is not None:
        is_same &= (
            found == replace(planned, output=found.output)
            and has_its_rows(found)
            and outcome.state == before.state
            and dict(outcome.schemas) == dict(before.schemas)
        )
    if not is_same:
        raise LogDamagedError(
            "the outcome of a rewrite has another number of rows than its plan, or it changes the columns or the state",
            invariant="I23",
            version=plan.version,
        )


def check_i24_plan(plan: Plan, *, before: Outcome | None) -> None:
    """
    Check that a plan of kind ``expire``, and no other plan, raises the oldest readable version, and that it has no ranges (I24).

    :param before: the outcome before the plan
    """
    found = plan.expires
    if (plan.kind == "expire") != (found is not None):
        raise LogDamagedError(
            "a plan of kind `expire`, and no other plan, must name a version below which versions expire",
            invariant="I24",
            version=plan.version,
        )
    if found is None:
        return
    reached = 0 if before is None else before.oldest_readable or 0
    if plan.ranges or plan.gaps or not reached < found < plan.version:
        raise LogDamagedError(
            "the plan of an expiry has ranges or gaps, or its oldest readable version does not increase, or is not an earlier version",
            invariant="I24",
            version=plan.version,
            expires=found,
            before=reached,
        )


def check_i24(plan: Plan, outcome: Outcome, *, before: Outcome | None) -> None:
    """
    Check that an outcome names the oldest readable version. A commit of an expiry changes nothing else (I24).

    :param before: the outcome before the plan
    """
    expected = oldest_readable(plan, before=before, committed=outcome.committed)
    is_same = outcome.oldest_readable == expected
    is_same &= outcome.expires == (plan.expires if outcome.committed else None)
    if outcome.expires is not None and before is not None:
        is_same &= outcome.state == before.state and dict(outcome.schemas) == dict(before.schemas)
    if not is_same:
        raise LogDamagedError(
            "an outcome does not name the oldest readable version, or an expiry changes the columns or the state",
            invariant="I24",
            version=plan.version,
            oldest_readable=outcome.oldest_readable,
            expected=expected,
        )


def oldest_readable(plan: Plan, *, before: Outcome | None, committed: bool) -> int | None:
    """
    Return the field ``oldest_readable`` of the outcome of a plan.

    :param before: the outcome before the plan
    :param committed: whether the outcome is a commit
    """
    if plan.kind == "expire" and committed:
        return plan.expires
    return None if before is None else before.oldest_readable


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
