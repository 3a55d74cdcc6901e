"""Two endpoints outside the log: one is called at most once, with claims; one keeps the keys of its calls, and is called until it answers."""

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
from airflow_provider_streamsem.stores.contract import UnknownAnswerError
from tests.simulation import checks
from tests.simulation.checks import RawLog, require
from tests.simulation.faults import Fate
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.simulated_pipeline import PipelineFixture

CHUNK_ROWS = 2
KEY = "Idempotency-Key"
_UNHEARD = (Fate.LATE, Fate.NEVER, Fate.CONFLICT, Fate.LOST_REPLY)
_SINK = "airflow_provider_streamsem.connectors.http.calls"
_DEFERRED = 429


class Effects(PipelineFixture):
    """Files into files and two endpoints. No reprocessing run: what was called cannot be called back."""

    name = "effects"
    kinds = (*(kind for kind in PipelineFixture.kinds if "reprocess" not in kind), "skip", "skip")
    outside = ("once", "keyed")

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
                staging=str(self.root / name), url=f"http://outside/{name}", chunk_rows=CHUNK_ROWS, max_wait_s=60, **how
            )
            for name, how in (("once", {"delivery": "at_most_once"}), ("keyed", {"idempotent": True}))
        )
        out = FilesSink(path=str(self.root / "out"), format="json")
        sinks = {"out": out, "once": once, "keyed": keyed}
        return super().pipeline(**{"sinks": sinks, "limits": Limits(max_files=4), **changes})

    @contextmanager
    def turning(self) -> Iterator[None]:
        with ExitStack() as stack:
            made = lambda at, method, timeout_s, clock: TurningEndpoint(self, at)  # noqa: E731
            stack.enter_context(patch(f"{_SINK}.Endpoint", made))
            yield

    def perform(self, name: str, version: int, key: str, body: str) -> None:
        """What the endpoint does with a call that reaches it."""
        if name == "keyed" and key in self._keys:
            self.scheduler.count["calls whose key was known"] += 1
            return
        self._keys.add(key)
        self.performed[name, version, body] += 1
        self.scheduler.count[f"calls performed: {name}"] += 1

    def refusal(self, name: str, body: str) -> int:
        """The status by which some records are refused for a time, or 0."""
        if self.scheduler.weather.calm:
            return 0
        if name + body not in self._refusing:
            until = self.refused_until()
            self._refusing[name + body] = self.rng.choice((422, 401)), until
        status, until = self._refusing[name + body]
        return status if self.scheduler.turns < until else 0

    def deferral(self, name: str, body: str) -> int:
        """How many seconds a call is deferred; 0 where it is performed now. Some records are deferred a few times."""
        if self.scheduler.weather.calm:
            return 0
        times = self._deferring.setdefault(name + body, self.rng.choice((0, 0, 0, 0, 1, 2)))
        self._deferring[name + body] = max(0, times - 1)
        return self.rng.choice((1, 10, 100)) if times else 0

    # --- what must be true

    def excuses(self, process: Process, error: Exception | None, log: RawLog) -> bool:
        count = self.scheduler.count
        if isinstance(error, PublishError) and process.refused:
            count["gave up: a sink refused"] += 1
            return True
        if isinstance(error, UnavailableError):
            if "max_wait_s" in error.fields and process.deferred:
                count["gave up: the rate is limited"] += 1
                return True
            chunk = (error.fields.get("version"), error.fields.get("sink"), error.fields.get("chunk"))
            if "has claimed" in str(error) and any(claim[:3] == chunk for claim in log.claims):
                count["gave up: claimed by another run"] += 1
                return True
        return super().excuses(process, error, log)

    def check(self, log: RawLog) -> None:
        """No call is made twice where none may be, and what is noted of the effects is true (I17, I18)."""
        for (name, version, body), callers in self.calls.items():
            require(name != "once" or len(callers) == 1, "a call was made twice (I17)", version, body, callers)
        for (name, version, body), times in self.performed.items():
            require(times == 1, "an effect was performed twice", name, version, body)
        for version in log.receipts:
            for name in self.outside:
                self._check_receipt(log, version, name)

    def _check_receipt(self, log: RawLog, version: int, name: str) -> None:
        bodies = [f'{{"id": {row["id"]}}}' for row in checks.rows(self.root / "out", log.files(version))]
        total: Counter[str] = Counter()
        for chunk in range(-(-len(bodies) // CHUNK_ROWS)):
            mine = bodies[chunk * CHUNK_ROWS : (chunk + 1) * CHUNK_ROWS]
            turn, left = 0, len(mine)
            while left:
                noted = log.effects.get((version, name, chunk, turn))
                require(noted is not None, "receipts without effects of a part", version, name, chunk, turn)
                assert noted is not None
                of_round = mine[len(mine) - left : len(mine) - noted.get("left", 0)]
                self._check_round(log, version, name, (chunk, turn), of_round, noted, total)
                self.scheduler.count["rounds that left records"] += bool(noted.get("left"))
                turn, left = turn + 1, noted.get("left", 0)
        receipt = log.receipts[version]["sinks"][name]
        nothing = total["skipped"] and not total["done"]
        told = "unknown" if total["unknown"] else "skipped" if nothing else "applied"
        facts = (version, name, receipt, total)
        require((receipt["result"], receipt["rows"]) == (told, total["done"]), "receipts that are not so", *facts)

    def _check_round(
        self, log: RawLog, version: int, name: str, at: tuple[int, int], mine: list[str], noted: Mapping[str, Any], total: Counter[str]
    ) -> None:  # fmt: skip
        counts = {word: noted[word] for word in ("done", "refused", "unknown", "skipped")}
        performed = sum(self.performed[name, version, body] for body in mine)
        facts = (version, name, at, counts, performed)
        require(sum(counts.values()) == len(mine), "effects of other records than the round's", *facts)
        require(counts["done"] <= performed <= counts["done"] + counts["unknown"], "effects that are not so", *facts)
        callers = {by for body in mine for by in self.calls.get((name, version, body), ())}
        require(name != "once" or len(callers) < 2, "two entries performed a round (I17)", *facts, callers)
        self._check_closed(log, version, name, at)
        total.update(counts)

    def _check_closed(self, log: RawLog, version: int, name: str, at: tuple[int, int]) -> None:
        """Only a retry of the commit's own run, or an operator, calls another's claim unknown (P5)."""
        claim, noted = log.claims.get((version, name, *at)), log.effects[(version, name, *at)]
        if claim is None or claim["nonce"] == noted["nonce"]:
            return
        by = noted["nonce"].rpartition("-")[0]
        may = by.endswith(".skip") or self.run_keys.get(by) == log.plans[version]["run_key"]
        require(may, "another run closed a claim (P5)", version, name, at, by)

    def check_end(self, log: RawLog) -> None:
        super().check_end(log)
        for receipts in log.receipts.values():
            for receipt in receipts["sinks"].values():
                self.scheduler.count[f"effects: {receipt['result']}"] += 1


class TurningEndpoint:
    """An endpoint as one process sees it: every call is a turn of the scheduler."""

    def __init__(self, fixture: Effects, at: Address) -> None:
        self._fixture = fixture
        self._scheduler = fixture.scheduler
        self._name = at.url.rpartition("/")[2]

    def __enter__(self) -> TurningEndpoint:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def reach(self) -> None:
        process = self._scheduler.current
        if process is None:
            return
        fate = process.sends(f"{self._name}: reach")
        if fate in _UNHEARD:
            raise UnavailableError("the endpoint cannot be reached; no call was made")
        process.answered(fate, self._name, f"{self._name}: reached")

    def call(self, body: bytes, headers: Mapping[str, str]) -> CallResult:
        fixture, process = self._fixture, self._scheduler.current
        name, version, record = self._name, int(headers[VERSION_HEADER]), body.decode()
        by = process.name if process is not None else "by hand"
        what = f"{name}: call {version} {record}"
        fate = process.sends(what) if process is not None else Fate.GOOD
        wait_s = fixture.deferral(name, record) if process is not None and fate is Fate.GOOD else 0
        if wait_s and process is not None:
            process.deferred = True
            self._scheduler.count["calls deferred"] += 1
            process.answered(fate, what, f"{what}: {_DEFERRED}, after {wait_s} s")
            return CallResult("deferred", _DEFERRED, retry_after_s=wait_s)
        fixture.calls[name, version, record].append(by)
        if fate is Fate.LATE:
            self._scheduler.later(what, lambda: fixture.perform(name, version, headers[KEY], record))
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
                process.answered(fate, what, f"{what}: {status or 200}")
        except UnknownAnswerError:
            return CallResult("unclear", 0, "no answer")
        return CallResult("refused", status) if status else CallResult("done", 200)
