"""A queue of a RabbitMQ broker, and a pipeline that reads it."""

from __future__ import annotations

import json
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

from airflow_provider_streamsem import AmqpQueue, Pipeline, QueueSource
from airflow_provider_streamsem.stores.memory import open_memory_store
from tests.integration.parts.rabbitmq import RabbitMQ
from tests.pipeline_fixture import PipelineFixture

_NAMES = count()


class Queue:
    """A durable queue for one test, with the fixture of the pipeline that reads it."""

    def __init__(self, rabbitmq: RabbitMQ, root: Path, **arguments: Any) -> None:
        self.broker = rabbitmq
        self.name = f"orders-{next(_NAMES)}"
        root.mkdir(exist_ok=True)
        self.fixture = PipelineFixture(root, store=open_memory_store(f"amqp-{next(_NAMES)}"))
        self.queue = AmqpQueue(**{"name": self.name, "host": rabbitmq.host, **arguments})
        self.sent = 0
        self._do(lambda channel: channel.queue_declare(self.name, durable=True))

    def _do(self, act: Any) -> Any:
        import pika

        host, _, port = self.broker.host.partition(":")
        with pika.BlockingConnection(pika.ConnectionParameters(host, int(port))) as opened:
            channel = opened.channel()
            channel.confirm_delivery()
            return act(channel)

    def send(self, messages: int) -> None:
        numbers = range(self.sent, self.sent + messages)
        self.put(*((f"m{n}", json.dumps({"id": n}).encode()) for n in numbers))
        self.sent += messages

    def put(self, *messages: tuple[str | None, bytes], **headers: Any) -> None:
        import pika

        def act(channel: Any) -> None:
            for message_id, body in messages:
                properties = pika.BasicProperties(message_id=message_id, delivery_mode=2, headers=headers or None)
                channel.basic_publish("", self.name, body, properties)

        self._do(act)

    def left(self) -> int:
        messages: int = self._do(lambda channel: channel.queue_declare(self.name, passive=True)).method.message_count
        return messages

    def pipeline(self, **source: Any) -> Pipeline:
        arguments = {"landing": str(self.fixture.root / "in"), "schema": "id long", **source}
        return self.fixture.pipeline(source=QueueSource(queue=self.queue, **arguments))

    def run(self, run_key: str, **source: Any) -> Any:
        return self.fixture.run(run_key, pipeline=self.pipeline(**source))

    def check(self) -> None:
        assert self.left() == 0
        assert self.fixture.verdict().violations == []
        assert self.fixture.visible() == Counter(range(self.sent))
