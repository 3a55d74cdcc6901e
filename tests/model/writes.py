"""
The writes of the protocol: which entry is created, and what the log has at that time.

The model and the simulation describe a write in the same words. ``writes.json`` has every write that the model makes in its small scopes. A write of the
package, which the simulation runs, must be one of them. So a change of the package that the model does not have is found.

A write is a list of words: the entry, the kind of its version, and the state of the log before the write:

* ``plan``: the result of the version before, and whether its commit is published
* ``manifest``: whether the version is open
* ``pointer``: whether the version is open, or its result
* ``outcome``: its result, and whether the attempt that it names is staged
* ``receipts``: the result of a sink
* ``claim``: whether the version is a commit
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.model.configurations import CONFIGURATIONS, SMALL
from tests.model.explore import Explorer
from tests.model.protocol import Protocol
from tests.model.state import (
    APPLIED,
    COMMIT,
    DONE,
    NOBODY,
    NONE,
    SENT,
    WITHOUT_PUBLISH,
    Log,
    State,
    Version,
)

Write = tuple[str, ...]
FILE = Path(__file__).with_name("writes.json")
FIRST, NO_ATTEMPT = "first version", "no attempt"
_RESULTS = {DONE: APPLIED, SENT: APPLIED}
"""result of one call in the model → result of a sink in the receipts"""


def of_model(before: State, after: State, *, publishes: bool) -> set[Write]:
    """
    Return the writes of one step of the model.

    :param publishes: whether the pipeline has sinks outside the log
    """
    writes: set[Write] = set()
    for n, version in enumerate(after.log):
        known = before.log[n] if n < len(before.log) else None
        if known != version:
            writes |= _of_version(before.log, n, known, version, publishes=publishes)
    for run, chain in enumerate(after.pointers):
        for j, n in enumerate(chain):
            if n != NONE and (j >= len(before.pointers[run]) or before.pointers[run][j] == NONE):
                writes.add(("pointer", after.log[n].plan.kind, _result(before.log[n])))
    return writes


def _of_version(log: Log, n: int, known: Version | None, version: Version, *, publishes: bool) -> set[Write]:
    kind = version.plan.kind
    if known is None:
        previous = log[n - 1] if n else None
        return {("plan", kind, *(_closed(previous, publishes=publishes) if previous is not None else (FIRST,)))}
    writes: set[Write] = set()
    # The model drops attempts that cannot be committed any more, so their indexes change.
    if sum(attempt.manifest for attempt in version.attempts) > sum(attempt.manifest for attempt in known.attempts):
        writes.add(("manifest", kind, "open" if known.outcome is None else "closed"))
    if version.outcome is not None and known.outcome is None:
        outcome = version.outcome
        is_staged = outcome.attempt != NONE and version.attempts[outcome.attempt].manifest
        attempt = NO_ATTEMPT if outcome.attempt == NONE else "staged" if is_staged else "not staged"
        writes.add(("outcome", kind, outcome.result, attempt))
    if version.receipts is not None and known.receipts is None:
        writes |= {("receipts", kind, _RESULTS.get(result, result)) for result in version.receipts}
    if version.claim != NOBODY and known.claim == NOBODY:
        writes.add(("claim", kind, _result(known)))
    return writes


def _result(version: Version) -> str:
    return "open" if version.outcome is None else version.outcome.result


def _closed(version: Version, *, publishes: bool) -> Write:
    if _result(version) != COMMIT:
        return (_result(version),)
    if version.receipts is not None:
        return COMMIT, "published"
    return COMMIT, "pending" if publishes and version.plan.kind not in WITHOUT_PUBLISH else "nothing to publish"


def of_model_in(scopes: Iterable[str]) -> set[Write]:
    """Explore scopes, and return the writes of all steps."""
    writes: set[Write] = set()
    for name in scopes:
        explorer = Explorer(Protocol(CONFIGURATIONS[name]))
        explorer.run()
        for state in explorer.states():
            for _, _, after in explorer.protocol.successors(state):
                if state[:2] != after[:2]:
                    writes |= of_model(state, after, publishes=bool(CONFIGURATIONS[name].sinks))
    return writes


_ENTRY = re.compile(r"log/\d{8}/\d{12}-(\d+)\.([pcd])\.json")
_MANIFEST = re.compile(r"attempts/(\d+)/([^/]+)\.json")
_POINTER = re.compile(r"runs/[0-9a-f]{64}/\d{12}-\d+\.json")
_CLAIM = re.compile(r"claims/(\d+)/[^/]+/\d+(-\d+)?\.json")


def of_history(history: Iterable[tuple[str, bytes | None]]) -> set[Write]:
    """
    Return the writes of a log.

    :param history: key → bytes of each created object, in the order of the creates; ``None``: the object was deleted
    """
    writes: set[Write] = set()
    kinds: dict[int, str] = {}
    outcomes: dict[int, Mapping[str, Any]] = {}
    published: set[int] = set()
    staged: set[tuple[int, str]] = set()

    def result(version: int) -> str:
        return str(outcomes[version]["result"]) if version in outcomes else "open"

    for key, data in history:
        if data is None:
            continue
        entry, manifest, claim = _ENTRY.fullmatch(key), _MANIFEST.fullmatch(key), _CLAIM.fullmatch(key)
        if entry is not None and entry[2] == "p":
            version, kinds[int(entry[1])] = int(entry[1]), json.loads(data)["work"]["kind"]
            before = version - 1
            words = [FIRST] if version == 0 else [result(before)]
            if words == [COMMIT]:
                is_pending = outcomes[before].get("publish") and before not in published
                words.append("published" if before in published else "pending" if is_pending else "nothing to publish")
            writes.add(("plan", kinds[version], *words))
        elif entry is not None and entry[2] == "c":
            version, outcome = int(entry[1]), json.loads(data)
            id = outcome["attempt_id"]
            attempt = NO_ATTEMPT if id is None else "staged" if (version, id) in staged else "not staged"
            writes.add(("outcome", kinds[version], outcome["result"], attempt))
            outcomes[version] = outcome
        elif entry is not None:
            version, receipts = int(entry[1]), json.loads(data)
            writes |= {("receipts", kinds[version], sink["result"]) for sink in receipts["sinks"].values()}
            published.add(version)
        elif manifest is not None:
            version = int(manifest[1])
            writes.add(("manifest", kinds[version], "closed" if version in outcomes else "open"))
            staged.add((version, manifest[2]))
        elif _POINTER.fullmatch(key):
            version = json.loads(data)["version"]
            writes.add(("pointer", kinds[version], result(version)))
        elif claim is not None:
            writes.add(("claim", kinds[int(claim[1])], result(int(claim[1]))))
    return writes


def stored() -> set[Write]:
    """Return the writes of the model, from the file."""
    return {tuple(write) for write in json.loads(FILE.read_text())}


def main() -> None:
    """Explore the small scopes, and store their writes."""
    writes = sorted(of_model_in(SMALL))
    FILE.write_text("[\n" + ",\n".join(f"  {json.dumps(write)}" for write in writes) + "\n]\n")


if __name__ == "__main__":
    main()
