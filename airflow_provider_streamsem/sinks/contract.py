"""The interface of sinks. A new sink is one file with one class, one line in the registry, one conformance fixture and one page of docs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from airflow_provider_streamsem.clock import Clock
from airflow_provider_streamsem.errors import MarkerConflictError, MarkerLostError
from airflow_provider_streamsem.protocol.entries import Committable, Effects, Json, Marker, Receipt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NOTHING = "Nothing was created or applied there; the batch stays committed, and its staged rows are kept"


class Sink(Protocol):
    """
    Where rows become visible.

    * :meth:`stage` writes under paths that contain the attempt id, so that no two attempts share a name (I8); until the outcome nobody reads them.
    * :meth:`collect` is called after the last byte, and returns exactly what the engine was handed, counted in the files themselves.
    * A file, once collected, never changes.
    """

    @property
    def extra(self) -> str:
        """The extra of this package that installs its client library; ``""`` where it needs none."""
        ...

    publishes: ClassVar[bool]
    """whether its rows become visible outside the log, after the decision; then it is a :class:`PublishingSink`"""

    @property
    def delivery(self) -> str:
        """``exactly_once``, ``effectively_once``, ``at_least_once`` or ``at_most_once``: what it keeps of each record through retries, zombies and crashes."""
        ...

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why, one sentence each; where it is less than ``exactly_once``, with the knob that would raise it."""
        ...

    @property
    def format(self) -> str:
        """What Spark's reader calls the format of the files."""
        ...

    @property
    def place(self) -> str:
        """URL of the dataset."""
        ...

    def guarded(self) -> Json:
        """What may not change under one log."""
        ...

    def claim(self, pipeline_uuid: str, log: str, *, new: bool) -> None:
        """
        Mark the dataset as this pipeline's, or find that it is.

        :param new: the log has no version yet, so that a dataset without a mark may be taken
        :raises ConflictError: the dataset belongs to another log, or holds output that no log names
        """
        ...

    def refuse_orphan(self, log: str) -> None:
        """
        Called where the log does not exist: the dataset must not hold output of an earlier log.

        :raises ConflictError: it does
        """
        ...

    def attempt_place(self, version: int, attempt_id: str) -> str:
        """Directory or prefix of one attempt, as the engine's writer takes it."""
        ...

    def accept(self, schema: str) -> str:
        """
        Refuse columns that could not be made visible, and say as which types the rest are to be staged. Called before anything is staged.

        :param schema: schema JSON in Spark's form. A column whose type nothing tells yet is ``void``
        :returns: the same columns, each with its type or the wider one of the sink's table. The engine casts to them, and leaves out what is still ``void``
        :raises DataError: they do not fit the sink
        """
        ...

    def stage(self, frame: DataFrame, version: int, attempt_id: str) -> frozenset[str] | None:
        """
        Write a DataFrame into the attempt's own place. Returns after the last byte.

        :returns: for :meth:`collect`: names below the place of the files that the engine accepted, or ``None`` where nothing else can lie there
        """
        ...

    def collect(self, version: int, attempt_id: str, accepted: frozenset[str] | None = None) -> Committable:
        """
        What was staged, each file counted by reading its footer (formats without one: by reading it).

        :param accepted: what :meth:`stage` answered; ``None``: all that lies in the attempt's place
        :raises StageError: an accepted file is not there
        """
        ...

    def attempts(self, version: int | None = None) -> set[tuple[int, str]]:
        """``(version, attempt_id)`` of every attempt that left anything here, or of one version's; half-written ones too."""
        ...

    def discard(self, version: int, attempt_id: str, *, dry_run: bool = False) -> int:
        """Delete what one attempt left; returns its bytes. Only vacuum calls this, for attempts that have lost."""
        ...

    def identify(self, key: str, format: str) -> tuple[int, str] | None:
        """Bytes and checksum of a file as it lies there now; ``None`` where it is gone."""
        ...

    def count(self, key: str, format: str) -> int:
        """
        Rows of a file, counted anew; 0 where it is gone.

        :raises DataError: it is not a whole file of its format
        """
        ...

    def is_complete(self, committable: Committable) -> bool:
        """Whether every file is there with the recorded size and checksum (W17)."""
        ...


