"""The subjects under test, by name: pipelines of this package, and common alternatives."""

from __future__ import annotations

from importlib import import_module

from tests.chaos.setting import Setting
from tests.chaos.subjects.contract import Subject

SUBJECTS = {
    "streamsem": "streamsem:Streamsem",
    "streamsem_on_a_cluster": "streamsem:StreamsemOnACluster",
    "streamsem_into_sinks": "into_sinks:StreamsemIntoSinks",
    "streamsem_join": "with_state:StreamsemJoin",
    "streamsem_windows": "with_state:StreamsemWindows",
    "foreach_batch": "foreach_batch:ForeachBatch",
    "offsets_task": "offsets_task:OffsetsTask",
    "file_sink": "file_sink:FileSink",
    "delta_append": "delta_append:DeltaAppend",
}


def subject_class(name: str) -> type[Subject]:
    module, _, cls = SUBJECTS[name].partition(":")
    subject_cls: type[Subject] = getattr(import_module(f"{__name__}.{module}"), cls)
    return subject_cls


def subject(name: str, setting: Setting) -> Subject:
    return subject_class(name)(setting)
