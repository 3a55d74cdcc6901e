"""
Produces numbered records in transactions, some of them aborted on purpose. `python -m tests.chaos.producer SETTING.json SEED` runs until SIGTERM.

Its journal (`produced.jsonl`) has the state of every transaction: `committed`, `aborted`, or `unknown` if the broker never answered the commit. A number is
used only once, whatever the state of its transaction.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaException, Producer

from tests.chaos.setting import Setting

PARTITIONS = 3
PATIENCE_S = 10.0
stopping = False


def stop(*_: Any) -> None:
    global stopping
    stopping = True


def connected(bootstrap: str, transactional_id: str) -> Producer:
    """Return a producer. Its predecessor's open transaction is aborted."""
    while True:
        made = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": 20_000,
                "linger.ms": 5,
            }
        )
        try:
            made.init_transactions(PATIENCE_S)
            return made
        except KafkaException:
            time.sleep(0.5)


def transaction(producer: Producer, setting: Setting, first: int, chance: random.Random) -> tuple[str, int]:
    """Run one transaction. Return its state, and the first number after it."""
    end = first + chance.randint(5, 60)
    state = "aborted"  # before a commit was sent, no record can become visible
    try:
        producer.begin_transaction()
        for number in range(first, end):
            producer.produce(setting.topic, str(number).encode(), partition=chance.randrange(PARTITIONS))
        if chance.random() < 0.2:
            if producer.flush(PATIENCE_S):  # so that the aborted records are really in the topic
                return "aborted, and the broker did not answer", end
            producer.abort_transaction(PATIENCE_S)
            return "aborted", end
        state = "unknown"
        producer.commit_transaction(PATIENCE_S)
    except (KafkaException, BufferError):
        return state + ", and the broker did not answer", end
    return "committed", end


def main(setting: Setting, seed: int) -> None:
    signal.signal(signal.SIGTERM, stop)
    chance = random.Random(seed)
    producer = connected(setting.bootstrap, setting.topic)
    number = 0
    with open(setting.root / "produced.jsonl", "a") as journal:
        while not stopping:
            first = number
            state, number = transaction(producer, setting, first, chance)
            journal.write(json.dumps({"first": first, "end": number, "state": state.partition(",")[0]}) + "\n")
            journal.flush()
            if "did not answer" in state:
                with suppress(KafkaException):
                    producer.purge()
                producer = connected(setting.bootstrap, setting.topic)
            time.sleep(chance.uniform(0.1, 0.5))


if __name__ == "__main__":
    main(Setting.read(sys.argv[1]), int(sys.argv[2]))
