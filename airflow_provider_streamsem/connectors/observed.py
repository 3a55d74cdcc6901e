"""Facts about the records of a source that the engine computes in the pass that counts the records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class ObservesRecords(Protocol):
    """
    Additional interface of a :class:`airflow_provider_streamsem.connectors.contract.Loaded` with facts about its records.

    :attr aggregates: name → aggregate over the frame, whose value is a number or a text
    """

    aggregates: Mapping[str, Any]

    def take_observed(self, values: Mapping[str, Any], records: int) -> None:
        """
        Take the values of the aggregates, before the engine reads the bad records. The engine calls this once for each batch.

        :param values: name of each aggregate → value. An aggregate without rows, or with null rows only, may be missing
        :param records: number of parsed records
        :raises DataError: the source refuses such records. Nothing became visible
        """
        ...


def aggregates(loaded: Any) -> Mapping[str, Any]:
    """Return the aggregates of the records of a source; none if it has no facts about them."""
    return loaded.aggregates if isinstance(loaded, ObservesRecords) else {}
