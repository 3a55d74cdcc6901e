"""An erasure: stores the rows of earlier commits again without some of them, and lets the versions before it expire."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from airflow_provider_streamsem.protocol.entries import (
    SPARSE,
    Committable,
    Json,
    Kind,
    Outcome,
    Plan,
    Quarantine,
    SegmentRewrite,
    StagedManifest,
)
from airflow_provider_streamsem.protocol.kinds.rewrite import has_its_rows, names_earlier_commits, segment_of
from airflow_provider_streamsem.protocol.offsets import Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedFiles:
    """
    The files of some commits of one sink, from which rows are erased.

    :param sink: the sink
    :param commits: versions in ascending order
    :param rows: the number of rows that these commits wrote
    :param erased: the number of these rows that this version or an earlier one has erased
    :param output: the new files, with the other rows; ``None`` in a plan
    """

    sink: str
    commits: tuple[int, ...]
    rows: int
    erased: int
    output: Committable | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedRecords:
    """
    The quarantined records of a version, some of which are erased.

    :param version: the version that quarantined the records
    :param kept: the number of records that are not erased
    :param stored: the object with these records, which takes the place of the objects of the version; ``None`` in a plan
    """

    version: int
    kept: int
    stored: Quarantine | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Erase(Kind):
    """
    The payload of an erasure. It contains neither erased values nor a digest of them.

    :param files: the files with rows to erase; ``None``: only quarantined records or tombstones are erased
    :param quarantine: the versions with quarantined records to erase, in ascending order
    :param tombstones: sink → the number of tombstones to erase
    :param state: the tombstones of all sinks after the erasure, as in the field ``state`` of an outcome; ``None`` in a plan, and if no tombstone is erased
    """

    kind = "erase"
    name = "erasure"
    label = "erasure"
    color = "orange.solid"
    invariant = "I26"
    stages = True
    chains = ("rewrite", "erase")
    files: ErasedFiles | None = field(default=None, metadata=SPARSE)
    quarantine: tuple[ErasedRecords, ...] = field(default=(), metadata=SPARSE)
    tombstones: Mapping[str, int] = field(default_factory=dict, metadata=SPARSE)
    state: Json = field(default=None, metadata=SPARSE)

    def newest(self, version: int) -> Mapping[str, int]:
        """Return the references, too, with which the versions before the erasure expire: no reader and no rollback finds the erased rows again (W46)."""
        return {**Kind.newest(self, version), "expire": version}

    def rewrites(self, version: int) -> tuple[SegmentRewrite, ...]:
        return () if self.files is None else (segment_of(self.files, version),)

    def state_after(self, state: Json) -> Json:
        if not self.tombstones:
            return state
        fields = state if isinstance(state, Mapping) else {}  # the state of a forged outcome may be any JSON
        others = {name: value for name, value in fields.items() if name != "tombstones"}
        return {**others, **({"tombstones": self.state} if self.state else {})} or None

    def is_staged_by(self, manifest: StagedManifest) -> bool:
        """Return whether the attempt has written the rows and the records to keep, and nothing else."""
        files = set() if self.files is None else {self.files.sink}
        rows = sum(records.kept for records in self.quarantine)
        return {*manifest.sinks} == files and manifest.quarantine.rows == rows and self.staged(manifest)._is_complete

    @property
    def _is_complete(self) -> bool:
        stored = [0 if records.stored is None else records.stored.rows for records in self.quarantine]
        kept = [records.kept for records in self.quarantine]
        return (self.files is None or has_its_rows(self.files)) and stored == kept

    def staged(self, manifest: StagedManifest) -> Erase:
        files = self.files and replace(self.files, output=manifest.sinks.get(self.files.sink))
        quarantine = tuple(_stored(manifest.quarantine, self.quarantine))
        return replace(self, files=files, quarantine=quarantine, state=manifest.state)

    def is_outcome_of(self, planned: Kind) -> bool:
        return self._planned == planned

    @property
    def _planned(self) -> Erase:
        files = self.files and replace(self.files, output=None)
        quarantine = tuple(replace(records, stored=None) for records in self.quarantine)
        return replace(self, files=files, quarantine=quarantine, state=None)

    def describe(self) -> str:
        commits = [] if self.files is None else [f"rows of {len(self.files.commits)} commits of sink {self.files.sink}"]
        records = [f"quarantined records of {len(self.quarantine)} versions"] if self.quarantine else []
        tombstones = [f"{count} tombstones of sink {sink}" for sink, count in sorted(self.tombstones.items())]
        return f"erasure of {', '.join([*commits, *records, *tombstones])}"

    def check_plan(self, plan: Plan, *, before: Outcome | None, next: Offsets) -> None:
        """Check that the erasure names earlier versions, each once, that it has no output, and that it erases something (I26)."""
        Kind.check_plan(self, plan, before=before, next=next)
        files, versions = self.files, [records.version for records in self.quarantine]
        is_valid = (
            (files is None or (names_earlier_commits(files, plan.version) and 0 < files.erased <= files.rows))
            and versions == sorted({*versions})
            and all(0 <= version < plan.version for version in versions)
            and all(records.kept >= 0 for records in self.quarantine)
            and all(count > 0 for count in self.tombstones.values())
            and (files is not None or self.quarantine or self.tombstones)
        )
        if not is_valid or self != self._planned:
            summary = (
                "the plan of an erasure has output, erases nothing, or names versions that are not before it, or twice"
            )
            raise self.damaged(summary, plan.version)

    def check_outcome(self, outcome: Outcome) -> None:
        """Check that the commit has new files and objects, and no other output (I26)."""
        Kind.check_outcome(self, outcome)
        is_lacking = self.files is not None and self.files.output is None
        if is_lacking or any(records.stored is None for records in self.quarantine):
            raise self.damaged("the outcome of an erasure lacks output", outcome.version)

    def check_commit(self, plan: Plan, outcome: Outcome, *, before: Outcome | None) -> None:
        """Check that the new files and objects have the planned numbers of rows and records, and that the commit changes nothing else (I26)."""
        Kind.check_commit(self, plan, outcome, before=before)
        if not self._is_complete:
            raise self.damaged("an erasure has stored other numbers of rows or records than its plan", plan.version)


def kept_in_quarantine(erasures: Iterable[Erase]) -> dict[int, Quarantine]:
    """
    Return version → the object that has taken the place of its quarantined records.

    :param erasures: in ascending order of versions
    """
    named = (records for erasure in erasures for records in erasure.quarantine)
    return {records.version: records.stored for records in named if records.stored is not None}


def _stored(quarantine: Quarantine, planned: tuple[ErasedRecords, ...]) -> Iterator[ErasedRecords]:
    """An attempt writes one object for each version with records to keep, in this order."""
    objects = iter(quarantine.keys)
    for records in planned:
        keys = tuple(key for key in [next(objects, None)] if key is not None) if records.kept else ()
        yield replace(records, stored=Quarantine(rows=records.kept if keys else 0, keys=keys))
