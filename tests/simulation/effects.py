"""A simulated pipeline into two HTTP endpoints: one with claims, called at most once, and one with idempotency keys, called until it answers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from airflow_provider_streamsem import FilesSink, Limits, Pipeline
from airflow_provider_streamsem.connectors.http.calls import VERSION_HEADER
from airflow_provider_streamsem.connectors.http.endpoint import Address, CallResult
from airflow_provider_streamsem.connectors.http.sink import HttpSink
from airflow_provider_streamsem.errors import PublishError, UnavailableError
from airflow_provider_streamsem.stores.contract import UnknownResultError
from tests.simulation import checks
from tests.simulation.checks import RawLog, require
from tests.simulation.faults import Fate
from tests.simulation.scheduler import NAMES, Process, Scheduler
from tests.simulation.simulated_pipeline import PipelineFixture

CHUNK_ROWS = 2
KEY = "Idempotency-Key"
_NO_ANSWER = (Fate.LATE, Fate.NEVER, Fate.CONFLICT, Fate.LOST_REPLY)
_CALLS = "airflow_provider_streamsem.connectors.http.calls"
_DEFERRED = 429


class EffectsPipeline(PipelineFixture):
    """A pipeline into files and two endpoints. It has no reprocessing runs, because calls cannot be undone."""

    name = "effects"
    kinds = (*(kind for kind in PipelineFixture.kinds if "reprocess" not in kind), "skip", "skip")
    external_sinks = ("once", "keyed")

    def __init__(self, root: Path, scheduler: Scheduler) -> None:
        super().__init__(root, scheduler)
        self.calls: dict[tuple[str, int, str], list[str]] = defaultdict(list)
        self.performed: Counter[tuple[str, int, str]] = Counter()
        self._keys: set[str] = set()
        self._refusing: dict[str, tuple[int, int]] = {}
        self._deferring: dict[str, int] = {}

    def pipeline(self, **changes: Any) -> Pipeline:
        once, keyed = (
            HttpSink(
                staging=str(self.root / name),
                url=f"http://endpoint/{name}",
                chunk_rows=CHUNK_ROWS,
                max_wait_s=60,
                **options,
            )
            for name, options in (("once", {"delivery": "at_most_once"}), ("keyed", {"idempotent": True}))
        )
        out = FilesSink(path=str(self.root / "out"), format="json")
        sinks = {"out": out, "once": once, "keyed": keyed}
        return super().pipeline(**{"sinks": sinks, "limits": Limits(max_files=4), **changes})

    @contextmanager
    def intercepted(self) -> Iterator[None]:
        with ExitStack() as stack:
            endpoint = lambda at, method, timeout_s, clock: SimulatedEndpoint(self, at)  # noqa: E731
            stack.enter_context(patch(f"{_CALLS}.Endpoint", endpoint))
            yield

    def perform(self, name: str, version: int, key: str, body: str) -> None:
        """Perform a call in the endpoint. The endpoint with keys ignores a call whose key it knows."""
        if name == "keyed" and key in self._keys:
            self.scheduler.count["calls with a known key"] += 1
            return
        self._keys.add(key)
        self.performed[name, version, body] += 1
        self.scheduler.count[f"calls performed: {name}"] += 1

    def refusal(self, name: str, body: str) -> int:
        """The status with which the endpoint refuses a record, or 0. Some records are refused for a time."""
        if self.scheduler.faults.stopped:
            return 0
        if name + body not in self._refusing:
            until = self.refused_until()
            self._refusing[name + body] = self.rng.choice((422, 401)), until
        status, until = self._refusing[name + body]
        return status if self.scheduler.turns < until else 0

    def deferral(self, name: str, body: str) -> int:
        """The seconds for which the endpoint defers a call, or 0. Some records are deferred once or twice."""
        if self.scheduler.faults.stopped:
            return 0
        times = self._deferring.setdefault(name + body, self.rng.choice((0, 0, 0, 0, 1, 2)))
        self._deferring[name + body] = max(0, times - 1)
        return self.rng.choice((1, 10, 100)) if times else 0

    # --- checks

    def allows_failure(self, process: Process, error: Exception | None, log: RawLog) -> bool:
        count = self.scheduler.count
        if isinstance(error, PublishError) and process.refused:
            count["gave up: a sink refused"] += 1
            return True
        if isinstance(error, UnavailableError):
            if "max_wait_s" in error.fields and process.deferred:
                count["gave up: rate limit"] += 1
                return True
            chunk = (error.fields.get("version"), error.fields.get("sink"), error.fields.get("chunk"))
            if "has claimed" in str(error) and any(claim[:3] == chunk for claim in log.claims):
                count["gave up: claimed by another run"] += 1
                return True
        return super().allows_failure(process, error, log)

    def check(self, log: RawLog) -> None:
        """Check that no at-most-once call was made twice, and that the recorded effects are true (I17, I18)."""
        for (name, version, body), callers in self.calls.items():
            require(name != "once" or len(callers) == 1, "a call was made twice (I17)", version, body, callers)
        for (name, version, body), times in self.performed.items():
            require(times == 1, "an effect was performed twice", name, version, body)
        for version in log.receipts:
            for name in self.external_sinks:
                self._check_receipt(log, version, name)

    def _check_receipt(self, log: RawLog, version: int, name: str) -> None:
        bodies = [f'{{"id": {row["id"]}}}' for row in checks.rows(self.root / "out", log.files(version))]
        total: Counter[str] = Counter()
        for chunk in range(-(-len(bodies) // CHUNK_ROWS)):
            records = bodies[chunk * CHUNK_ROWS : (chunk + 1) * CHUNK_ROWS]
            round, left = 0, len(records)
            while left:
                effects = log.effects.get((version, name, chunk, round))
                require(effects is not None, "receipts exist without effects of a chunk", version, name, chunk, round)
                assert effects is not None
                of_round = records[len(records) - left : len(records) - effects.get("left", 0)]
                self._check_round(log, version, name, (chunk, round), of_round, effects, total)
                self.scheduler.count["rounds that left records"] += bool(effects.get("left"))
                round, left = round + 1, effects.get("left", 0)
        receipt = log.receipts[version]["sinks"][name]
        all_skipped = total["skipped"] and not total["done"]
        expected = "unknown" if total["unknown"] else "skipped" if all_skipped else "applied"
        facts = (version, name, receipt, total)
        require((receipt["result"], receipt["rows"]) == (expected, total["done"]), "receipts are wrong", *facts)

    def _check_round(
        self, log: RawLog, version: int, name: str, at: tuple[int, int], records: list[str], effects: Mapping[str, Any], total: Counter[str]
    ) -> None:  # fmt: skip
        counts = {field: effects[field] for field in ("done", "refused", "unknown", "skipped")}
        performed = sum(self.performed[name, version, body] for body in records)
        facts = (version, name, at, counts, performed)
        require(sum(counts.values()) == len(records), "effects count other records than the round has", *facts)
        require(counts["done"] <= performed <= counts["done"] + counts["unknown"], "effects are wrong", *facts)
        callers = {caller for body in records for caller in self.calls.get((name, version, body), ())}
        require(name != "once" or len(callers) < 2, "two publishers performed a round (I17)", *facts, callers)
        self._check_closed(log, version, name, at)
        total.update(counts)

    def _check_closed(self, log: RawLog, version: int, name: str, at: tuple[int, int]) -> None:
        """Check that only a retry of the commit's own run, or an operator, closed the claim of another publisher (P5)."""
        claim, effects = log.claims.get((version, name, *at)), log.effects[(version, name, *at)]
        if claim is None or claim["nonce"] == effects["nonce"]:
            return
        publisher = NAMES.get(effects["nonce"][:24], "")
        may_close = publisher.endswith(".skip") or self.run_keys.get(publisher) == log.plans[version]["run_key"]
        require(may_close, "another run closed a claim (P5)", version, name, at, publisher)

    def check_end(self, log: RawLog) -> None:
        super().check_end(log)
        for receipts in log.receipts.values():
            for receipt in receipts["sinks"].values():
                self.scheduler.count[f"effects: {receipt['result']}"] += 1


