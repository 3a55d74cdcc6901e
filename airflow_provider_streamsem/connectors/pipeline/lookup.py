"""A lookup table that another pipeline writes: the visible rows of its sink when a batch is planned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.commitlog.log import commit_log_at
from airflow_provider_streamsem.connectors.lookup import Lookup, checking_pin
from airflow_provider_streamsem.connectors.pins import decoded_pin
from airflow_provider_streamsem.connectors.pipeline.upstream import UpstreamLog, naming_upstream, open_upstream
from airflow_provider_streamsem.errors import LogDamagedError, LookupChangedError, SourceChangedError, UnavailableError
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.codec import plain
from airflow_provider_streamsem.protocol.entries import Json, Outcome, SegmentFile
from airflow_provider_streamsem.stores.contract import check_location, lineage_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class ViewPin:
    """
    The visible rows of a sink as of a version. The log of the other pipeline names their files, and never changes.

    :param version: the newest closed version when the plan was created
    :param outcome: sha256 of the outcome of this version
    """

    pipeline_uuid: str
    sink: str
    version: int
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTable(Lookup):
    """
    A lookup table that another pipeline, the *upstream*, writes to a sink of type ``files``. The plan of a batch pins the newest closed version of the
    upstream. The lookup has the rows that are visible as of this version, as ``read_committed`` returns them.

    :param log: URL of the upstream's log: ``s3://bucket/prefix``, ``file:///path`` or an absolute path
    :param sink: name of the upstream's sink; default: its only sink
    :raises InvalidError: an argument is not valid
    """

    reasons: ClassVar[tuple[str, ...]] = (
        "the plan pins a version of the other pipeline by the sha256 of its outcome; its files are checked by their sizes and checksums",
    )
    log: str
    sink: str | None = None

    def __post_init__(self) -> None:
        check_location("lookup pipeline: log", self.log)
        if self.sink is not None:
            arguments.text("lookup pipeline: sink", self.sink)

    @property
    def location(self) -> str:
        """The upstream's log. A pipeline cannot read its own log."""
        return self.log

    def lineage(self) -> list[tuple[str, str]]:
        with naming_upstream(self.log):
            return [lineage_name(self._opened().dataset.location)]

    def pin(self, now_ms: int) -> Json:
        """Pin the upstream's newest closed version. Raises ``UnavailableError`` if the upstream has committed no rows yet."""
        with naming_upstream(self.log):
            opened = self._opened()
            end = opened.end()
            outcome, sha = opened.outcome_and_sha(end - 1, end=end) if end else (None, "")
            if outcome is None or outcome.schemas.get(opened.sink) is None:
                summary = "the upstream has committed no rows yet, so the columns of the lookup are unknown; nothing was written"
                raise UnavailableError(summary, sink=opened.sink).advising("run the upstream, then run again.")
            return plain(ViewPin(opened.record.pipeline_uuid, opened.sink, end - 1, sha))

    def check_pin(self, pin: Json) -> None:
        """Check size and checksum. On S3 this sends one request for each file. On local disk it reads each file, or the footer of a Parquet file."""
        pinned = self._read(pin)
        with checking_pin(), self._at(pinned) as (opened, _, files):
            for is_changed, file in zip(opened.have_changed([entry.file for entry in files]), files, strict=True):
                if is_changed:
                    opened.check_owner()  # if the location is not mounted, the ownership marker is missing too
                    summary = "a visible file of the upstream is missing or was changed"
                    raise SourceChangedError(summary, version=file.version, as_of=pinned.version, file=file.file.key)

    def load(self, spark: SparkSession, pin: Json) -> DataFrame:
        """Return the rows that are visible as of the pinned version, with the columns that the upstream had recorded then."""
        from airflow_provider_streamsem.connectors.data_files.read import read_files

        with self._at(self._read(pin)) as (opened, outcome, files):
            paths = [opened.path(entry.file) for entry in files]
            return read_files(spark, paths, format=opened.dataset.format, schema=outcome.schemas[opened.sink])

    def _opened(self) -> UpstreamLog:
        return open_upstream(commit_log_at(self.log), self.sink)[0]

    @contextmanager
    def _at(self, pin: ViewPin) -> Iterator[tuple[UpstreamLog, Outcome, list[SegmentFile]]]:
        """Yield the upstream, the outcome of the version, and the visible files with rows. Errors of the block name the upstream."""
        with naming_upstream(self.log):
            opened = self._opened()
            if (opened.record.pipeline_uuid, opened.sink) != (pin.pipeline_uuid, pin.sink):
                raise opened.recreated_error([f"{pin.pipeline_uuid}/{pin.sink}"])
            closed = opened.find_outcome(pin.version)
            if closed is None or closed[1] != pin.outcome:
                raise opened.rewritten_error(pin.version)
            newest = opened.log.find_head().outcome
            oldest = 0 if newest is None else newest.oldest_readable
            if pin.version < oldest:
                summary = (
                    "the version of the upstream that the lookup read has expired, so its files may have been deleted"
                )
                raise LookupChangedError(summary, version=pin.version, oldest_readable=oldest).advising(
                    "reprocess the version with the current rows: `streamsem reprocess PIPELINE.toml N --current-lookups`."
                )
            files = [entry for entry in opened.log.view(version=pin.version).sink(opened.sink) if entry.file.rows]
            yield opened, closed[0], files

    def _read(self, pin: Json) -> ViewPin:
        summary = "the pin of a lookup is not a version of the upstream pipeline; nothing was read"
        pinned = decoded_pin(ViewPin, pin, summary, upstream=self.log)
        if not keys.is_digest(pinned.outcome) or pinned.version < 0 or self.sink not in (None, pinned.sink):
            raise LogDamagedError(summary, invariant="R6", upstream=self.log)
        return pinned
