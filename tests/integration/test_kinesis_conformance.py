"""The Kinesis source passes the conformance suite on kinesalite, a server with real ranges of sequence numbers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator

import pytest

from airflow_provider_streamsem import Json, KinesisSource
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.testing.clock import ManualClock
from airflow_provider_streamsem.testing.conformance import SourceContract, SourceSystem
from tests.integration.parts.kinesis import Kinesalite

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("spark")]

_NAMES = itertools.count()


class Stream(SourceSystem):
    """
    A stream with two shards. Each call of ``add`` adds to the other shard.

    The first records arrive 26 hours before now, by the server's clock, and later ones 13 hours later. So the first records expire if the server's clock is
    set to now.
    """

    source: KinesisSource
    secrets = ("the-secret-key",)

    def __init__(self, server: Kinesalite, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = server
        name = f"conformance-{next(_NAMES)}"
        self.clock = ManualClock(SYSTEM_CLOCK.now_ms())
        self._set_clock(-27)
        server.create(name, shards=2)
        extra = json.dumps({"endpoint_url": server.url, "region_name": "us-east-1"})
        connection = {"conn_type": "aws", "login": "testing", "password": self.secrets[0], "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_KINESIS", json.dumps(connection))
        self.source = KinesisSource(stream=name, conn_id="kinesis", value=Json(schema="id long"))
        self.client = server.client()
        self.keys = itertools.cycle(("0", str(2**127)))
        self.hours = itertools.count(-26, 13)
        self.calls: list[list[int]] = []

    def add(self, ids: Iterable[int]) -> None:
        hours = next(self.hours)
        self._set_clock(hours)
        key = next(self.keys)
        self.calls.append([*ids])
        for id in self.calls[-1]:
            data = json.dumps({"id": id}).encode()
            self.client.put_record(StreamName=self.source.stream, Data=data, PartitionKey="k", ExplicitHashKey=key)
        self._set_clock(hours)

    def expire(self) -> list[int]:
        self._set_clock(0)
        return self.calls[0]

    def _set_clock(self, hours: int) -> None:
        """Set the clocks of the server and of the pipeline, relative to the real one."""
        self.server.set_clock(hours)
        self.clock.sleep((SYSTEM_CLOCK.now_ms() - self.clock.now_ms()) / 1000 + hours * 3600 + 0.001)


class TestKinesisSource(SourceContract):
    @pytest.fixture
    def system(self, kinesis: Kinesalite, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stream]:
        yield Stream(kinesis, monkeypatch)
        kinesis.set_clock(0)