class SimulatedEndpoint:
    """An endpoint that waits for a turn of the scheduler before every call."""

    def __init__(self, fixture: EffectsPipeline, at: Address) -> None:
        self._fixture = fixture
        self._scheduler = fixture.scheduler
        self._name = at.url.rpartition("/")[2]

    def __enter__(self) -> SimulatedEndpoint:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def reach(self) -> None:
        process = self._scheduler.current
        if process is None:
            return
        fate = process.begin_request(f"{self._name}: reach")
        if fate in _NO_ANSWER:
            raise UnavailableError("the endpoint cannot be reached; no call was made")
        process.end_request(fate, self._name, f"{self._name}: reached")

    def call(self, body: bytes, headers: Mapping[str, str]) -> CallResult:
        fixture, process = self._fixture, self._scheduler.current
        name, version, record = self._name, int(headers[VERSION_HEADER]), body.decode()
        caller = process.name if process is not None else "no process"
        request = f"{name}: call {version} {record}"
        fate = process.begin_request(request) if process is not None else Fate.GOOD
        wait_s = fixture.deferral(name, record) if process is not None and fate is Fate.GOOD else 0
        if wait_s and process is not None:
            process.deferred = True
            self._scheduler.count["calls deferred"] += 1
            process.end_request(fate, request, f"{request}: {_DEFERRED}, after {wait_s} s")
            return CallResult("deferred", _DEFERRED, retry_after_s=wait_s)
        fixture.calls[name, version, record].append(caller)
        if fate is Fate.LATE:
            self._scheduler.schedule_late(request, lambda: fixture.perform(name, version, headers[KEY], record))
        if fate in (Fate.LATE, Fate.NEVER, Fate.CONFLICT):
            return CallResult("unclear", 503 if fate is Fate.CONFLICT else 0, "no answer")
        status = fixture.refusal(name, record)
        if not status:
            fixture.perform(name, version, headers[KEY], record)
        elif process is not None:
            process.refused = True
            self._scheduler.count["calls refused"] += 1
        try:
            if process is not None:
                process.end_request(fate, request, f"{request}: {status or 200}")
        except UnknownResultError:
            return CallResult("unclear", 0, "no answer")
        return CallResult("refused", status) if status else CallResult("done", 200)
