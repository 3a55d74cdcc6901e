"""
The publish loop of the transactional sinks, which set their marker in one transaction with the rows (PROTOCOL.md, P2).

A sink implements the steps: open the sink, read its marker, check the marker, commit. The error of a failed commit does not show whether the commit was
applied. So the loop opens the sink again and reads the marker, after the last try too.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from airflow_provider_streamsem.clock import SYSTEM_CLOCK, doubling, tries
from airflow_provider_streamsem.connectors.sink import SinkCommit, SinkMarker
from airflow_provider_streamsem.connectors.staged_parquet.sink import StagedSink
from airflow_provider_streamsem.errors import StreamsemError, UnavailableError
from airflow_provider_streamsem.protocol.entries import Json, Receipt

H = TypeVar("H")
_LONGEST_WAIT_S = 2.0


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of one try. ``table_state`` is that of :meth:`TransactionalSink.table_state`; ``None`` if the try failed before that call."""

    error: Exception
    table_state: object = None

    @property
    def is_final(self) -> bool:
        """Whether the error is one of this package, and a retry cannot help."""
        return isinstance(self.error, StreamsemError) and not self.error.retryable


class NothingSentError(Exception):
    """
    Raised by :meth:`TransactionalSink.commit` for a failure before it has sent anything to the sink. The publish loop ends, and raises ``error``.

    Reading the marker again would not help, and a repeated commit could repeat long work, such as a merge by Spark.
    """

    def __init__(self, error: StreamsemError) -> None:
        super().__init__(error.summary)
        self.error = error


