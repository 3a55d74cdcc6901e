"""Finds what a predicate selects in the objects of a log and of its datasets, for an erasure."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.predicate import Predicate
from airflow_provider_streamsem.connectors.sink import Sink
from airflow_provider_streamsem.engine import Engine
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.entries import DataFile, Outcome, Quarantine
from airflow_provider_streamsem.protocol.view import LogView, stored_output

Counts = Mapping[str, int]
"""Key of a file → number of its selected rows, which is above 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedRows:
    """
    What a predicate selects as of a version.

    :param view: the visible files
    :param files: files sink → the visible files with selected rows
    :param kept: version → its quarantined records that are not selected, for each version with selected records
    :param records: version → number of its selected quarantined records
    :param tombstones: sink → number of its selected tombstones
    """

    view: LogView = field(default_factory=LogView)
    files: Mapping[str, Counts] = field(default_factory=dict)
    kept: Mapping[int, Sequence[bytes]] = field(default_factory=dict)
    records: Mapping[int, int] = field(default_factory=dict)
    tombstones: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_nothing(self) -> bool:
        """Whether nothing is selected."""
        return not (any(self.files.values()) or self.records or self.tombstones)


class Selector:
    """
    Searches a log and its datasets. Each file is read once, because files never change.

    :attr searched: the files sinks whose rows have the columns, and those without rows
    :attr without_columns: the files sinks whose rows lack a column of the predicate
    :attr unfit: files sink → the error for a column whose type does not fit the predicate
    """

    def __init__(
        self, pipeline: Pipeline, log: CommitLog, predicate: Predicate, engine: Engine, *, only_quarantined: bool
    ) -> None:
        self._pipeline, self._log, self._predicate, self._engine = pipeline, log, predicate, engine
        self._only_quarantined = only_quarantined
        self._known: dict[tuple[str, str], int] = {}
        self._outcome = cache(log.outcome)
        self.searched: set[str] = set()
        self.without_columns: set[str] = set()
        self.unfit: dict[str, InvalidError] = {}

    @property
    def _files_sinks(self) -> dict[str, Sink]:
        return {name: sink for name, sink in self._pipeline.sinks.items() if not sink.is_outside_log}

    def select(self, outcome: Outcome) -> SelectedRows:
        """Search the visible files, the quarantined records of all versions, and the newest tombstones."""
        view = self._log.view(version=outcome.version)
        kept, records = self._records(outcome)
        if self._only_quarantined:
            return SelectedRows(view=view, kept=kept, records=records)
        files = {
            name: self._count(name, [file.file for file in view.sink(name)], outcome) for name in self._files_sinks
        }
        tombstones: Mapping[str, int] = {}
        if self._pipeline.keeps_layers:
            from airflow_provider_streamsem.tombstones import count_selected

            tombstones = count_selected(outcome.state, self._predicate, log=self._log.store.url)
        return SelectedRows(view=view, files=files, kept=kept, records=records, tombstones=tombstones)

    def select_old_files(self, outcome: Outcome, view: LogView) -> dict[str, Counts]:
        """
        Search the files that no reader of the newest version reads, and that no rewrite has stored again: those of commits that were replaced or rolled back,
        and of rewrites that no longer apply.
        """
        found: dict[str, Counts] = {}
        for name, sink in self._files_sinks.items():
            rewritten = {commit for each in view.rewrites if each.sink == name for commit in each.commits}
            known = {file.version for file in view.sink(name)} | rewritten
            files: list[DataFile] = []
            for version, attempt_id in sorted(sink.attempts()):
                of_version = None if version in known or version > outcome.version else self._outcome(version)
                if of_version is not None and of_version.attempt_id == attempt_id:
                    files += stored_output(of_version)[name].files if name in stored_output(of_version) else ()
            found[name] = self._count(name, files, outcome)
        return {name: counts for name, counts in found.items() if counts}

    def expect_nothing_in(self, sink: str, files: Sequence[DataFile]) -> None:
        """Skip files that an erasure has written, because their rows were compared with those to keep."""
        self._known |= {(sink, file.key): 0 for file in files}

    def _count(self, name: str, files: Sequence[DataFile], outcome: Outcome) -> Counts:
        unknown = [file for file in files if file.rows and (name, file.key) not in self._known]
        schema = outcome.schemas.get(name)
        if unknown and schema is not None and name not in self.unfit:
            try:
                counts = self._engine.count_selected(self._pipeline.sinks[name], unknown, schema, self._predicate)
            except InvalidError as error:
                self.unfit[name] = error
                return {}
            (self.searched if counts is not None else self.without_columns).add(name)
            self._known |= {(name, file.key): (counts or {}).get(file.key, 0) for file in unknown}
        return {file.key: count for file in files if (count := self._known.get((name, file.key), 0))}

    def _records(self, outcome: Outcome) -> tuple[dict[int, list[bytes]], dict[int, int]]:
        replaced = self._log.erased_quarantine(outcome)
        listed = {key.split("/")[1] for key in self._log.list_keys(keys.QUARANTINE)}
        versions = {version for text in listed if (version := keys.position(text)) is not None} | {*replaced}
        kept: dict[int, list[bytes]] = {}
        records: dict[int, int] = {}
        for version in sorted(version for version in versions if version <= outcome.version):
            of_version = self._outcome(version)
            stored = replaced.get(version) or (Quarantine() if of_version is None else of_version.quarantine)
            lines = [line for key in stored.keys for line in (self._log.read(key) or b"").splitlines()]
            others = [line for line in lines if not any(map(self._predicate.is_in_text, _texts(line)))]
            if len(others) < len(lines):
                kept[version], records[version] = others, len(lines) - len(others)
        return kept, records


def _texts(line: bytes) -> list[str]:
    """Return the text of a quarantined record. If its bytes are not UTF-8, the encoding is not known."""
    record = json.loads(line)
    raw = record.get("raw") or ""
    if record.get("encoding") != "base64":
        return [raw]
    data = base64.b64decode(raw)
    return [data.decode("utf-8", "replace"), data.decode("latin-1")]
