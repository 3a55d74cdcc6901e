"""The steps of a run, in order: each request to the log before and after it is applied, and each step of the engine. A test can kill the run at any step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.contract import Sink, Source
from airflow_provider_streamsem.engine import Engine, Job, Produced
from airflow_provider_streamsem.stores.contract import ObjectStat, Store
from airflow_provider_streamsem.testing.stores import Crash

T = TypeVar("T")


class Steps:
    """
    Called with the name of each step of a run. At one step it kills the process.

    A kill is a :class:`Crash`, which no code may catch. The stored state stays as it was at that step, and a killed process takes no further step. Unlike
    with ``kill -9``, ``finally`` blocks run and the memory of the process remains.

    :param at: number of the step at which the process is killed, from 0; with ``None``, at no step
    :attr taken: the names of the steps so far. In a killed process, the last one is the step at which it was killed
    :attr died: whether the process was killed
    """

    def __init__(self, at: int | None = None) -> None:
        self._at = at
        self.taken: list[str] = []
        self.died = False

    def __call__(self, name: str) -> None:
        """Record a step, or raise :class:`Crash` at it."""
        if not self.died:
            self.taken.append(name)
            self.died = len(self.taken) - 1 == self._at
        if self.died:
            raise Crash


class SteppedStore:
    """
    Forwards every request. Each request is two steps, ``before create KEY`` and ``after create KEY``.

    :param unless: requests for keys with this prefix are not steps. Default: the doctor's requests, whose order varies
    """

    def __init__(self, store: Store, step: Callable[[str], object], unless: str = "doctor/") -> None:
        self.store = store
        self.url = store.url
        self._step = step
        self._unless = unless

    def create(self, key: str, data: bytes) -> bool:
        """Forward the request between two steps."""
        return self._stepped("create", key, lambda: self.store.create(key, data))

    def read(self, key: str) -> bytes | None:
        """Forward the request between two steps."""
        return self._stepped("read", key, lambda: self.store.read(key))

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        """Forward the complete listing between two steps."""
        return iter(self._stepped("list", prefix, lambda: [*self.store.list(prefix, limit, start_after)]))

    def stat(self, key: str) -> ObjectStat | None:
        """Forward the request between two steps."""
        return self._stepped("stat", key, lambda: self.store.stat(key))

    def delete(self, key: str) -> None:
        """Forward the request between two steps."""
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
    An engine that reports the steps of an attempt: ``read``, ``transform``, ``write NAME`` and ``collect NAME`` for each sink, and ``staged``.

    Each step precedes the action that it names, except ``staged``, which follows all of them. There are no steps inside a Spark job.

    :param source: if given, loads the records in place of the pipeline's source
    """

    def __init__(self, engine: Engine, step: Callable[[str], object], source: Source | None = None) -> None:
        self._engine = engine
        self._step = step
        self._source = source

    def stage(self, job: Job, log: CommitLog) -> Produced:
        """Stage with the wrapped engine, and report its steps."""

        def transform(frame: Any) -> Any:
            self._step("transform")
            return job.transform(frame)

        self._step("read")
        sinks: dict[str, Any] = {name: _SteppedSink(name, sink, self._step) for name, sink in job.sinks.items()}
        step_by_step = dataclasses.replace(job, transform=transform, sinks=sinks, source=self._source or job.source)
        produced = self._engine.stage(step_by_step, log)
        self._step("staged")
        return produced

    def cancel(self) -> None:
        """Cancel the wrapped engine."""
        self._engine.cancel()


class _SteppedSink:
    """A sink that reports a step before it writes and before it collects."""

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
