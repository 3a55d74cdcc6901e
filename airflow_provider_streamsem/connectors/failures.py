"""Interfaces with which sources and pins add facts to the error of a failed attempt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.protocol.offsets import Ranges


@runtime_checkable
class ExplainsFailures(Protocol):
    """Additional interface of a ``Source`` that recognizes a failure of Spark which the exception of Spark does not explain."""

    def explain_failure(self, messages: Sequence[str], ranges: Ranges) -> DataError | None:
        """
        Return the error for a failed attempt; ``None`` if the source does not recognize the failure.

        :param messages: the messages of the exception and of its causes in the JVM
        """
        ...


@runtime_checkable
class NamesFile(Protocol):
    """Additional interface of a pin that identifies one file."""

    @property
    def file(self) -> str:
        """Path of the file, relative to the location of the source. Errors show it."""
        ...
