"""
Reports the steps of a run, so that a test can kill the run at any of them.

There is a step before and after each request to the log, and for each step of the engine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.predicate import Predicate
from airflow_provider_streamsem.connectors.sink import Sink
from airflow_provider_streamsem.connectors.source import Source
from airflow_provider_streamsem.engine import Engine, Job, Produced, RewriteJob, RewrittenFiles
from airflow_provider_streamsem.protocol.entries import DataFile
from airflow_provider_streamsem.stores.contract import ObjectStat, Store
from airflow_provider_streamsem.testing.stores import Crash

T = TypeVar("T")


class Steps:
    """
    Records the steps of a run, and simulates a kill of the process at one of them. The run calls an instance with the name of each step.

    To simulate a kill, the instance raises :class:`Crash`, which no code may catch, at this step and at all later ones. So the stored state remains that of
    this step. Unlike with ``kill -9``, ``finally`` blocks run, and the memory of the process remains.

    :param at: index of the step at which the process is killed, from 0; ``None``: at no step
    :attr taken: the names of the steps so far. After a kill, the last one is the step of the kill
    :attr died: whether the process was killed
    """

    def __init__(self, at: int | None = None) -> None:
        self._at = at
        self.taken: list[str] = []
        self.died = False

    def __call__(self, name: str) -> None:
        """
        Record a step.

        :raises Crash: the process is killed at this step, or was killed at an earlier one
        """
        if not self.died:
            self.taken.append(name)
            self.died = len(self.taken) - 1 == self._at
        if self.died:
            raise Crash


class StepReportingStore:
    """
    A store that forwards every request to another store, and reports two steps for each, such as ``before create KEY`` and ``after create KEY``.

    :param store: the other store
    :param step: called with the name of each step
    :param unless: requests for keys with this prefix are not reported. Default: those of the store probe, whose order varies
    """

    def __init__(self, store: Store, step: Callable[[str], object], unless: str = "doctor/") -> None:
        self.store = store
        self.url = store.url
        self._step = step
        self._unless = unless

    def create(self, key: str, data: bytes) -> bool:
        return self._stepped("create", key, lambda: self.store.create(key, data))

    def read(self, key: str) -> bytes | None:
        return self._stepped("read", key, lambda: self.store.read(key))

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        """Forward the complete listing between two steps."""
        return iter(self._stepped("list", prefix, lambda: [*self.store.list(prefix, limit, start_after)]))

    def stat(self, key: str) -> ObjectStat | None:
        return self._stepped("stat", key, lambda: self.store.stat(key))

    def delete(self, key: str) -> None:
        self._stepped("delete", key, lambda: self.store.delete(key))

    def _stepped(self, method: str, key: str, request: Callable[[], T]) -> T:
        if key.startswith(self._unless):
            return request()
        self._step(f"before {method} {key}")
        response = request()
        self._step(f"after {method} {key}")
        return response


class StepReportingEngine:
    """
    An engine that stages with another engine, and reports the steps of an attempt: ``read``, ``transform``, ``write NAME`` and ``collect NAME`` for each sink,
    and ``staged``.

    Each step is reported before the action that it names, except ``staged``, which is reported after all of them. There are no steps within a Spark job.

    :param engine: the other engine
    :param step: called with the name of each step
    :param source: the source from which the records are loaded; default: the pipeline's source
    """

    def __init__(self, engine: Engine, step: Callable[[str], object], source: Source | None = None) -> None:
        self._engine = engine
        self._step = step
        self._source = source

    def stage(self, job: Job, log: CommitLog) -> Produced:
        def transform(frame: Any) -> Any:
            self._step("transform")
            return job.transform(frame)

        self._step("read")
        sinks: dict[str, Any] = {name: _StepReportingSink(name, sink, self._step) for name, sink in job.sinks.items()}
        step_by_step = dataclasses.replace(job, transform=transform, sinks=sinks, source=self._source or job.source)
        produced = self._engine.stage(step_by_step, log)
        self._step("staged")
        return produced

    def rewrite(self, job: RewriteJob, log: CommitLog) -> RewrittenFiles:
        """Rewrite with the other engine, and report the first and the last step."""
        self._step("read")
        rewritten = self._engine.rewrite(job, log)
        self._step("staged")
        return rewritten

    def count_selected(
        self, sink: Sink, files: Sequence[DataFile], schema: str, predicate: Predicate
    ) -> Mapping[str, int] | None:
        return self._engine.count_selected(sink, files, schema, predicate)

    def publishing_session(self, sink: Sink, *, later: Sequence[Any] = ()) -> AbstractContextManager[Any]:
        return self._engine.publishing_session(sink, later=later)

    def cancel(self) -> None:
        self._engine.cancel()


class _StepReportingSink:
    """A sink that forwards to another sink, and reports a step before it stages and before it collects."""

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
