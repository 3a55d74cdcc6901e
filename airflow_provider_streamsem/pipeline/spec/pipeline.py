"""The spec of a pipeline: the class :class:`Pipeline`, its JSON and TOML forms, and the Spark settings of a pipeline file."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from importlib import import_module
from typing import Any, cast

from airflow_provider_streamsem import arguments, registry, secret_names
from airflow_provider_streamsem.connectors.lookup import Lookup
from airflow_provider_streamsem.connectors.sink import PublishingSink, Sink
from airflow_provider_streamsem.connectors.source import Source
from airflow_provider_streamsem.deduplication.settings import Dedup
from airflow_provider_streamsem.delivery import LABELS
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.expectations import Expect, expectations
from airflow_provider_streamsem.gates import Gate, gates
from airflow_provider_streamsem.limits import Limits
from airflow_provider_streamsem.partitions import WATERMARK, Partitions, partitions
from airflow_provider_streamsem.pipeline.spec.guarantee import guarantee, require
from airflow_provider_streamsem.pipeline.spec.several_sources import SeveralSources
from airflow_provider_streamsem.protocol.codec import canonical, plain, sha256
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.protocol.offsets import Ranges
from airflow_provider_streamsem.spark import packages
from airflow_provider_streamsem.spark.packages import Package
from airflow_provider_streamsem.state.settings import State
from airflow_provider_streamsem.stores.contract import check_location, normalised, overlap

NAME = r"[a-z0-9_-]{1,64}"
TRANSFORM = r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*"
_AIRFLOW_PREFIX = re.compile(r"^unusual_prefix_[0-9a-f]{40}_")
"""The prefix that Airflow adds to the module name of a DAG file. It contains a hash of the file's path, so it differs between machines."""
DERIVED = ("guarantee", "immutable_config")
"""Fields of the JSON form that are computed from the others. The reader of a spec ignores them."""
LIMITS = ("max_files", "max_bytes", "max_rows", "min_rows")


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """
    The spec of a pipeline: its source, transform, sinks and commit log. One pipeline has one log. Objects are immutable and validated when they are created.

    :param name: ``[a-z0-9_-]{1,64}``. The name is a label; the uuid in the log identifies the pipeline
    :param log: location of the commit log: ``s3://bucket/prefix``, ``file:///path`` or an absolute path. Exactly one of ``log`` and ``log_conn_id`` must be
        given
    :param log_conn_id: a connection of type ``streamsem``. The log is at the connection's root + ``/`` + ``name``
    :param source: the source of the records. Exactly one of ``source`` and ``sources`` must be given
    :param sources: several sources: name → source. The transform receives a mapping of these names to DataFrames. Each limit applies to each source by itself
    :param lookups: name → lookup table. The transform receives a mapping of these names to DataFrames as its second argument. The plan of a batch pins the rows
        of each table, so all attempts of the batch read the same rows
    :param sinks: sink name → sink. One commit makes the rows of a batch in all file sinks visible; sinks outside the log are published after it
    :param transform: ``fn(DataFrame) -> DataFrame`` or ``-> {sink name: DataFrame}``, or its name ``"package.module:function"``. Evaluated once per attempt.
        Default: rows pass unchanged
    :param where: SQL predicate over the parsed columns, applied before the transform. Rows for which it is false or null are dropped and counted as filtered
    :param expect: name of a rule → :class:`Expect`, for the records that pass ``where``. Rules for the rows of a sink are an argument of the sink
    :param gates: conditions for the staged rows of a batch. If one does not hold, the batch fails, is held for a user, or causes a warning
    :param partitions: the partitions of the rows by event time, and when they are complete
    :param intervals: whether each version reads the records that arrived in one period of time, such as the data interval of a DAG run, in any order of the
        periods. Default: each version continues at the offsets where the one before it ended
    :param rows: ``"filter"`` declares that the transform returns exactly one row for each input row, for every sink. Every attempt then checks that
        parsed = filtered + dropped + duplicates + written. ``"any"``: the pipeline declares nothing about the transform's row count
    :param state: settings of the state that the transform keeps across batches. The transform then receives a streaming DataFrame. Requires classic Spark 4.1
        or newer. Default: the transform keeps no state
    :param dedup: drop records whose id is in the deduplication state, which is committed with each batch
    :param limits: bounds for one batch: its maximum size, its minimum number of rows, and the maximum number of quarantined records
    :param on_data_loss: ``"fail"``: records that were deleted from the source before they were read stop the pipeline, with an error that names the item.
        ``"record_gap"``: such records are skipped, and the outcome lists them as gaps. If an open version was planned with them, it is aborted, and its range
        is planned again
    :param require: the guarantee that the pipeline must have: ``exactly_once``, ``effectively_once``, ``at_least_once`` or ``at_most_once``. A pipeline with a
        weaker guarantee is refused. Default: every guarantee is accepted
    :raises InvalidError: an argument is not valid, or the computed guarantee is weaker than ``require``
    """

    name: str
    log: str = ""
    source: Source = None  # type: ignore[assignment]  # __post_init__ sets it from ``sources``
    sources: InitVar[Mapping[str, Source] | None] = None
    sinks: Mapping[str, Sink]
    log_conn_id: str | None = None
    lookups: Mapping[str, Lookup] = field(default_factory=dict)
    transform: Callable[..., Any] | str | None = None
    where: str | None = None
    expect: Mapping[str, Expect] = field(default_factory=dict)
    gates: Sequence[Gate] = ()
    partitions: Partitions | None = None
    intervals: bool = False
    rows: str = "any"
    dedup: Dedup | None = None
    state: State | None = None
    limits: Limits = field(default_factory=Limits)
    on_data_loss: str = "fail"
    require: str | None = None

    def __post_init__(self, sources: Mapping[str, Source] | None) -> None:
        arguments.text("pipeline name", self.name, pattern=NAME, accepted=NAME)
        if self.log_conn_id is not None:
            arguments.text("log_conn_id", self.log_conn_id)
        arguments.exactly_one(f"pipeline {self.name}:", log=self.log or None, log_conn_id=self.log_conn_id)
        if self.log_conn_id is None:
            check_location("log", self.log)
        self._set_source(sources)
        if not isinstance(self.sinks, Mapping) or not self.sinks:
            raise InvalidError(
                "sinks must map at least one name to a sink", given=type(self.sinks).__name__, pipeline=self.name
            )
        for name, sink in self.sinks.items():
            arguments.text("sink name", name, pattern=NAME, accepted=NAME)
            _check_class("sinks", sink, Sink)
        self._check_lookups()
        self._check_locations()
        self._check_replaced_rows()
        if isinstance(self.transform, str):
            arguments.text("transform", self.transform, pattern=TRANSFORM, accepted="package.module:function")
        elif self.transform is not None and not callable(self.transform):
            raise InvalidError(
                "transform must be a function or its name",
                given=type(self.transform).__name__,
                accepted="package.module:function",
            )
        if self.where is not None:
            arguments.text("where", self.where)
        object.__setattr__(self, "expect", expectations(f"pipeline {self.name}:", self.expect))
        self._check_gates()
        self._check_partitions()
        arguments.choice("rows", self.rows, ("any", "filter"))
        if self.dedup is not None and not isinstance(self.dedup, Dedup):
            raise InvalidError("dedup must be a Dedup", given=type(self.dedup).__name__)
        self._check_state()
        self._check_corrections()
        self._check_intervals()
        if not isinstance(self.limits, Limits):
            raise InvalidError("limits must be a Limits", given=type(self.limits).__name__)
        unsupported = [
            name for name in LIMITS if getattr(self.limits, name) is not None and name not in self.source.limits
        ]
        if unsupported:
            raise InvalidError(
                "this source does not support these limits", given=unsupported, accepted=list(self.source.limits)
            )
        arguments.choice("on_data_loss", self.on_data_loss, ("fail", "record_gap"))
        settings = {name: part for name, part in self.without_transform().items() if name not in self.queries}
        settings["sinks"] = {name: sink | {"expect": {}} for name, sink in settings["sinks"].items()}
        secret_names.without_secrets(f"pipeline {self.name}:", settings)
        if self.require is not None:
            arguments.choice("require", self.require, LABELS)
            require(self, self.require)

    def _set_source(self, sources: Mapping[str, Source] | None) -> None:
        arguments.exactly_one(f"pipeline {self.name}:", source=self.source, sources=sources)
        if sources is not None:
            object.__setattr__(self, "source", SeveralSources(dict(sources) if isinstance(sources, Mapping) else {}))
        parts = self.source.parts if isinstance(self.source, Source) else {"": self.source}
        if not parts:
            summary = "sources must map at least one name to a source"
            raise InvalidError(summary, given=type(sources).__name__, pipeline=self.name)
        for name, source in parts.items():
            if name:
                arguments.text("source name", name, pattern=NAME, accepted=NAME)
            _check_class("sources", source, Source)
        if not self._has_several_sources:
            return
        for name, source in parts.items():
            if source.reason_records_are_needed:
                summary = "a batch may have no records of one of several sources, so the columns of each must be known without records"
                raise InvalidError(summary, source=name, reason=source.reason_records_are_needed)
        unsupported = [name for name in ("where", "dedup") if getattr(self, name) is not None]
        unsupported += ["expect"] if self.expect else []
        unsupported += ["rows"] if self.rows == "filter" else []
        if unsupported:
            raise InvalidError(
                "these arguments apply to the records of one source; they are not valid with several sources",
                given=unsupported,
                accepted="filter and deduplicate in the transform; set `expect` of the sinks",
            )

    @property
    def _has_several_sources(self) -> bool:
        return isinstance(self.source, SeveralSources)

    @property
    def source_extras(self) -> list[str]:
        """Return the extras of this package that install the client libraries of the sources, sorted."""
        return sorted({source.extra for source in self.source.parts.values()} - {""})

    def _check_lookups(self) -> None:
        if not isinstance(self.lookups, Mapping):
            raise InvalidError("lookups must map names to lookup tables", given=type(self.lookups).__name__)
        for name, lookup in self.lookups.items():
            arguments.text("lookup name", name, pattern=NAME, accepted=NAME)
            _check_class("lookups", lookup, Lookup)
        if self.lookups and self.transform is None:
            raise InvalidError("a pipeline with `lookups` requires a transform", pipeline=self.name)

    def _check_gates(self) -> None:
        object.__setattr__(self, "gates", gates(f"pipeline {self.name}:", self.gates))
        changing = [name for name, sink in self.sinks.items() if sink.changes is not None]
        repeated = [name for name in changing if any(gate.unique and gate.applies_to(name) for gate in self.gates)]
        if repeated:
            raise InvalidError(
                "a batch may have several changes of one key, so `unique` of a gate does not apply to a sink with `changes`",
                sinks=repeated,
                accepted="a gate with sink=",
            )
        unknown = sorted({gate.sink for gate in self.gates if gate.sink is not None} - {*self.sinks})
        if unknown:
            raise InvalidError(
                "a gate names a sink that the pipeline does not have", given=unknown, accepted=sorted(self.sinks)
            )

    def _check_partitions(self) -> None:
        object.__setattr__(self, "partitions", partitions(f"pipeline {self.name}:", self.partitions))
        if self.partitions is None:
            return
        if self.partitions.sink not in (None, *self.sinks):
            raise InvalidError(
                "`partitions` names a sink that the pipeline does not have",
                given=self.partitions.sink,
                accepted=sorted(self.sinks),
            )
        if self.partitions.sink is None and len(self.sinks) > 1:
            raise InvalidError(
                "`partitions` of a pipeline with several sinks requires `sink`", accepted=sorted(self.sinks)
            )
        if self.partitions.complete == WATERMARK and self.state is None:
            raise InvalidError(
                'complete="watermark" of `partitions` requires `state`, because only a pipeline with state has a watermark'
            )

    @property
    def partitioned_sink(self) -> str:
        """Return the sink whose rows ``partitions`` counts."""
        assert self.partitions is not None
        return self.partitions.sink or next(iter(self.sinks))

    def _check_state(self) -> None:
        if self.state is not None and not isinstance(self.state, State):
            raise InvalidError("state must be a State", given=type(self.state).__name__)
        self._check_output_mode(self.transform)
        if self.state is None:
            return
        if self.rows == "filter":
            raise InvalidError(
                'rows="filter" is not valid with state, because a stateful transform changes the number of rows'
            )
        mode = self.state.output_mode
        appending = sorted(name for name, sink in self.sinks.items() if not sink.merges)
        if mode == "complete" and appending:
            summary = 'with output_mode="complete", each batch returns the whole result, and these sinks would append it again'
            raise InvalidError(
                summary, sinks=appending, accepted='sinks with mode="upsert", or output_mode="update" or "append"'
            )

    def _check_output_mode(self, transform: object) -> None:
        modes = getattr(transform, "output_modes", None)
        output_mode = None if self.state is None else self.state.output_mode
        if modes is not None and output_mode not in modes:
            summary = "this transform requires state with one of the accepted output modes"
            accepted = [f'State(output_mode="{mode}")' for mode in modes]
            raise InvalidError(summary, transform=str(transform), given=output_mode, accepted=accepted)
        if modes is not None and self.lookups:
            raise InvalidError(
                "this transform takes the records alone, and the pipeline has lookups",
                transform=str(transform),
                accepted="a function that calls it with the records",
            )
        if modes is not None and self._has_several_sources:
            raise InvalidError(
                "this transform takes the records of one source, and the pipeline has several",
                transform=str(transform),
                accepted="a function that calls it with the records of one of them, or with their union",
            )

    def _check_corrections(self) -> None:
        """Refuse a source whose records the runs replace by reprocessing, if reprocessing cannot replace their effects."""
        if self.source.on_reprocess != "reprocess":
            return
        accepted = 'on_reprocess="refuse" or "ignore"'
        if self.state is not None:
            summary = 'on_reprocess="reprocess" is not valid with state: later versions keep the state of the replaced records'
            raise InvalidError(summary, pipeline=self.name, accepted=accepted)
        if fixed := self.sinks_that_cannot_remove_rows:
            summary = 'on_reprocess="reprocess" must replace rows, and these sinks cannot replace published rows'
            raise InvalidError(summary, pipeline=self.name, sinks=fixed, accepted=accepted)

    def _check_intervals(self) -> None:
        """Refuse what depends on the order of the batches, because intervals are read in any order, and sources that cannot read them."""
        if not arguments.flag("intervals", self.intervals):
            return
        unable = [name or "source" for name, source in self.source.parts.items() if not source.reads_intervals]
        if unable:
            raise InvalidError("these sources cannot read intervals", sources=unable).advising(
                "leave out `intervals`: each run then reads what is new. To run a DAG once for each complete hour or day, set `partitions`."
            )
        given = [name for name in ("state", "partitions") if getattr(self, name) is not None]
        given += ["dedup"] if self.dedup is not None and self.dedup.keeps_state else []
        given += [f"limits.{name}" for name in LIMITS if getattr(self.limits, name) is not None]
        given += [f"sinks.{name}" for name, sink in sorted(self.sinks.items()) if sink.is_sequenced]
        if given:
            raise InvalidError(
                "these arguments require versions in the order of the source, and intervals are read as a whole and in any order",
                given=given,
                accepted="a pipeline without them, or without `intervals`",
            )

    def _check_replaced_rows(self) -> None:
        """Refuse two sinks with the same table and version column: each would replace the rows of the other."""
        owners: dict[str, str] = {}
        for name, sink in self.sinks.items():
            rows = sink.replaced_rows
            if rows is None:
                continue
            if rows in owners:
                summary = "two sinks find their rows by the same version column of one table, so they would replace each other's rows"
                raise InvalidError(summary, sinks=sorted([owners[rows], name]), rows=rows).advising(
                    "give each sink its own table or its own version_column. No rows were committed."
                )
            owners[rows] = name

    def _check_locations(self) -> None:
        locations = {f"sinks.{name}": sink.location for name, sink in self.sinks.items()}
        if self.log_conn_id is None:
            locations = {"log": self.log, **locations}
        for name, source in self.source.parts.items():
            if source.location is not None:
                locations[f"sources.{name}" if name else "source"] = source.location
        urls = [(name, normalised(url)) for name, url in locations.items()]
        pairs = [(one, other) for at, one in enumerate(urls) for other in urls[:at]]
        lookup_urls = {
            f"lookups.{name}": lookup.location for name, lookup in self.lookups.items() if lookup.location is not None
        }
        locations |= lookup_urls  # a lookup may be at the location of the source or of another lookup
        written = [(name, url) for name, url in urls if name.partition(".")[0] in ("log", "sinks")]
        pairs += [((name, normalised(url)), other) for name, url in lookup_urls.items() for other in written]
        for (name, url), (other, other_url) in pairs:
            if overlap(url, other_url):
                raise InvalidError(
                    "two locations of the pipeline overlap: they are equal, or one contains the other",
                    given={other: locations[other], name: locations[name]},
                ).advising(
                    "give the log, the source and each dataset separate locations, none of which contains another."
                )

    def replace(self, **changes: Any) -> Pipeline:
        """
        Return a copy of the pipeline with some arguments changed. The copy is validated.

        :param changes: arguments of :class:`Pipeline`
        :raises InvalidError: an argument is unknown or not valid
        """
        arguments.known_keys("Pipeline.replace", changes, [*(f.name for f in dataclasses.fields(self)), "sources"])
        if "sources" in changes:
            changes = {"source": None, **changes}
        return dataclasses.replace(self, **changes)

    @property
    def transform_name(self) -> str:
        """
        Return ``package.module:function``; ``""`` without a transform. For a function of a DAG file, the module is the file's name without its path.

        For an object that can be called, the text after the colon is ``<`` + its text or class + ``>``.
        """
        if self.transform is None or isinstance(self.transform, str):
            return self.transform or ""
        module, name = self.transform.__module__, getattr(self.transform, "__qualname__", None)
        if name is None:
            kind = type(self.transform)
            name = f"<{self.transform if '__str__' in vars(kind) else kind.__qualname__}>"
        return f"{_AIRFLOW_PREFIX.sub('', module)}:{name}"

    @property
    def sinks_outside_log(self) -> tuple[str, ...]:
        """Return the names of the sinks outside the log, in the order in which they are published."""
        return tuple(name for name, sink in sorted(self.sinks.items()) if sink.is_outside_log)

    @property
    def keeps_layers(self) -> bool:
        """Whether batches write ids or tombstones, which later batches look up."""
        return self.dedup is not None or any(sink.changes is not None for sink in self.sinks.values())

    @property
    def sinks_that_cannot_remove_rows(self) -> list[str]:
        """Return the names of the sinks that cannot remove published rows."""
        return [name for name in self.sinks_outside_log if not cast(PublishingSink, self.sinks[name]).can_remove_rows]

    def lineage(self, ranges: Ranges) -> list[tuple[str, str]]:
        """
        Return the OpenLineage namespace and name of each dataset that the source and the lookups read.

        :param ranges: the offset ranges of a run; ``{}`` for the datasets that are known without them
        :raises StreamsemError: a connection is missing or not valid
        """
        lookups = [name for lookup in self.lookups.values() for name in lookup.lineage()]
        return [*self.source.lineage(ranges), *lookups]

    @property
    def queries(self) -> dict[str, Json]:
        """Return the fields with text that Spark executes as SQL. They may contain any words, and no templates."""
        of_sinks = {f"sinks.{name}": plain(sink.expect) for name, sink in self.sinks.items()}
        return {
            "where": self.where,
            "expect": plain(self.expect),
            "gates": [gate.to_json() for gate in self.gates],
            **of_sinks,
        }

    def immutable_config(self) -> Json:
        """Return the fields that must not change while the log is in use: the source's identity, the datasets, the dedup keys and the output mode."""
        config = {
            "source": self.source.immutable_config(),
            "sinks": {name: sink.immutable_config() for name, sink in self.sinks.items()},
        }
        config = config if self.dedup is None else {**config, "dedup": list(self.dedup.keys)}
        config = {**config, "intervals": True} if self.intervals else config
        return config if self.state is None else {**config, "state": {"output_mode": self.state.output_mode}}

    def to_json(self) -> Json:
        """Return the spec as JSON: the structure of the TOML form, with ``format``, ``guarantee`` and ``immutable_config`` added."""
        computed = guarantee(self)
        return {
            "format": 1,
            "name": self.name,
            "log": self.log,
            **({} if self.log_conn_id is None else {"log_conn_id": self.log_conn_id}),
            "transform": self.transform_name,
            "where": self.where,
            **({"expect": plain(self.expect)} if self.expect else {}),
            **({} if self.partitions is None else {"partitions": plain(self.partitions)}),
            **({"gates": [gate.to_json() for gate in self.gates]} if self.gates else {}),
            **({"intervals": True} if self.intervals else {}),
            "rows": self.rows,
            **self._source_arguments,
            **(
                {"lookups": {name: _arguments("lookups", lookup) for name, lookup in self.lookups.items()}}
                if self.lookups
                else {}
            ),
            "sinks": {name: _arguments("sinks", sink) for name, sink in self.sinks.items()},
            **({} if self.dedup is None else {"dedup": plain(self.dedup)}),
            **({} if self.state is None else {"state": plain(self.state)}),
            "limits": plain(self.limits),
            "on_data_loss": self.on_data_loss,
            "require": self.require,
            "guarantee": {"sinks": dict(computed.sinks), "conditions": computed.conditions},
            "immutable_config": self.immutable_config(),
        }

    def without_transform(self) -> Json:
        """Return the JSON from which :func:`from_json` builds an equal pipeline without a transform. A transform may be a function, which JSON cannot hold."""
        return {name: part for name, part in self.to_json().items() if name not in DERIVED and name != "transform"}

    def spec_bytes(self) -> bytes:
        """Return the canonical JSON of the spec."""
        return canonical(self.to_json())

    @property
    def spec_sha256(self) -> str:
        """Return the sha256 of :meth:`spec_bytes`, by which plans and outcomes name this spec."""
        return sha256(self.spec_bytes())

    @property
    def source_sha256(self) -> str:
        """Return the sha256 of the source's arguments, under which the log stores the initial offsets."""
        (source_arguments,) = self._source_arguments.values()
        return sha256(canonical(source_arguments))

    @property
    def _source_arguments(self) -> dict[str, Json]:
        """Return the arguments of the source in the structure of the TOML form, under ``source``; of several sources, under ``sources``."""
        if self._has_several_sources:
            return {"sources": {name: _arguments("sources", source) for name, source in self.source.parts.items()}}
        return {"source": _arguments("sources", self.source)}

    @property
    def spark_packages(self) -> list[Package]:
        """Return the packages that Spark needs for this pipeline in addition to its own jars."""
        return packages.needed((self.source, *self.lookups.values()), self.sinks, self.dedup, self.log)

    @property
    def extras(self) -> list[str]:
        """Return the extras of this package that install the client libraries for this pipeline, sorted."""
        lookups = {lookup.extra for lookup in self.lookups.values()}
        return sorted({*self.source_extras, *lookups, *(sink.extra for sink in self.sinks.values())} - {""})

    def load_transform(self) -> Callable[..., Any]:
        """
        Return the transform as a function. If the spec has the name of the function, the function is imported.

        :returns: the function; without a transform, a function that returns its argument
        :raises InvalidError: the module or function does not exist or cannot be imported, the name is not that of a function, or a ready-made transform has
            another output mode; or there is no transform, and the pipeline has state or several sources
        """
        if self.transform is None:
            argument = "state" if self.state is not None else "sources"
            if self.state is not None or self._has_several_sources:
                raise InvalidError(f"a pipeline with `{argument}` requires a transform", pipeline=self.name)
            return lambda frame: frame
        if callable(self.transform):
            return self.transform
        module_name, _, qualified = self.transform.partition(":")
        try:
            target: Any = import_module(module_name)
            for part in qualified.split("."):
                target = getattr(target, part)
        except (ImportError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
            summary = "the transform cannot be imported"
            raise InvalidError(summary, given=self.transform, pipeline=self.name, reason=reason).advising(
                "install the module, add its directory to PYTHONPATH, or correct the name. No rows were committed."
            ) from error
        if not callable(target):
            raise InvalidError(
                "the transform's name does not refer to a function", given=self.transform, pipeline=self.name
            )
        self._check_output_mode(target)
        return target  # type: ignore[no-any-return]


def _check_class(kind: registry.Kind, value: object, base: type) -> None:
    """Refuse an object whose class is not registered, or does not extend the base class of its kind."""
    registry.name_of(kind, value)
    if not isinstance(value, base):
        accepted = f"a class that extends {base.__module__}.{base.__qualname__}"
        raise InvalidError(f"this class cannot be one of {kind}", given=type(value).__name__, accepted=accepted)


def _arguments(kind: registry.Kind, part: Any) -> Json:
    return {"type": registry.name_of(kind, part), **(part.to_json() if hasattr(part, "to_json") else plain(part))}


def from_json(spec: Mapping[str, Any], *, where: str = "the spec") -> Pipeline:
    """Build a pipeline from the structure of :meth:`Pipeline.to_json` or of a TOML file. ``where`` names the spec in errors."""
    arguments.known_keys(where, spec, [f.name for f in dataclasses.fields(Pipeline)] + ["sources", "format", *DERIVED])
    values = {key: value for key, value in spec.items() if key not in ("format", *DERIVED) and value is not None}
    several = values.pop("sources", None)
    if several is None:
        values["source"] = _build("sources", values.get("source"), f"{where} [source]")
    elif not isinstance(several, Mapping) or "source" in values:
        raise InvalidError(f"{where} must have either a table [source], or a table [sources.<name>] for each source")
    else:
        parts = {name: _build("sources", part, f"{where} [sources.{name}]") for name, part in several.items()}
        values["source"] = SeveralSources(parts)
    sinks = values.get("sinks")
    if not isinstance(sinks, Mapping):
        raise InvalidError(f"{where} must have a table [sinks.<name>] for each sink", given=type(sinks).__name__)
    values["sinks"] = {name: _build("sinks", sink, f"{where} [sinks.{name}]") for name, sink in sinks.items()}
    if "lookups" in values:
        if not isinstance(values["lookups"], Mapping):
            raise InvalidError(
                f"{where} must have a table [lookups.<name>] for each lookup", given=type(values["lookups"]).__name__
            )
        values["lookups"] = {
            name: _build("lookups", lookup, f"{where} [lookups.{name}]") for name, lookup in values["lookups"].items()
        }
    if "dedup" in values:
        values["dedup"] = _construct(Dedup, values["dedup"], f"{where} [dedup]")
    if "state" in values:
        values["state"] = _construct(State, values["state"], f"{where} [state]")
    if "limits" in values:
        values["limits"] = _construct(Limits, values["limits"], f"{where} [limits]")
    values["transform"] = values.get("transform") or None
    return _construct(Pipeline, values, where)  # type: ignore[no-any-return]


def _build(kind: registry.Kind, table: object, where: str) -> Any:
    if not isinstance(table, Mapping) or not isinstance(table.get("type"), str):
        raise InvalidError(f"{where} must be a table with a `type`", accepted=registry.names(kind))
    return _construct(registry.load(kind, table["type"]), {k: v for k, v in table.items() if k != "type"}, where)


def _construct(cls: Any, table: object, where: str) -> Any:
    if not isinstance(table, Mapping):
        raise InvalidError(f"{where} must be a table", given=type(table).__name__)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    arguments.known_keys(where, table, fields)
    missing = [
        n
        for n, f in fields.items()
        if n not in table and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise InvalidError(f"{where} lacks required arguments", missing=missing)
    return cls(**table)


def load_pipeline(path: str) -> Pipeline:
    """
    Load a pipeline from a TOML file.

    :param path: path of the file
    :raises InvalidError: the file cannot be read, is not TOML, or does not define a valid pipeline
    """
    spec = _document(path)
    spark_settings(spec.pop("spark_conf", {}), where=f"{path} [spark_conf]")
    return from_json(spec, where=path)


def load_spark_conf(path: str) -> dict[str, str]:
    """Load the table ``[spark_conf]`` of a pipeline file: setting → value. The table is not part of the spec and is never stored."""
    return spark_settings(_document(path).get("spark_conf", {}), where=f"{path} [spark_conf]")


def spark_settings(table: object, *, where: str) -> dict[str, str]:
    """
    Flatten Spark settings from TOML to setting → value. ``where`` names the table in errors.

    TOML parses a dotted name without quotes as nested tables, so both forms are accepted.
    """
    if not isinstance(table, Mapping):
        raise InvalidError(f"{where} must be a table", given=type(table).__name__)
    settings: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            settings |= {f"{name}.{rest}": text for rest, text in spark_settings(value, where=where).items()}
        elif isinstance(value, (str, int)):
            settings[name] = str(value).lower() if isinstance(value, bool) else str(value)
        else:
            raise InvalidError(
                f"{where} must contain only strings, integers and booleans", name=name, given=type(value).__name__
            )
    return settings


def _document(path: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        with open(path, "rb") as file:
            spec = tomllib.load(file)
    except OSError as error:
        raise InvalidError(
            "the pipeline file cannot be read", path=path, reason=os.strerror(error.errno or 0)
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidError("the pipeline file is not TOML", path=path, reason=str(error).split("\n")[0]) from error
    return spec