class TransactionalSink(StagedSink, Generic[H]):
    """
    A staged sink that publishes in a transaction. ``H`` is the type of the handle of one try: a connection, a table at one version, or a Kafka producer.

    A subclass is a frozen dataclass whose fields are the arguments. It defines ``location``, ``reasons``, ``can_remove_rows``, ``immutable_config``,
    ``marker``, and the abstract steps here. If :meth:`commit` raises, the context of :meth:`opened` ends, and must roll back. A
    subclass usually also overrides ``claim``, to create the markers of a new log, and ``resolve_schema`` and ``stats``, to refuse before the commit.

    :cvar tries: maximum number of commits that the loop sends
    :cvar first_wait_s: seconds between the first and the second try. Each later wait is twice as long, up to 2 s
    :cvar reopens: whether the loop tries again if the sink cannot be opened. ``False`` if the client library retries that itself
    """

    __slots__ = ()

    delivery: ClassVar[str] = "exactly_once"
    tries: ClassVar[int] = 12
    first_wait_s: ClassVar[float] = 0.04
    reopens: ClassVar[bool] = True

    def publish(self, batch: SinkCommit) -> Receipt | None:
        """Commit the rows and the marker in one transaction. For a reprocessing run, the same transaction removes the rows that it replaces."""
        return self._until_marked(batch, skips=False)

    def skip(self, batch: SinkCommit) -> Receipt | None:
        """Commit the marker without rows."""
        return self._until_marked(batch, skips=True)

    def _until_marked(self, batch: SinkCommit, *, skips: bool) -> Receipt | None:
        if batch.is_nothing:
            return Receipt(result="applied", rows=0)
        failure: Failure | None = None
        unsent: StreamsemError | None = None
        is_refused = False  # by the last try
        for attempt in tries(doubling(self.first_wait_s, self.tries, _LONGEST_WAIT_S), SYSTEM_CLOCK):
            table_state: object = None
            is_refused = False
            try:
                with self.opened(batch, failure, skips=skips) as handle:
                    marker = self.marker_in(handle, batch)
                    if marker is not None and marker.version > batch.version:
                        return None
                    if not skips:
                        self.check_sink(handle, batch, marker)
                    if marker is not None and batch.is_settled(marker):
                        return self.receipt(batch, marker.state, self.detail(handle, batch))
                    table_state = self.table_state(handle)
                    is_refused = failure is not None and self._is_refused(failure, table_state)
                    if is_refused or attempt == self.tries:
                        break
                    if self.commit(handle, batch, marker, skips=skips):
                        return self.receipt(batch, "skipped" if skips else "applied", self.detail(handle, batch))
            except NothingSentError as error:
                unsent = error.error
                break
            except Exception as error:  # the transaction may have been committed, so the loop reads the marker again
                failed = Failure(error, table_state)
                is_unavailable = isinstance(error, UnavailableError) and not self.reopens
                if table_state is None and (failed.is_final or is_unavailable):
                    raise
                failure = failed
        # Raised outside the exception handler, so that Python does not chain the cause: its message may contain row values.
        if unsent is not None:
            raise unsent
        if failure is None:
            raise self.unknown_result_error(batch, None)
        if failure.is_final:
            raise failure.error
        raise (
            self.refused_error(batch, failure.error) if is_refused else self.unknown_result_error(batch, failure.error)
        )

    def _is_refused(self, failure: Failure, table_state: object) -> bool:
        """Whether another commit would fail too. Called after the marker has shown that the last commit was not applied."""
        return failure.is_final or (failure.table_state == table_state and self.is_refusal(failure.error))

    @staticmethod
    def receipt(batch: SinkCommit, state: str, detail: Json = None) -> Receipt:
        """Return the receipt for a marker's state."""
        if state == "skipped":
            return Receipt(result="skipped", rows=0, detail=detail)
        return Receipt(result="applied", rows=batch.committable.rows, detail=detail)

    @abstractmethod
    def opened(self, batch: SinkCommit, failure: Failure | None, *, skips: bool) -> AbstractContextManager[H]:
        """
        Open the sink for one try: connect, load the table, or fence older publishers. The context manager closes it after the try.

        :param failure: the failure of the previous try; ``None`` in the first try
        :param skips: whether the loop commits a marker without rows
        :raises PublishError: the sink refuses the publisher. The loop ends
        """

    @abstractmethod
    def marker_in(self, handle: H, batch: SinkCommit) -> SinkMarker | None:
        """Read the marker of the batch's pipeline and sink through the handle."""

    @abstractmethod
    def check_sink(self, handle: H, batch: SinkCommit, marker: SinkMarker | None) -> None:
        """
        Refuse a sink that has lost versions. Not called for a skip.

        :param marker: the marker, which is not above the version of the batch; ``None`` if there is none
        :raises MarkerLostError: the marker is missing or older than the newest receipts, or the sink was restored to a state without the marker's rows
        :raises MarkerConflictError: the marker names a commit that the log does not have
        """

    @abstractmethod
    def commit(self, handle: H, batch: SinkCommit, marker: SinkMarker | None, *, skips: bool) -> bool:
        """
        Commit the rows and the marker in one transaction, if the marker in the sink still equals ``marker``.

        :param skips: whether to commit the marker without rows
        :returns: whether the transaction was committed. ``False`` if another publisher has set the marker, or if this call has only prepared the sink; the
            loop then opens the sink again
        :raises NothingSentError: nothing was sent to the sink, and another try would not help
        :raises PublishError: the sink refuses the batch. The loop reads the marker once more, and raises this error if the batch is not in the sink
        """

    def detail(self, handle: H, batch: SinkCommit) -> Json:
        """Return details of the commit for the receipt, such as the version of the table, as JSON for users."""
        return None

    def table_state(self, handle: H) -> object:
        """
        Return the state of the sink, which may have caused a failed commit.

        If the state is the same at the next try, the sink would refuse the batch again. If it differs, the loop tries again.
        """
        return ""

    @abstractmethod
    def is_refusal(self, error: Exception) -> bool:
        """Return whether an error of a commit is a permanent refusal of the batch. If not, the same transaction may succeed later."""

    @abstractmethod
    def refused_error(self, batch: SinkCommit, cause: Exception) -> StreamsemError:
        """Return the :class:`PublishError` for a batch that the sink refuses. Its ``__cause__`` must not be set if the message of the cause has row values."""

    @abstractmethod
    def unknown_result_error(self, batch: SinkCommit, cause: Exception | None) -> StreamsemError:
        """
        Return the :class:`UnavailableError` for a batch that may or may not have been published.

        :param cause: the error of the last failed try; ``None`` if another publisher has set the marker in every try
        """
