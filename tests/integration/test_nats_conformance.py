"""The NATS source passes the conformance suite on a real server."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import count

import pytest

from airflow_provider_streamsem import Json, NatsSource
from airflow_provider_streamsem.testing.conformance import SourceContract, SourceSystem
from tests.integration.parts.nats import NatsServer

pytestmark = pytest.mark.integration
_NAMES = count()


class Stream(SourceSystem):
    """A stream with one subject. Its first message is purged on request."""

    def __init__(self, nats: NatsServer) -> None:
        self.nats, self.name = nats, f"CONFORM{next(_NAMES)}"
        nats.create(self.name)
        self.source = NatsSource(stream=self.name, servers=nats.address_of_clients, value=Json(schema="id long"))

    def add(self, ids: Iterable[int]) -> None:
        self.nats.publish(f"{self.name}.a", [json.dumps({"id": id}).encode() for id in ids])

    def expire(self) -> list[int]:
        self.nats.ask(f"STREAM.PURGE.{self.name}", {"seq": 2})
        return [0]


class TestNatsSource(SourceContract):
    @pytest.fixture
    def system(self, nats: NatsServer) -> Stream:
        return Stream(nats)
