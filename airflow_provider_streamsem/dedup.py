"""
The deduplication settings of a pipeline, and the layout of its deduplication state in files.

The state is a log-structured merge of layers of ids. Each batch adds one layer with the ids that passed. The new layer absorbs the newest layers that are not
larger than it. So the number of layers stays small. Before an id expires, it is rewritten about log2(ids in the state / ids of a batch) times.

Layers are immutable. An outcome names the layers that are valid after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.connectors.files.sink import FilesSink
from airflow_provider_streamsem.errors import InvalidError, LogDamagedError
from airflow_provider_streamsem.protocol.codec import build, plain
from airflow_provider_streamsem.protocol.entries import Committable, DataFile, Json

SCOPES = ("pipeline", "batch")
STATE = "state"
ID, AT = "id", "at_ms"


@dataclass(frozen=True, kw_only=True)
class Dedup:
    """
    Drops records whose id is in the deduplication state, and repeated ids within a batch. Runs before the transform.

    If several records of one batch have the same id, one of them passes, and it is not specified which one. A record with a null in a key column has no id
    and always passes.

    :param keys: columns of the parsed records whose values together form the id: strings, integers, decimals, dates, booleans or binary values
    :param ttl_s: time to live of an id, in seconds, 1 or more. A batch drops a record if its id passed in a batch that was planned at most this long before
    :param rows: instead of ``ttl_s``: how many of the newest ids to keep, at least. The state may contain more
    :param scope: ``pipeline``: deduplicates across all batches. ``batch``: deduplicates within each batch and keeps no state
    :raises InvalidError: ``keys`` is empty; scope ``pipeline`` without exactly one of ``ttl_s`` and ``rows``; or scope ``batch`` with either of them
    """

    keys: Sequence[str]
    ttl_s: int | None = None
    rows: int | None = None
    scope: str = "pipeline"

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", arguments.text_list("dedup.keys", self.keys))
        if not self.keys:
            raise InvalidError("dedup.keys must name at least one column")
        arguments.choice("dedup.scope", self.scope, SCOPES)
        for name, value in (("ttl_s", self.ttl_s), ("rows", self.rows)):
            if value is not None:
                arguments.integer(f"dedup.{name}", value, least=1)
        bounds = sum(value is not None for value in (self.ttl_s, self.rows))
        if bounds != (1 if self.scope == "pipeline" else 0):
            raise InvalidError(
                'dedup with scope="pipeline" needs exactly one of ttl_s and rows; with scope="batch" it accepts neither',
                scope=self.scope,
                ttl_s=self.ttl_s,
                rows=self.rows,
            )

    @property
    def keeps_state(self) -> bool:
        """Whether ids are kept after their batch."""
        return self.scope == "pipeline"

    @property
    def conditions(self) -> str:
        """The condition of the delivery guarantee as a short label, such as ``dedup 24 h``."""
        if self.ttl_s is not None:
            return f"dedup {_duration(self.ttl_s)}"
        return f"dedup {self.rows} rows" if self.rows is not None else "dedup in each batch"

    def cutoff_ms(self, now_ms: int) -> int:
        """Return the time before which ids are expired; 0 if ids do not expire by age. ``now_ms`` is ``planned_at_ms`` of the plan (I13)."""
        return 0 if self.ttl_s is None else now_ms - self.ttl_s * 1000


def _duration(seconds: int) -> str:
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds % length == 0:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


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
    """Return the layers with ids that are not expired, oldest first. Layers that are older than the newest ``dedup.rows`` ids are left out, too."""
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
