"""A Pub/Sub subscription, and a pipeline that reads it."""

from __future__ import annotations

import json
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

from airflow_provider_streamsem import Pipeline, PubSubQueue, QueueSource
from airflow_provider_streamsem.stores.memory import open_memory_store
from tests.pipeline_fixture import PipelineFixture

_NAMES = count()


class Subscription:
    """A topic and a subscription for one test, with the fixture of the pipeline that reads it."""

    def __init__(self, root: Path, *, ack_deadline_s: int = 10, **config: Any) -> None:
        from google.cloud.pubsub_v1 import PublisherClient, SubscriberClient

        root.mkdir(exist_ok=True)
        self.fixture = PipelineFixture(root, store=open_memory_store(f"pubsub-{next(_NAMES)}"))
        self.publisher, self.subscriber = PublisherClient(), SubscriberClient()
        name = f"orders-{next(_NAMES)}"
        self.topic = f"projects/test/topics/{name}"
        self.path = f"projects/test/subscriptions/{name}"
        self.create_topic(self.topic)
        self.subscriber.create_subscription(
            request={"name": self.path, "topic": self.topic, "ack_deadline_seconds": ack_deadline_s, **config}
        )
        self.queue = PubSubQueue(subscription=self.path, ack_deadline_s=60, wait_s=2)
        self.sent = 0

    def create_topic(self, topic: str) -> None:
        self.publisher.create_topic(request={"name": topic})

    def put(self, *bodies: bytes, key: str = "", **attributes: str) -> list[str]:
        from google.pubsub_v1 import PubsubMessage
        from google.pubsub_v1.services.publisher import PublisherClient

        messages = [PubsubMessage(data=body, attributes=attributes, ordering_key=key) for body in bodies]
        sent = PublisherClient.publish(self.publisher, topic=self.topic, messages=messages)
        return [*sent.message_ids]

    def send(self, messages: int, **attributes: str) -> None:
        self.put(*(json.dumps({"id": n}).encode() for n in range(self.sent, self.sent + messages)), **attributes)
        self.sent += messages

    def redeliver(self, *handles: str) -> None:
        """End the ack deadlines of deliveries now, as their expiry does."""
        self.subscriber.modify_ack_deadline(subscription=self.path, ack_ids=handles, ack_deadline_seconds=0)

    def left(self) -> int:
        """Return the number of messages that can be delivered now. They stay undelivered."""
        response = self.subscriber.pull(subscription=self.path, max_messages=1000, timeout=5)
        handles = [message.ack_id for message in response.received_messages]
        if handles:
            self.redeliver(*handles)
        return len(handles)

    def pipeline(self, **source: Any) -> Pipeline:
        arguments = {"landing": str(self.fixture.root / "in"), "schema": "id long", **source}
        return self.fixture.pipeline(source=QueueSource(queue=self.queue, **arguments))

    def run(self, run_key: str, **source: Any) -> Any:
        return self.fixture.run(run_key, pipeline=self.pipeline(**source))

    def landed(self) -> list[dict[str, Any]]:
        files = sorted((self.fixture.root / "in").glob("*.jsonl"), reverse=True)
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def check(self) -> None:
        assert self.left() == 0
        assert self.fixture.verdict().violations == []
        assert self.fixture.visible() == Counter(range(self.sent))
