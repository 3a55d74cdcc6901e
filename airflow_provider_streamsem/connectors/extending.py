"""The interface of sources that an alter can change so that they read more."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.offsets import Offsets


@runtime_checkable
class Extending(Protocol):
    """Additional interface of a source that can continue after the offsets of another one, and read more than it."""

    def extends(self, before: Json) -> Offsets | None:
        """
        Return the initial offsets of the partitions that this source adds to the other source. May send requests to the source.

        :param before: the immutable fields of the other source
        :returns: partition → offset, inclusive; ``None`` if this source does not read every partition of the other one under the same name
        :raises StreamsemError: the source cannot be reached
        """
        ...