@dataclass(frozen=True, slots=True)
class SinkMarker:
    """
    The newest version that a transactional sink has seen, as the sink itself keeps it.

    :param state: ``applied`` or ``skipped``
    :param outcome: the sha256 of the outcome that set it, or the first digits of it; ``""`` where a user set the marker by hand
    """

    version: int
    state: str
    outcome: str

    def is_of(self, version: int, outcome: str) -> bool:
        """Whether a commit set it."""
        return self.version == version and outcome.startswith(self.outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """
    One sink's part of a decided commit.

    :param pipeline_uuid: with ``sink`` the name of the marker
    :param outcome: sha256 of the bytes of the version's outcome, which the marker keeps
    :param committable: the staged files that are to be published
    :param schema: columns of the staged rows, as schema JSON in Spark's form; ``""`` where no batch has had rows yet
    :param root: the version at the root of a redo's chain; of a batch its own. Rows in the sink carry it
    :param replaced: of a redo, what stands in the sink of its chain; ``None`` of a batch, and where all of the chain was skipped
    :param expected_marker: the newest earlier commit whose receipts say that it set the sink's marker; ``None`` where there is none
    """

    pipeline_uuid: str
    sink: str
    version: int
    outcome: str
    committable: Committable
    schema: str
    root: int
    replaced: Committable | None = None
    expected_marker: Marker | None = None

    @property
    def is_nothing(self) -> bool:
        """Whether there is nothing to apply and nothing to replace: then no marker is needed."""
        return not self.committable.files and (self.replaced is None or not self.replaced.files)

    def is_settled(self, found: SinkMarker | None) -> bool:
        """Whether the sink's marker says that this very commit was applied or skipped."""
        return found is not None and found.is_of(self.version, self.outcome)

    def check_marker(self, found: SinkMarker | None, what: str, **where: object) -> None:
        """
        Refuse to publish into a sink whose marker is not the one that the newest receipts name.

        :param found: the sink's marker, not above this version; ``None`` where the marker, or what holds it, is missing
        :param what: what is true of the sink where the marker is missing
        :param where: facts that lead a user to the table or topic
        :raises MarkerLostError: the marker is missing, or older: the sink has lost versions
        :raises MarkerConflictError: the marker is newer, or was set by another outcome: the log has lost versions
        """
        expected = self.expected_marker
        if expected is None and found is None:
            return
        if found is None:
            raise self.lost(what, marker=None, **where)
        if expected is not None and found.version < expected.version:
            older = "the sink's marker is older than its newest receipts: an older copy of the sink was restored"
            raise self.lost(older, marker=found.version, **where)
        if expected is None or not found.is_of(expected.version, expected.outcome):
            raise self.conflict(
                "the sink's marker is of a commit that this log does not have", marker=found.version, **where
            )

    def lost(self, truth: str, **where: object) -> MarkerLostError:
        """The error of a sink that has lost versions which earlier receipts say it has."""
        return MarkerLostError(f"{truth}. {_NOTHING}", **self._facts(), **where)

    def conflict(self, truth: str, **where: object) -> MarkerConflictError:
        """The error of a sink that has a version which this log does not have."""
        return MarkerConflictError(f"{truth}. {_NOTHING}", **self._facts(), **where)

    def _facts(self) -> dict[str, object]:
        expected = self.expected_marker
        return {
            "sink": self.sink,
            "version": self.version,
            "expected_marker": None if expected is None else expected.version,
            "pipeline_uuid": self.pipeline_uuid,
        }


class EffectLedger(Protocol):
    """
    What is known of a version's effects on one sink, part by part.

    A part is a run of records, in the order of the staged files; parts are the same for every publisher. A part is performed in one round, or in several where
    its calls were interrupted: each round begins with the first record that the round before it left.

    :param clock: the time by which the publisher waits
    :param may_close: whether this entry may call claims of other entries *unknown*: a retry of the commit's own run, or an operator
    """

    clock: Clock
    may_close: bool

    def claim(self, part: int, round: int) -> bool:
        """Whether this very entry, and no other ever, may perform the effects of one round of a part (I17)."""
        ...

    def known(self, part: int, round: int) -> Effects | None:
        """What became of one round of a part, where an entry recorded it."""
        ...

    def record(
        self, part: int, round: int, *, done: int, refused: int = 0, unknown: int = 0, skipped: int = 0, left: int = 0
    ) -> Effects:
        """
        Record what became of one round of a part, after its last effect; returns what is stored, mine or another's.

        :param left: the last records of the part, which no call of this round performed
        """
        ...


class PublishingSink(Sink, Protocol):
    """
    A sink whose rows become visible outside the log, from files that were staged before the decision.

    * :meth:`stage` refuses what :meth:`publish` would: after the decision only a person can give a batch up.
    * :meth:`publish` may be called by anyone, any number of times, by two at once, and late. A transactional sink sets its marker ``(pipeline uuid, sink) →
      (version, applied, outcome)`` in **one** transaction with the rows, and only while it is the marker that was read (P2). It calls
      :meth:`Batch.is_settled` and :meth:`Batch.check_marker` before that, and before it creates a table or topic.
    """

    @property
    def keeps_staged(self) -> bool:
        """Whether the staged files are the published ones; else vacuum deletes them after the receipts."""
        ...

    def attempts_in_use(self) -> set[tuple[int, str]]:
        """``(version, attempt_id)`` of the attempts whose files the sink's table names now: vacuum leaves them, whatever the log says."""
        ...

    @property
    def redoes(self) -> bool:
        """Whether :meth:`publish` replaces the rows of a redo's chain; else a redo is refused before anything is written."""
        ...

    def check_redo(self, replaced: Committable | None) -> None:
        """
        Refuse to replace rows that the table, as it is now, does not let go. Called before a redo is planned.

        :param replaced: what the redo would replace; ``None`` where nothing of it is in the sink
        :raises InvalidError: says why; nothing was written
        """
        ...

    def publish(self, batch: Batch, effects: EffectLedger) -> Receipt | None:
        """
        Apply a batch, or find that it is applied or skipped.

        :returns: what is true of the batch in the sink; ``None`` where the marker is above it: its receipts exist
        :raises UnavailableError: no clear answer; the same call again finds out
        :raises PublishError: the sink refuses the batch; nothing of it is there
        :raises MarkerLostError: the sink's marker is missing, or older than its receipts
        :raises MarkerConflictError: the sink's marker is of a commit that the log does not have
        """
        ...

    def skip(self, batch: Batch, effects: EffectLedger) -> Receipt | None:
        """
        Let the marker pass a batch without its rows; answers as :meth:`publish`.

        The marker is not checked, and a missing table or topic is created where the marker needs one: a user accepts with it what the sink or the log has lost.
        """
        ...

    def marker(self, pipeline_uuid: str, sink: str) -> SinkMarker | None:
        """The newest version that the sink has seen; ``None`` where there is none, or the sink keeps none."""
        ...
