"""The steps of a run, one after the other: each request to the log before and after it is applied, each step of the engine. A run may die at any of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.engines.contract import Engine, Job, Produced
from airflow_provider_streamsem.sinks.contract import Sink
from airflow_provider_streamsem.sources.contract import Source
from airflow_provider_streamsem.stores.contract import ObjectStat, Store
from airflow_provider_streamsem.testing.stores import Crash

T = TypeVar("T")


class Steps:
    """
    Called with the name of each step that a run takes; at one of them the process dies.

    A death is a :class:`Crash`, which nothing may catch: what is stored stays as it was at that step, and a dead process takes no further step. It differs
    from ``kill -9`` in that ``finally`` blocks run and the memory of the process lives on.

    :param at: number of the step at which the process dies, from 0; ``None``: at none
    :attr taken: the names of the steps so far; of a process that died, the last is where it died
    """

    def __init__(self, at: int | None = None) -> None:
        self._at = at
        self.taken: list[str] = []
        self.died = False

    def __call__(self, name: str) -> None:
        """Take a step, or die at it."""
        if not self.died:
            self.taken.append(name)
            self.died = len(self.taken) - 1 == self._at
        if self.died:
            raise Crash


class SteppedStore:
    """
    Passes every request on; each is two steps, ``before create KEY`` and ``after create KEY``.

    :param unless: requests for keys that start with this are no steps; by default the doctor's, whose order is not fixed
    """

    def __init__(self, store: Store, step: Callable[[str], object], unless: str = "doctor/") -> None:
        self.store = store
        self.url = store.url
        self._step = step
        self._unless = unless

    def create(self, key: str, data: bytes) -> bool:
        """Two steps around the request."""
        return self._stepped("create", key, lambda: self.store.create(key, data))

    def read(self, key: str) -> bytes | None:
        """Two steps around the request."""
        return self._stepped("read", key, lambda: self.store.read(key))

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        """Two steps around the whole listing."""
        return iter(self._stepped("list", prefix, lambda: [*self.store.list(prefix, limit, start_after)]))

    def stat(self, key: str) -> ObjectStat | None:
        """Two steps around the request."""
        return self._stepped("stat", key, lambda: self.store.stat(key))

    def delete(self, key: str) -> None:
        """Two steps around the request."""
        self._stepped("delete", key, lambda: self.store.delete(key))

    def _stepped(self, method: str, key: str, request: Callable[[], T]) -> T:
        if key.startswith(self._unless):
            return request()
        self._step(f"before {method} {key}")
        answer = request()
        self._step(f"after {method} {key}")
        return answer


class SteppedEngine:
    """
    An engine whose attempts are steps: ``read``, ``transform``, for each sink ``write NAME`` and ``collect NAME``, and ``staged``.

    Each is taken before what it names, the last one after all. Inside a Spark job there are none.

    :param source: loads the records instead of the pipeline's source, where it is given
    """

    def __init__(self, engine: Engine, step: Callable[[str], object], source: Source | None = None) -> None:
        self._engine = engine
        self._step = step
        self._source = source

    def stage(self, job: Job, log: CommitLog) -> Produced:
        """Stage with the engine, step by step."""

        def transform(frame: Any) -> Any:
            self._step("transform")
            return job.transform(frame)

        self._step("read")
        sinks: dict[str, Any] = {name: _SteppedSink(name, sink, self._step) for name, sink in job.sinks.items()}
        stepped = dataclasses.replace(job, transform=transform, sinks=sinks, source=self._source or job.source)
        produced = self._engine.stage(stepped, log)
        self._step("staged")
        return produced

    def cancel(self) -> None:
        """Cancel the engine."""
        self._engine.cancel()


class _SteppedSink:
    """A sink as an engine meets it, with a step before it writes and before it collects."""

    def __init__(self, name: str, sink: Sink, step: Callable[[str], object]) -> None:
        self._name, self._sink, self._step = name, sink, step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def stage(self, frame: Any, version: int, attempt_id: str) -> Any:
        self._step(f"write {self._name}")
        return self._sink.stage(frame, version, attempt_id)

    def collect(self, version: int, attempt_id: str, accepted: frozenset[str] | None = None) -> Any:
        self._step(f"collect {self._name}")
        return self._sink.collect(version, attempt_id, accepted)
