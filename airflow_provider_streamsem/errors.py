"""
The exception hierarchy of this package.

Each class requires a *different reaction* from the user. A message says what happened and what is true now, then facts as ``(key=value, …)``, and then the
action in :attr:`StreamsemError.do`. Messages of external systems are chained and not quoted, because they may contain secrets. Messages of the user's own code,
and of parsers of the user's own text, may be quoted.
"""

from __future__ import annotations

import copy
from typing import ClassVar, TypeVar

E = TypeVar("E", bound="StreamsemError")


UNREADABLE_FILE = (
    "put a good copy into the source under another name, delete the damaged file, and run again with "
    'on_data_loss="record_gap": the file becomes a gap, and the copy is read. Or correct the schema, if the file itself is correct.'
)
"""Advice for a planned file that cannot be read."""
OR_RECORD_GAP = 'restore the named item and run again. With on_data_loss="record_gap", what is missing is skipped and recorded as a gap.'
"""Advice for unread items that are missing before they are planned."""


class StreamsemError(Exception):
    """
    Base class of all errors of this package. Only its subclasses are raised.

    :param summary: what happened, a semicolon, and what is true now. The second part may be left out if the class has an :attr:`effect`
    :param fields: facts such as paths and versions, shown as ``(key=value, …)`` in the message and stored in :attr:`fields`
    :cvar effect: what is true after an error of the class whose summary does not say it
    :cvar retryable: whether a retry without any change may succeed. If not, the Airflow operators fail the task without a retry
    :cvar do: the recommended action. It is the end of the message, after ``Do:``
    """

    retryable: ClassVar[bool]
    effect: ClassVar[str] = ""
    do: str

    def __init__(self, summary: str, **fields: object) -> None:
        if type(self) is StreamsemError:
            raise TypeError("StreamsemError is an abstract base class. Do: raise one of its subclasses.")
        if self.effect and "; " not in summary:
            summary = f"{summary}; {self.effect}"
        super().__init__(summary)
        self.summary = summary
        self.fields = fields

    def advising(self: E, do: str) -> E:
        """Replace the advice of the class with more specific advice, in the form of :attr:`do`, and return the error."""
        self.do = do
        return self

    def with_fields(self: E, **fields: object) -> E:
        """Return a copy of the error with these fields before the others."""
        extended = copy.copy(self)
        extended.fields = {**fields, **self.fields}
        return extended

    def __str__(self) -> str:
        facts = ", ".join(f"{name}={value!r}" for name, value in self.fields.items())
        return f"{self.summary} ({facts}). Do: {self.do}" if facts else f"{self.summary}. Do: {self.do}"


class InvalidError(StreamsemError):
    """An argument or a file from the user is invalid. Nothing was written."""

    retryable = False
    do = "correct the value that this message names, then run again."


class ConflictError(StreamsemError):
    """Two pipelines, logs or specs claim the same name or dataset. Nothing was written."""

    retryable = False
    effect = "nothing was written"
    do = "give this pipeline its own log and its own datasets, or make its immutable fields equal to those in the log."


class DatasetOwnedError(ConflictError):
    """The ownership marker of a dataset (``_streamsem.json``) names another pipeline or log. Nothing was written to the dataset."""

    effect = "nothing was written to the dataset"
    do = (
        "correct `log` of the pipeline, if the log at `marked_log` is its log. If that log was moved by hand to this pipeline's log, run "
        "`streamsem move-log OLD NEW --already-moved`. Otherwise give this pipeline its own dataset."
    )


class LogMovedError(ConflictError):
    """The log was moved to another location. Runs continue at the new location only. Nothing was written."""

    do = "use the location in `moved_to`: set the pipeline's `log` to it, or name it in the command."


class LogMovingError(ConflictError):
    """A move of the log to this location has started and is not complete. Nothing was written."""

    retryable = True
    do = "repeat `streamsem move-log` from `moved_from` to `log` until it succeeds, then run again."


class UnavailableError(StreamsemError):
    """
    A store, broker, queue or server did not report the result of a request within the retry limit, or is not ready.

    Whether the last request was applied is unknown.
    """

    retryable = True
    do = "run again: the next run reads the stored state and continues from it, whether or not the last request was applied."


class StoreRefusedError(StreamsemError):
    """A store, broker, queue or server refused a request permanently (permission, read-only, no space, no such bucket). Nothing was written by it."""

    retryable = False
    do = "give the process permission to read, list and create at this location, or free space there, then run again; committed versions stay committed."


class UnsafeStoreError(StreamsemError):
    """The store does not support atomic create-if-absent, which the log requires. No version was written."""

    retryable = False
    do = "use a store with atomic create-if-absent and run `streamsem doctor` on it; do not run pipelines on this one."


class LogDamagedError(StreamsemError):
    """Stored data violates an invariant of the protocol. This process wrote nothing after it detected the violation."""

    retryable = False
    do = "run `streamsem verify` for the complete report, and restore the named object from a copy; never delete log entries."


class NewerFormatError(StreamsemError):
    """A newer release wrote the log. Nothing was written."""

    retryable = False
    effect = "nothing was written"
    do = "upgrade airflow-provider-streamsem. Newer writers are not affected."


