"""
Layers of rows that a batch adds to, and that later batches look up: the ids of the deduplication, and the tombstones of sinks with ``changes``.

The layers are a log-structured merge. Each batch adds one layer with its rows. The new layer absorbs the newest layers that are not larger than it. So the
number of layers stays small. Before a row expires, it is rewritten about log2(rows in the layers / rows of a batch) times.

Layers are immutable. The field ``state`` of an outcome names the layers that are valid after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from airflow_provider_streamsem.errors import LogDamagedError
from airflow_provider_streamsem.protocol.codec import build, plain
from airflow_provider_streamsem.protocol.entries import Committable, DataFile, Json

STATE = "state"
"""The directory below a log with the files of layers."""
IDS, TOMBSTONES = "dedup", "tombstones"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """
    A set of rows in Parquet files.

    :param newest_ms: no row of the layer is of a batch that was planned after this time, in milliseconds UTC
    :param rows: the number of rows
    :param files: files with keys relative to the directory :data:`STATE` of the log
    """

    newest_ms: int
    rows: int
    files: tuple[DataFile, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstones:
    """
    The tombstones of a sink.

    :param keys: the columns of the key
    :param sequence_by: the columns of the sequence
    :param types: the types of these columns when the newest layer was written, in Spark's form
    :param layers: oldest first
    """

    keys: tuple[str, ...]
    sequence_by: tuple[str, ...]
    types: tuple[str, ...] = ()
    layers: tuple[Layer, ...] = ()


def id_layers(state: Json) -> list[Layer]:
    """Return the layers of ids in the field ``state`` of an outcome, oldest first."""
    return _parsed(_mapping(state).get(IDS, []))


def tombstones_of(state: Json) -> dict[str, Tombstones]:
    """Return sink → its tombstones in the field ``state`` of an outcome."""
    stored = _mapping(_mapping(state).get(TOMBSTONES))
    return {sink: build(Tombstones, of_sink, "state") for sink, of_sink in stored.items()}


def files_of_layers(state: Json) -> list[DataFile]:
    """Return the files of all layers in the field ``state`` of an outcome."""
    tombstones = [layer for of_sink in tombstones_of(state).values() for layer in of_sink.layers]
    return [file for layer in [*id_layers(state), *tombstones] for file in layer.files]


def with_tombstones(state: Json, tombstones: Mapping[str, Tombstones]) -> Json:
    """Return the field ``state`` of an outcome with its tombstones replaced by ``tombstones``: sink → tombstones. A sink without layers is left out."""
    others = {name: value for name, value in _mapping(state).items() if name != TOMBSTONES}
    kept = {
        sink: {
            "keys": list(of_sink.keys),
            "sequence_by": list(of_sink.sequence_by),
            "types": list(of_sink.types),
            "layers": layers_json(of_sink.layers),
        }
        for sink, of_sink in sorted(tombstones.items())
        if of_sink.layers
    }
    return {**others, **({TOMBSTONES: kept} if kept else {})} or None


def layers_json(layers: Sequence[Layer]) -> list[Json]:
    """Return layers as the JSON that an outcome stores. Their order is kept: oldest first."""
    return [_layer_json(layer) for layer in layers]


def newer_than(layers: Sequence[Layer], cutoff_ms: int) -> list[Layer]:
    """Return the layers with rows that may be of batches planned at or after a time, in milliseconds UTC."""
    return [layer for layer in layers if layer.newest_ms >= cutoff_ms]


def absorbed(layers: Sequence[Layer], rows: int) -> int:
    """Return how many of the newest layers a new layer of ``rows`` rows absorbs: each that is not larger than the new layer with those absorbed before."""
    count = 0
    for layer in reversed(layers):
        if layer.rows > rows:
            break
        rows += layer.rows
        count += 1
    return count


def split(layers: Sequence[Layer], rows: int) -> tuple[Sequence[Layer], Sequence[Layer]]:
    """Return the layers that stay unchanged, and the layers that a new layer of ``rows`` rows absorbs."""
    at = len(layers) - absorbed(layers, rows)
    return layers[:at], layers[at:]


def with_written(kept: Sequence[Layer], older: Sequence[Layer], written: Committable, now_ms: int) -> list[Layer]:
    """
    Return the layers in which one new layer replaces the layers ``older``.

    Its ``newest_ms`` is at least that of every layer in ``older``, because the clock of this batch may be behind that of an earlier batch.
    """
    newest_ms = max([now_ms, *(layer.newest_ms for layer in older)])
    return [*kept, Layer(newest_ms=newest_ms, rows=written.rows, files=written.files)]


def _mapping(value: Json) -> Mapping[str, Json]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise LogDamagedError("the state of an outcome is not a mapping", invariant="R6")
    return value


def _parsed(items: Json) -> list[Layer]:
    if not isinstance(items, list):
        raise LogDamagedError("the layers in the state of an outcome are not a list", invariant="R6")
    return [build(Layer, item, "state") for item in items]


def _layer_json(layer: Layer) -> Json:
    files = [{name: value for name, value in plain(file).items() if name != "stats"} for file in layer.files]
    return {"newest_ms": layer.newest_ms, "rows": layer.rows, "files": files}
