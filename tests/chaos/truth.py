"""What a plain consumer reads from the whole topic, held against what the producer knows."""

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
class Truth:
    """
    Every number that a ``read_committed`` consumer sees.

    :param places: number → (partition, offset), once for each record that holds it
    :param findings: where consumer and producer contradict each other; then the trial proves nothing
    """

    places: dict[int, list[tuple[int, int]]]
    aborted: int
    unknown: int
    findings: list[str]


def read_topic(bootstrap: str, topic: str, seconds: float = 120) -> dict[int, list[tuple[int, int]]]:
    """Number → where it is."""
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
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    left = set(range(PARTITIONS))
    deadline = time.monotonic() + seconds
    while left:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the topic could not be read to its end; partitions left: {sorted(left)}")
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            if message.error().code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
            continue
        found[int(message.value())].append((message.partition(), message.offset()))
    consumer.close()
    return dict(found)


def truth(setting: Setting) -> Truth:
    """The truth of a trial whose producer has ended."""
    places = read_topic(setting.bootstrap, setting.topic)
    findings = [f"number {n} lies in the topic {len(at)} times" for n, at in places.items() if len(at) > 1]
    counts: dict[str, int] = defaultdict(int)
    known: set[int] = set()
    for line in (setting.root / "produced.jsonl").read_text().splitlines():
        entry = json.loads(line)
        numbers = range(entry["first"], entry["end"])
        known.update(numbers)
        there = sum(n in places for n in numbers)
        counts[entry["state"]] += len(numbers)
        allowed = {"committed": {len(numbers)}, "aborted": {0}, "unknown": {0, len(numbers)}}[entry["state"]]
        if there not in allowed:
            findings.append(
                f"{entry['state']} transaction {entry['first']}..{entry['end']}: {there} records are visible"
            )
    findings += [f"number {n} was never produced" for n in sorted({*places} - known)]
    return Truth(places, counts["aborted"], counts["unknown"], findings)