class SourceChangedError(StreamsemError):
    """
    An item that the source must still have was changed or is missing. The attempt was discarded. Nothing became visible.

    An item is what the source reads, such as a file, a range of offsets, a shard, a ledger, a version of a table or a row. A planner raises this error too,
    before it plans such an item.
    """

    effect = "nothing became visible"
    retryable = False
    do = "restore the named item and run again."


class RecordsMissingError(SourceChangedError):
    """
    Records of an existing plan are missing: they were deleted, or their file or topic was replaced. They can be recorded as a gap.

    The attempt was discarded. Nothing became visible.
    """

    do = (
        'restore the named item and run again. Or set on_data_loss="record_gap" and run again: the version is then closed as an abort, '
        "and the next one is planned without the missing records, which are recorded as a gap."
    )


class LookupChangedError(SourceChangedError):
    """
    Rows of a lookup that an existing plan pins were changed or are missing. The attempt was discarded. Nothing became visible.

    The run closes the version of a batch as an abort and plans the batch once more, with the current rows. A run raises this error only if the rows of that
    plan were changed too, or for a reprocessing run.
    """

    do = (
        "run again: a batch is planned again with the current rows of the lookup. If its rows change during every batch, use a lookup that keeps old versions, "
        "such as DeltaTable. To reprocess a version with the current rows, use `streamsem reprocess --current-lookups`."
    )


class DataError(StreamsemError):
    """The data cannot be processed as the pipeline specifies. The attempt was discarded. Nothing became visible, and the offsets did not move."""

    effect = "nothing became visible"
    retryable = False
    do = "fix the data or the pipeline and run again: the same range is read again."


class HeldVersionError(StreamsemError):
    """
    The open version is held: a reprocessing run has staged it for review, and no user has committed or aborted it.

    No version was planned, and nothing became visible.
    """

    retryable = True
    do = (
        "compare the rows with `streamsem diff PIPELINE.toml N`, then run `streamsem commit PIPELINE.toml N` or "
        "`streamsem abort PIPELINE.toml N --reason TEXT`. Until then, no run can plan a version."
    )


class HeldByGateError(HeldVersionError):
    """
    The rows of the open version do not pass a gate with ``on_failure="hold"``. The version stays open, and its rows stay staged.

    No version was planned, and nothing became visible.
    """

    retryable = False
    do = (
        "look at the rows with `streamsem diff PIPELINE.toml N`. Then run `streamsem commit PIPELINE.toml N` to make them visible, or correct the data or the "
        "pipeline and run `streamsem abort PIPELINE.toml N --reason TEXT`: the next run reads the records again. Until then, no run can plan a version. Clear "
        "the task afterwards: it returns the result of the run."
    )


class OpenVersionError(StreamsemError):
    """
    A rollback, a compaction, or a vacuum with ``keep_versions``, finds a version that is open or not published yet, or another writer creates the next version
    first.

    Nothing became visible or expired. Rewrites that the same compaction had committed before remain. They change no rows.
    """

    retryable = True
    do = (
        "repeat the command when the run of the version has ended. If no run is active, run the pipeline: it completes the version. "
        "In a DAG, compact and vacuum in tasks after the batch, and set `retries`. If tasks write the pipeline continuously, give all its tasks one "
        "Airflow pool with one slot."
    )


class StageError(StreamsemError):
    """The engine failed while staging. The attempt was discarded. Nothing became visible, and the offsets did not move."""

    effect = "nothing became visible"
    retryable = True
    do = "run again: the same range is read and staged again. If it fails again, correct the cause that this message or the exception before it names."


class PublishError(StreamsemError):
    """
    A sink outside the log rejects a committed batch. The offsets have moved, and the staged rows are kept.

    A transactional sink contains nothing of the batch. An HTTP endpoint may have received some of its records.
    """

    retryable = False
    do = (
        "fix the cause of the refusal and run again: the version is published then, and the source is not read again. "
        "Or skip the version for this sink with `streamsem skip`. Before you skip a rollback, delete the rows that it removes."
    )


class MarkerLostError(PublishError):
    """
    A sink outside the log lacks versions for which the log has receipts. The sink was deleted, recreated, or restored from an older copy.

    The sink contains nothing of the batch. The offsets have moved, and the staged rows are kept.
    """

    do = (
        "restore the sink to the state of its newest receipts (rename it back, or restore a newer copy) and run again: the version is "
        "published then. If that state is permanently lost, accept the loss with `streamsem skip`: the sink does not get this version, and publishing "
        "continues with the next version."
    )


class MarkerConflictError(PublishError):
    """
    A sink outside the log has a version that this log does not have. The log was restored from an older copy, or two copies of it are in use.

    The sink contains nothing of the batch. The offsets have moved, and the staged rows are kept.
    """

    do = (
        "restore the newest copy of the log and run again: then no data is lost. If that copy is permanently lost, the sink has rows whose records this "
        "log reads a second time: follow docs/how-to/recover.md."
    )


class InternalError(StreamsemError):
    """The package violated one of its own assumptions. Versions that were committed before are still visible."""

    retryable = False
    do = "do not change the log, and report this error with the output of `streamsem verify`."
