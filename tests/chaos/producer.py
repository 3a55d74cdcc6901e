"""
Produces numbered records in transactions, some of them aborted on purpose. `python -m tests.chaos.producer SETTING.json SEED` runs until SIGTERM.

Its journal (`produced.jsonl`) records the state of every transaction: `committed`, `aborted`, or `unknown` if the broker never answered the commit. Each
number is used in one transaction only.
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
TIMEOUT_S = 10.0
stopping = False


def stop(*_: Any) -> None:
    global stopping
    stopping = True


def connect(bootstrap: str, transactional_id: str) -> Producer:
    """Return an initialised producer. This aborts the open transaction of its predecessor."""
    while True:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": 20_000,
                "linger.ms": 5,
            }
        )
        try:
            producer.init_transactions(TIMEOUT_S)
            return producer
        except KafkaException:
            time.sleep(0.5)


def transaction(producer: Producer, setting: Setting, first: int, rng: random.Random) -> tuple[str, int]:
    """Run one transaction. Return its state, and the first number after it."""
    end = first + rng.randint(5, 60)
    state = "aborted"  # no record can become visible before a commit is sent
    try:
        producer.begin_transaction()
        for number in range(first, end):
            producer.produce(setting.topic, str(number).encode(), partition=rng.randrange(PARTITIONS))
        if rng.random() < 0.2:
            if producer.flush(TIMEOUT_S):  # the aborted records must be in the topic
                return "aborted, and the broker did not answer", end
            producer.abort_transaction(TIMEOUT_S)
            return "aborted", end
        state = "unknown"
        producer.commit_transaction(TIMEOUT_S)
    except (KafkaException, BufferError):
        return state + ", and the broker did not answer", end
    return "committed", end


def main(setting: Setting, seed: int) -> None:
    signal.signal(signal.SIGTERM, stop)
    rng = random.Random(seed)
    producer = connect(setting.bootstrap, setting.topic)
    number = 0
    with open(setting.root / "produced.jsonl", "a") as journal:
        while not stopping:
            first = number
            state, number = transaction(producer, setting, first, rng)
            journal.write(json.dumps({"first": first, "end": number, "state": state.partition(",")[0]}) + "\n")
            journal.flush()
            if "did not answer" in state:
                with suppress(KafkaException):
                    producer.purge()
                producer = connect(setting.bootstrap, setting.topic)
            time.sleep(rng.uniform(0.1, 0.5))


if __name__ == "__main__":
    main(Setting.read(sys.argv[1]), int(sys.argv[2]))
