"""The interface of lookup tables, which a transform reads beside the records of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from airflow_provider_streamsem.protocol.entries import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Lookup(Protocol):
    """
    A table that a transform reads beside the records of a batch.

    The plan of a batch stores a *pin* for each lookup. Every attempt of the batch, and by default every reprocessing run, reads the rows of the pin.

    * For the same pin, :meth:`load` returns the same rows every time, or :meth:`check_pin` raises ``SourceChangedError``. A lookup that cannot keep this
      says so in :attr:`reasons`.
    * A lookup is a frozen dataclass. Its fields are the keys of its table in TOML.
    """

    @property
    def reasons(self) -> tuple[str, ...]:
        """What the pin fixes, one sentence each."""
        ...

    @property
    def extra(self) -> str:
        """The extra of this package that installs the client library; ``""`` if there is no such extra."""
        ...

    @property
    def spark_packages(self) -> tuple[str, ...]:
        """As :attr:`airflow_provider_streamsem.connectors.contract.Source.spark_packages`."""
        ...

    @property
    def location(self) -> str | None:
        """URL of the location of the rows; ``None`` if there is none. It must not overlap the log or a dataset of the pipeline."""
        ...

    def lineage(self) -> list[tuple[str, str]]:
        """Return the ``(namespace, name)`` of the table, in the form of OpenLineage dataset names. Sends no request."""
        ...

    def pin(self, now_ms: int) -> Json:
        """
        Return what identifies the current rows of the table.

        :param now_ms: the time of the plan, in milliseconds UTC
        :raises UnavailableError: the table gave no clear answer. Nothing was written
        """
        ...

    def check_pin(self, pin: Json) -> None:
        """
        Check that the rows of a pin still exist, unchanged. The run calls this method before and after the transform.

        :raises LogDamagedError: the pin has another form, or names another table
        :raises SourceChangedError: the error names what was changed or is missing. Nothing became visible
        """
        ...

    def load(self, spark: SparkSession, pin: Json) -> DataFrame:
        """Return the rows of a pin as a DataFrame."""
        ...
