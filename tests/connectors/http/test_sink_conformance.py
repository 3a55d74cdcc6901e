"""The conformance suite of sinks, on the HTTP sink with each delivery."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from airflow_provider_streamsem.connectors.http.sink import HttpSink
from airflow_provider_streamsem.testing.conformance import SinkContract, SinkSystem
from tests.connectors.http.endpoints import Recorder, serving

DELIVERIES: dict[str, dict[str, Any]] = {
    "at_least_once": {"delivery": "at_least_once"},
    "at_most_once": {"delivery": "at_most_once"},
    "effectively_once": {"delivery": "at_least_once", "idempotent": True},
}


class RecordedEndpoint(SinkSystem):
    def __init__(self, root: Path, delivery: str, recorder: Recorder) -> None:
        self.root, self.delivery, self.recorder = root, delivery, recorder

    def sink(self) -> HttpSink:
        return HttpSink(str(self.root), url=self.recorder.url, chunk_rows=1, **DELIVERIES[self.delivery])

    def ids(self) -> list[int]:
        if self.delivery == "effectively_once":  # the endpoint performs each key once
            return [row["id"] for row in self.recorder.table().values()]
        return [*self.recorder.ids().elements()]

    @contextmanager
    def watching(self, step: Callable[[str], object]) -> Iterator[None]:
        original = requests.Session.request

        def request(session: Any, method: str, url: str, **named: Any) -> Any:
            step("before call")
            response = original(session, method, url, **named)
            step("after call")
            return response

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(requests.Session, "request", request)
            yield

    def lose_markers(self) -> None:
        raise AssertionError("an endpoint stores no marker")

    def lost_reply(self) -> Exception:
        return requests.exceptions.ReadTimeout("no reply")


class TestHttpSink(SinkContract):
    @pytest.fixture(params=DELIVERIES)
    def fresh(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], SinkSystem]]:
        roots = (tmp_path / str(number) for number in range(1_000))
        with ExitStack() as servers:
            yield lambda: RecordedEndpoint(next(roots), request.param, servers.enter_context(serving(Recorder())))
