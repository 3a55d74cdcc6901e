"""The Pulsar source passes the conformance suite on a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import count

import pytest

from airflow_provider_streamsem import Json, PulsarSource
from airflow_provider_streamsem.testing.conformance import SourceContract, SourceSystem
from tests.integration.parts.pulsar import PulsarServer

pytestmark = pytest.mark.integration
_NAMES = count()


class Topic(SourceSystem):
    """A topic with one partition. Each call of :meth:`add` fills one ledger. The first ledger is deleted on request."""

    def __init__(self, server: PulsarServer) -> None:
        self.server, self.name = server, f"conform{next(_NAMES)}"
        server.create(self.name, 1)
        self.source = PulsarSource(topic=self.name, conn_id="my_pulsar", value=Json(schema="id long"))
        self.secrets = [server.token()]

    def add(self, ids: Iterable[int]) -> None:
        self.server.put(f"{self.name}-partition-0", [json.dumps({"id": id}).encode() for id in ids])
        self.server.close_ledger(f"{self.name}-partition-0")

    def expire(self) -> list[int]:
        self.server.trim(f"{self.name}-partition-0", below=self.server.ledgers(f"{self.name}-partition-0")[1])
        return [0, 1, 2]


class TestPulsarSource(SourceContract):
    @pytest.fixture
    def system(self, pulsar_server: PulsarServer, monkeypatch: pytest.MonkeyPatch) -> Topic:
        monkeypatch.setenv("AIRFLOW_CONN_MY_PULSAR", pulsar_server.connection())
        return Topic(pulsar_server)
