"""
Reads and writes the offsets of a Kafka source in the checkpoint of a Structured Streaming query.

The checkpoint has a file ``offsets/<n>`` with the end offsets of batch n, and ``commits/<n>`` if the batch is complete. The first line of both is the version
of the format. Spark 3.5 to 4.3 write version 1 of ``offsets``: a line of JSON with times and settings, then a line for each source. The line of a Kafka source
is ``{"<topic>": {"<partition>": <end offset>}}``, and the line of a source without offsets is ``-``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from airflow_provider_streamsem.connectors.kafka.cluster import parse_partition
from airflow_provider_streamsem.errors import ConflictError, DataError, InvalidError
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.offsets import Offsets
from airflow_provider_streamsem.stores.contract import Store

_VERSION = "v1"
_DO_FINISH = "start the query once more with Trigger.AvailableNow, wait until it ends, then repeat this command."


def read_offsets(checkpoint: Store, *, is_read: Callable[[str], bool]) -> tuple[int, dict[str, int]]:
    """
    Return the newest complete batch, and the end offsets of its Kafka source: ``<topic>-<partition>`` → offset, exclusive.

    Exactly one source of the query must read only topics of the pipeline (``DataError``). A last batch that is not complete is refused (``InvalidError``).
    """
    planned, committed = _newest(checkpoint, "offsets/"), _newest(checkpoint, "commits/")
    if committed is None or planned is None:
        raise InvalidError(
            "the location has no checkpoint with a complete batch; nothing was read", checkpoint=checkpoint.url
        ).advising("give the directory that contains `offsets` and `commits`.")
    if planned != committed:
        raise InvalidError(
            "the last batch of the query is not complete, so its output may contain records after these offsets; nothing was read",
            checkpoint=checkpoint.url,
            planned=planned,
            committed=committed,
        ).advising(_DO_FINISH)
    if _json_object(_lines(checkpoint, f"commits/{committed}")[1:2]) is None:
        raise InvalidError(
            "the commit of the query's last batch is empty or damaged, so the batch may not be complete; nothing was read",
            checkpoint=checkpoint.url,
            file=f"commits/{committed}",
        ).advising(f"delete this file, {_DO_FINISH}")
    lines = _lines(checkpoint, f"offsets/{planned}")
    if lines[0] != _VERSION:
        raise _format_error(checkpoint, planned, f"the format has version {lines[0][:10]!r}")
    sources = [offsets for line in lines[2:] if (offsets := _kafka_offsets(line)) is not None]
    matching = [offsets for offsets in sources if offsets and all(map(is_read, offsets))]
    if len(matching) != 1 or any(any(map(is_read, offsets)) for offsets in sources if offsets not in matching):
        raise _format_error(
            checkpoint, planned, "the topics of the pipeline must be the topics of exactly one source of the query"
        )
    return planned, {
        f"{topic}-{number}": end for topic, ends in sorted(matching[0].items()) for number, end in sorted(ends.items())
    }


def _newest(checkpoint: Store, directory: str) -> int | None:
    names = [stat.key.removeprefix(directory) for stat in checkpoint.list(directory)]
    return max((int(name) for name in names if re.fullmatch(r"[0-9]{1,18}", name)), default=None)


def _lines(checkpoint: Store, key: str) -> list[str]:
    return (checkpoint.read(key) or b"").decode(errors="replace").split("\n")


def _json_object(lines: Sequence[str]) -> dict[str, Json] | None:
    try:
        parsed: Json = json.loads(lines[0])
    except (ValueError, IndexError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def _kafka_offsets(line: str) -> dict[str, dict[int, int]] | None:
    """Return topic → partition → offset of the line of a Kafka source; ``None`` for a line of another form."""
    parsed: Any = _json_object([line])
    try:
        return {
            topic: {_number(number): _offset(end) for number, end in partitions.items()}
            for topic, partitions in parsed.items()
        }
    except (ValueError, AttributeError):
        return None


def _number(text: str) -> int:
    if not re.fullmatch(r"0|[1-9][0-9]{0,8}", text):
        raise ValueError
    return int(text)


def _offset(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError
    return value


def _format_error(checkpoint: Store, batch: int, reason: str) -> DataError:
    summary = "the offsets in the checkpoint cannot be used; nothing was read"
    return DataError(summary, checkpoint=checkpoint.url, batch=batch, reason=reason).advising(
        "copy `endOffset` of the query's last progress (StreamingQueryProgress) into `starting` of the source."
    )


def write_offsets(checkpoint: Store, offsets: Offsets, *, now_ms: int) -> None:
    """
    Create a checkpoint from which a query with one Kafka source starts at the given offsets. The query then writes batch 1.

    The location must be empty (``ConflictError``). The checkpoint is complete only after this function returns.
    """
    ends: dict[str, dict[str, int]] = {}
    for name, offset in sorted(offsets.items()):
        partition = parse_partition(name)
        ends.setdefault(partition.topic, {})[str(partition.number)] = offset
    times = {"batchWatermarkMs": 0, "batchTimestampMs": now_ms, "conf": {}}
    if next(iter(checkpoint.list("", 1)), None) is not None:
        raise ConflictError(
            "the location of the checkpoint is not empty; nothing was written", checkpoint=checkpoint.url
        ).advising("give an empty location. If an earlier call of this command failed, delete what it wrote first.")
    for key, lines in (
        ("offsets/0", [_VERSION, json.dumps(times), json.dumps(ends)]),
        ("commits/0", [_VERSION, json.dumps({"nextBatchWatermarkMs": 0})]),
    ):
        if not checkpoint.create(key, "\n".join(lines).encode()):
            summary = "another process writes a checkpoint to this location; the checkpoint is not usable"
            raise ConflictError(summary, checkpoint=checkpoint.url, key=key).advising("give an empty location.")
