"""The records that a plain consumer reads from the whole topic, compared with the producer's journal."""

from __future__ import annotations

import json
import time
import uuid
from collections import defaultdict
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.chaos.producer import PARTITIONS
from tests.chaos.setting import Setting


@dataclass(frozen=True)
class Expected:
    """
    Every number that a ``read_committed`` consumer sees.

    :param locations: number → (partition, offset), once for each record with the number
    :param violations: contradictions between consumer and producer, which make the trial inconclusive
    """

    locations: dict[int, list[tuple[int, int]]]
    aborted: int
    unknown: int
    violations: list[str]


def read_topic(bootstrap: str, topic: str, seconds: float = 120) -> dict[int, list[tuple[int, int]]]:
    """Read the topic and return number → its locations."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    locations: dict[int, list[tuple[int, int]]] = defaultdict(list)
    unfinished = set(range(PARTITIONS))
    deadline = time.monotonic() + seconds
    while unfinished:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the topic was not read to its end in time; partitions left: {sorted(unfinished)}")
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            if message.error().code() == KafkaError._PARTITION_EOF:
                unfinished.discard(message.partition())
            continue
        locations[int(message.value())].append((message.partition(), message.offset()))
    consumer.close()
    return dict(locations)


def expected_rows(setting: Setting) -> Expected:
    """Return the expected rows of a trial whose producer has ended."""
    locations = read_topic(setting.bootstrap, setting.topic)
    violations = [f"number {n} is in the topic {len(at)} times" for n, at in locations.items() if len(at) > 1]
    counts: dict[str, int] = defaultdict(int)
    known: set[int] = set()
    for line in (setting.root / "produced.jsonl").read_text().splitlines():
        entry = json.loads(line)
        numbers = range(entry["first"], entry["end"])
        known.update(numbers)
        visible = sum(n in locations for n in numbers)
        counts[entry["state"]] += len(numbers)
        allowed = {"committed": {len(numbers)}, "aborted": {0}, "unknown": {0, len(numbers)}}[entry["state"]]
        if visible not in allowed:
            violations.append(
                f"{entry['state']} transaction {entry['first']}..{entry['end']}: {visible} records are visible"
            )
    violations += [f"number {n} was never produced" for n in sorted({*locations} - known)]
    return Expected(locations, counts["aborted"], counts["unknown"], violations)
