"""
Which ids a pipeline has seen: what is remembered, for how long, and in which files. Pure: engines read and write the files.

The ids lie in layers. A batch adds one layer with the ids that it let pass; where that is as large as what stands before it, the new layer takes the older
ones in, so that there are few layers, and an id is written again about log2(remembered ids / ids of a batch) times while it is remembered (a log-structured
merge). A layer of many ids is cut into buckets by the id, so that a small batch looks only into the buckets of its own ids. Layers are immutable; an outcome
names those that hold after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.errors import InvalidError, LogDamagedError
from airflow_provider_streamsem.protocol.codec import build, plain
from airflow_provider_streamsem.protocol.entries import Committable, DataFile, Json
from airflow_provider_streamsem.sinks.files import FilesSink

BUCKETS = 64
BUCKETED_ROWS = 200_000
"""from how many ids on a layer is cut into buckets"""
SCOPES = ("pipeline", "batch")
STATE = "state"
ID, AT, BUCKET = "id", "at_ms", "bucket"


@dataclass(frozen=True, kw_only=True)
class Dedup:
    """
    Records whose id was seen before are dropped, before the transform.

    Of the records of one batch with one id any one passes. A record in which a key is null has no id and always passes.

    :param keys: columns of the parsed records whose values together are the id: text, whole numbers, decimals, dates, truth values or bytes
    :param ttl_s: how long an id is remembered, in seconds from the plan of the batch that let it pass to the plan of a later one
    :param rows: instead, how many of the newest ids are remembered, at least
    :param scope: ``pipeline``: over all batches; ``batch``: within each batch alone, nothing is remembered
    :raises InvalidError: not exactly one of ``ttl_s`` and ``rows`` for scope ``pipeline``, or one of them for scope ``batch``
    """

    keys: Sequence[str]
    ttl_s: int | None = None
    rows: int | None = None
    scope: str = "pipeline"

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", arguments.words("dedup.keys", self.keys))
        if not self.keys:
            raise InvalidError("dedup.keys must name at least one column")
        arguments.choice("dedup.scope", self.scope, SCOPES)
        for name, value in (("ttl_s", self.ttl_s), ("rows", self.rows)):
            if value is not None:
                arguments.whole(f"dedup.{name}", value, least=1)
        bounds = sum(value is not None for value in (self.ttl_s, self.rows))
        if bounds != (1 if self.scope == "pipeline" else 0):
            raise InvalidError(
                "dedup over a pipeline needs exactly one of ttl_s and rows, dedup within a batch neither",
                scope=self.scope,
                ttl_s=self.ttl_s,
                rows=self.rows,
            )

    @property
    def remembers(self) -> bool:
        """Whether ids outlive their batch."""
        return self.scope == "pipeline"

    @property
    def terms(self) -> str:
        """For the label of the guarantee."""
        if self.ttl_s is not None:
            return f"dedup {_spoken(self.ttl_s)}"
        return f"dedup {self.rows} rows" if self.rows is not None else "dedup in each batch"

    def cutoff_ms(self, now_ms: int) -> int:
        """Ids that passed before this are forgotten. ``now_ms`` is the plan's own reading (I13)."""
        return 0 if self.ttl_s is None else now_ms - self.ttl_s * 1000


def _spoken(seconds: int) -> str:
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds % length == 0:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """
    Ids in files: ``id`` (16 bytes), ``at_ms`` (when its batch was planned), ``bucket``.

    :param newest_ms: no id of the layer passed later
    :param rows: ids
    :param files: relative to the state's place; with buckets, one file holds one bucket
    """

    newest_ms: int
    rows: int
    files: tuple[DataFile, ...] = field(default=())

    def files_of(self, buckets: set[int] | None) -> list[str]:
        """Keys of the files that may hold ids of some buckets; all of them for ``None``."""
        return [
            f.key
            for f in self.files
            if buckets is None or BUCKET not in f.partition or int(f.partition[BUCKET] or 0) in buckets
        ]


def layers_of(state: Json, dedup: Dedup, now_ms: int) -> list[Layer]:
    """The layers that are still remembered, oldest first: without those that are wholly before the cutoff, or beyond the newest ``rows``."""
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
    """
    The layers that an outcome names, oldest first.

    :raises LogDamagedError: the state is of another form, or a key leads out of the state's place
    """
    if state is None:
        return []
    given = state.get("dedup", []) if isinstance(state, dict) else None
    if not isinstance(given, list):
        raise LogDamagedError("what an outcome remembers is not a list of layers", invariant="R6")
    layers = [build(Layer, item, "state") for item in given]
    if any(_is_no_bucket(file.partition.get(BUCKET)) for layer in layers for file in layer.files):
        raise LogDamagedError("a file of remembered ids is of no bucket", invariant="R6")
    return layers


def _is_no_bucket(value: str | None) -> bool:
    return value is not None and (not value.isdecimal() or not value.isascii() or len(value) > 3)


def absorbed(layers: Sequence[Layer], rows: int) -> int:
    """How many of the layers, from the newest, a new one of ``rows`` ids takes in: those that are no larger than all after them together."""
    count = 0
    for layer in reversed(layers):
        if layer.rows > rows:
            break
        rows += layer.rows
        count += 1
    return count


def split(layers: Sequence[Layer], rows: int) -> tuple[Sequence[Layer], Sequence[Layer]]:
    """The layers that stay as they are, and those that a new one of ``rows`` ids takes in."""
    at = len(layers) - absorbed(layers, rows)
    return layers[:at], layers[at:]


def state_after(kept: Sequence[Layer], older: Sequence[Layer], written: Committable, now_ms: int) -> Json:
    """The state with a new layer in place of ``older``. No id of it passed later than its ``newest_ms``, though a clock may have gone back."""
    newest_ms = max([now_ms, *(layer.newest_ms for layer in older)])
    return state_of([*kept, Layer(newest_ms=newest_ms, rows=written.rows, files=written.files)])


def state_of(layers: Sequence[Layer]) -> Json:
    """What an outcome says of its layers, oldest first."""
    return {"dedup": [_told(layer) for layer in layers]}


def _told(layer: Layer) -> Json:
    files = [{name: value for name, value in plain(file).items() if name != "stats"} for file in layer.files]
    return {"newest_ms": layer.newest_ms, "rows": layer.rows, "files": files}


def state_files(log: str, *, bucketed: bool = False) -> FilesSink:
    """Where the layers of a log lie: beside its entries, each attempt's under a name of its own."""
    return FilesSink(f"{log.rstrip('/')}/{STATE}", partition_by=(BUCKET,) if bucketed else ())


def is_complete(log: str, state: Json) -> bool:
    """Whether every file of a state is there with the recorded size and checksum (W17)."""
    files = tuple(file for layer in stored_layers(state) for file in layer.files)
    return not files or state_files(log).is_complete(Committable(format="parquet", rows=0, files=files))
