"""
The layout of the deduplication state of a pipeline in files.

The state is a log-structured merge of layers of ids. Each batch adds one layer with the ids that passed. The new layer absorbs the newest layers that are not
larger than it. So the number of layers stays small. Before an id expires, it is rewritten about log2(ids in the state / ids of a batch) times.

Layers are immutable. An outcome names the layers that are valid after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from airflow_provider_streamsem.connectors.files.sink import FilesSink
from airflow_provider_streamsem.deduplication.settings import Dedup
from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol.codec import build, plain
from airflow_provider_streamsem.protocol.entries import Committable, DataFile, Json

STATE = "state"
ID, AT = "id", "at_ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """
    A set of ids in Parquet files with the columns ``id`` (16 bytes, sorted) and ``at_ms`` (when the id's batch was planned).

    :param newest_ms: no id of the layer passed after this time, in milliseconds
    :param rows: the number of ids
    :param files: files with keys relative to the state's location
    """

    newest_ms: int
    rows: int
    files: tuple[DataFile, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainStates:
    """
    The deduplication states that a reprocessing run needs in addition to the state before its chain.

    :param current: the state at the log's head, to which the run adds ids, and from which it removes ids
    :param commits: ``(before, after)`` of each commit of the chain, oldest first: the states before and after it
    :param planned_ms: when the reprocessing run was planned, in milliseconds UTC
    """

    current: Json
    commits: tuple[tuple[Json, Json], ...]
    planned_ms: int

    def expired_before_ms(self, dedup: Dedup, oldest_ms: int | None) -> int:
        """
        Return the time before which ids may have expired from the current state, in milliseconds UTC. A reprocessing run has removed a younger id that the
        current state lacks.

        :param oldest_ms: when the oldest id of the current state passed; ``None`` if it has no ids
        """
        if dedup.rows is not None:  # ids expire only while as many newer ones are stored
            is_full = sum(layer.rows for layer in stored_layers(self.current)) >= dedup.rows
            return oldest_ms if is_full and oldest_ms is not None else 0
        return dedup.cutoff_ms(max([self.planned_ms, *(layer.newest_ms for layer in stored_layers(self.current))]))


def has_only_expired_ids(dedup: Dedup | None, state: Json, now_ms: int) -> bool:
    """Return whether a state has ids, and all of them have expired by ``ttl_s`` at ``now_ms`` (milliseconds UTC)."""
    return dedup is not None and bool(stored_layers(state)) and not layers_of(state, dedup, now_ms)


def layers_of(state: Json, dedup: Dedup, now_ms: int) -> list[Layer]:
    """
    Return the layers with ids that are not expired, oldest first.

    Layers in which every id is before the cutoff are left out, and so are layers that are older than the newest ``dedup.rows`` ids.
    """
    layers = stored_layers(state)
    kept: list[Layer] = []
    rows = 0
    for layer in reversed(layers):
        if dedup.rows is not None and rows >= dedup.rows:
            break
        if layer.newest_ms >= dedup.cutoff_ms(now_ms):
            kept.append(layer)
            rows += layer.rows
    return kept[::-1]


def stored_layers(state: Json) -> list[Layer]:
    """Parse the layers that an outcome names, oldest first."""
    if state is None:
        return []
    items = state.get("dedup", []) if isinstance(state, dict) else None
    if not isinstance(items, list):
        raise LogDamagedError("the deduplication state of an outcome is not a list of layers", invariant="R6")
    return [build(Layer, item, "state") for item in items]


def absorbed(layers: Sequence[Layer], rows: int) -> int:
    """Return how many of the newest layers a new layer of ``rows`` ids absorbs: each that is not larger than the new layer with those absorbed before."""
    count = 0
    for layer in reversed(layers):
        if layer.rows > rows:
            break
        rows += layer.rows
        count += 1
    return count


def split(layers: Sequence[Layer], rows: int) -> tuple[Sequence[Layer], Sequence[Layer]]:
    """Return the layers that stay unchanged, and the layers that a new layer of ``rows`` ids absorbs."""
    at = len(layers) - absorbed(layers, rows)
    return layers[:at], layers[at:]


def state_after(kept: Sequence[Layer], older: Sequence[Layer], written: Committable, now_ms: int) -> Json:
    """
    Return the state in which one new layer replaces the layers ``older``.

    Its ``newest_ms`` is at least that of every layer in ``older``, because the clock of this batch may be behind that of an earlier batch.
    """
    newest_ms = max([now_ms, *(layer.newest_ms for layer in older)])
    return state_of([*kept, Layer(newest_ms=newest_ms, rows=written.rows, files=written.files)])


def state_of(layers: Sequence[Layer]) -> Json:
    """Return the layers as the JSON that an outcome stores. The order of ``layers`` is kept: oldest first."""
    return {"dedup": [_layer_json(layer) for layer in layers]}


def _layer_json(layer: Layer) -> Json:
    files = [{name: value for name, value in plain(file).items() if name != "stats"} for file in layer.files]
    return {"newest_ms": layer.newest_ms, "rows": layer.rows, "files": files}


def layers_dataset(log: str) -> FilesSink:
    """Return the dataset that contains the layers of a log, at ``state/`` below the log's root. Each attempt writes to its own directory."""
    return FilesSink(f"{log.rstrip('/')}/{STATE}")


def is_complete(log: str, state: Json) -> bool:
    """Whether every file of a state exists with the recorded size and checksum (W17)."""
    files = tuple(file for layer in stored_layers(state) for file in layer.files)
    return not files or layers_dataset(log).is_complete(Committable(format="parquet", rows=0, files=files))
