"""
The verbs: what a user can do with a pipeline from several surfaces. Each is declared once.

The commands, the params of :func:`actions_dag` and the forms of the web view are built from these declarations. Operators and functions take the defaults and
the bounds of their arguments from them. Every ``airflow`` command and every parse of a DAG imports this module, so it imports nothing large.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, Literal

from airflow_provider_streamsem.arguments import flag, integer
from airflow_provider_streamsem.errors import InvalidError


@dataclass(frozen=True, slots=True)
class Parameter:
    """
    A parameter of a verb.

    :param name: as in Python and in the params of a DAG run
    :param default: of a text or an integer; see :attr:`absent`
    :param needs: name of the parameter without which this one has no effect
    :param option: the option of the command; default: the name
    :param metavar: stands for the value in the help of the command
    :param choices: the accepted texts; empty: any
    :param in_form: whether the form of the web view has a field for it
    :param in_preview: whether the preview of the web view names its value
    """

    name: str
    help: str
    _: KW_ONLY
    type: Literal["string", "integer", "boolean", "array"] = "string"
    minimum: int | None = None
    maximum: int | None = None
    default: Any = None
    required: bool = False
    needs: str = ""
    option: str = ""
    is_positional: bool = False
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    in_form: bool = False
    in_preview: bool = False

    @property
    def absent(self) -> Any:
        """The value if none is given: the default, ``False``, or no texts."""
        return {"boolean": False, "array": ()}.get(self.type, self.default)

    def checked(self, value: Any, spelled: str = "") -> Any:
        """Return a value, or the default for ``None``. ``spelled`` is the name of the parameter in an error."""
        if value is None and not self.required:
            return self.absent
        if self.type == "boolean":
            flag(spelled or self.name, value)
        if self.minimum is not None:
            integer(spelled or self.name, value, least=self.minimum, most=self.maximum)
        return value

    def described(self, needed: str) -> str:
        """Return the help with the default. ``needed`` names the parameter without which this one has no effect."""
        condition = f"with {needed}: " if self.needs else ""
        default = "" if self.default is None else f" (default: {self.default})"
        return f"{condition}{self.help}{default}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """
    What a user can do with a pipeline or a log.

    :param help: one sentence or two
    :param effect: consequences that a user must know before; ``""`` if ``help`` names them
    :param parameters: in the order in which the command lists them
    :param takes_target: whether the first argument of the command is a log or a pipeline
    :param is_target_optional: whether an option may replace the first argument
    :param builds: the objects of a pipeline that the command creates; ``""`` for none. A command that creates any requires the pipeline file. It must not use
        the spec in a log instead. A writer of the log could then choose which code runs, and with which credentials
    :param only_reads: whether an action of the web view needs no preview, because it writes nothing
    """

    name: str
    help: str
    effect: str = ""
    example: str
    parameters: tuple[Parameter, ...] = ()
    takes_target: bool = True
    is_target_optional: bool = False
    builds: str = ""
    only_reads: bool = False

    @property
    def description(self) -> str:
        """The help and the consequences."""
        return f"{self.help} {self.effect}".strip()

    @property
    def params(self) -> dict[str, Parameter]:
        """The parameters that a run of :func:`actions_dag` accepts, by name. A verb without any is no action of the web view."""
        return {each.name: each for each in self.parameters if each.in_form or each.in_preview}

    def values(
        self, given: Mapping[str, Any], spelled: Callable[[Parameter], str] = lambda each: each.name
    ) -> dict[str, Any]:
        """Return the value of each parameter by name. ``None`` in ``given`` is no value. ``spelled`` returns the name of a parameter in an error."""
        known = {name: value for name, value in given.items() if value is not None}
        found = {
            each.name: each.checked(known[each.name], spelled(each)) if each.name in known else each.absent
            for each in self.parameters
        }
        for each in self.parameters:
            if each.needs and each.name in known and not found[each.needs]:
                needed = next(spelled(other) for other in self.parameters if other.name == each.needs)
                raise InvalidError(
                    f"{spelled(each)} applies only together with {needed}; nothing was done", given=known[each.name]
                ).advising(f"give {needed} too, or leave out {spelled(each)}.")
        return found


Integer = partial(Parameter, type="integer", metavar="N")
Flag = partial(Parameter, type="boolean")
Texts = partial(Parameter, type="array")
Positional = partial(Parameter, is_positional=True, required=True)

SESSION = (
    Parameter("master", "Spark master, if no session is active", default="local[*]"),
    Parameter(
        "spark_conn_id",
        "instead of a master: a connection of type spark or spark_connect (outside Airflow: in AIRFLOW_CONN_<ID>)",
        metavar="ID",
    ),
    Texts("spark_conf", "a Spark setting of the session", metavar="NAME=VALUE"),
)
PACKAGES = Parameter("spark_packages", "auto: load the Spark packages that the pipeline needs", choices=("auto",))
RUN_KEY = Parameter(
    "run_key",
    "identifies the run: a command with the same key returns the same result (default: a new key, which is printed)",
)
ENGINE = (RUN_KEY, *SESSION, PACKAGES)
VERSION = Positional("version", "the version", type="integer", minimum=0, metavar="N")
UNTIL = Parameter("until", "the newest version that was closed at or before this time", metavar="TIME")
DRY_RUN = Flag("dry_run", "only describe what would be done, and write nothing")
REASON = Parameter("reason", "stored in the log", required=True, in_form=True)
CURRENT_LOOKUPS = Flag(
    "current_lookups", "read the current rows of the lookups, instead of those that the version read"
)
LOG_ONLY = Flag(
    "log_only", "check only log entries and quarantined records; skip data files, markers and state", in_form=True
)
ALL_VERSIONS = Flag(
    "all_versions", "also inspect versions that an earlier vacuum has inspected", option="all", in_form=True
)
ONLY_QUARANTINED = Flag("only_quarantined", "erase only quarantined records, which need not have the columns")
KEEP_VERSIONS = Integer(
    "keep_versions",
    "let versions older than the newest N expire, and delete the files that only they need. This cannot be undone",
    minimum=1,
    in_form=True,
)
KEEP_DAYS = Integer(
    "keep_days",
    "versions that were the newest in the last N days are kept, too. N must be longer than the longest reader, export, and delay of a pipeline that reads "
    "this one",
    minimum=0,
    maximum=36_500,
    default=7,
    needs="keep_versions",
    in_form=True,
)
TARGET_FILE_BYTES = Integer(
    "target_file_bytes", "the size of the new files in bytes", minimum=65_536, default=128 * 2**20
)
MAX_BYTES = Integer(
    "max_bytes",
    "the maximum size in bytes of the files that one version, or one Iceberg snapshot, rewrites",
    minimum=65_536,
    default=4 * 2**30,
)
_OF_OPEN = replace(VERSION, in_preview=True)

VERBS = (
    Verb(
        name="verify",
        help="Check every invariant of the log and every visible file.",
        example="orders.toml",
        only_reads=True,
        parameters=(
            LOG_ONLY,
            Flag(
                "deep",
                "also read all rows with Spark, look for ids that are visible more than once; with PIPELINE also compare the offsets with the source",
            ),
            Texts("ids", "a column of the id (default: the keys of dedup)", needs="deep", metavar="COLUMN"),
            *SESSION,
        ),
    ),
    Verb(
        name="reprocess",
        help="Reprocess a committed version from the same ranges, and replace its rows.",
        effect="The current transform processes the records.",
        example="orders.toml 41",
        builds="the source and the sinks",
        parameters=(
            Parameter(
                "versions",
                "the version, or versions and intervals of versions, both ends inclusive, such as 3-7,9",
                is_positional=True,
                metavar="N",
                in_form=True,
            ),
            Flag("quarantined", "reprocess every version with quarantined records"),
            Parameter(
                "since",
                "select the versions that were committed at or after this time, such as 2026-01-31T12:00:00Z",
                metavar="TIME",
                in_form=True,
            ),
            Parameter(
                "until", "select the versions that were committed at or before this time", metavar="TIME", in_form=True
            ),
            Texts(
                "offsets",
                "select the versions that have read one of the offsets [START, END), such as orders/0=100:200",
                metavar="PARTITION=START:END",
                in_form=True,
            ),
            Parameter(
                "partitions",
                "select the versions whose rows are in a partition by event time, or in one of several, such as 2026-10-01..2026-10-31",
                option="partition",
                metavar="KEY",
            ),
            DRY_RUN,
            Flag(
                "stage_only",
                "stage one version and hold it: its rows become visible by `streamsem commit`, and no run plans until then",
            ),
            Texts(
                "downstream",
                "also count the affected versions of a pipeline that reads this one",
                needs="dry_run",
                metavar="LOG",
            ),
            CURRENT_LOOKUPS,
            *ENGINE,
        ),
    ),
    Verb(
        name="commit",
        help="Commit a held version: a batch that a gate holds, or a version that `reprocess --stage-only` has staged.",
        example="orders.toml 57",
        builds="the source and the sinks",
        parameters=(VERSION, Parameter("attempt", "the reviewed attempt, if several were staged", metavar="ID")),
    ),
    Verb(
        name="abort",
        help="Abort the open version. A batch is then planned again.",
        effect="If it is a reprocessing run, the rows that it would replace stay.",
        example="orders.toml 41 --reason 'a file cannot be restored'",
        builds="the source",
        parameters=(_OF_OPEN, REASON),
    ),
    Verb(
        name="skip",
        help="Skip publishing the newest commit to one sink. The sink then lacks its rows.",
        effect="It is published to the other sinks. Rows that the sink has received already stay there.",
        example="orders.toml 41 --sink warehouse --reason 'the table was rebuilt by hand'",
        builds="the sinks",
        parameters=(
            _OF_OPEN,
            Texts(
                "sinks",
                "the sink to which the commit is not published",
                required=True,
                option="sink",
                metavar="SINK",
                in_form=True,
                in_preview=True,
            ),
            REASON,
        ),
    ),
    Verb(
        name="rollback",
        help="Roll the pipeline back to a version: its rows, offsets and state are again those after this version.",
        example="orders.toml 41",
        builds="the source and the sinks",
        parameters=(
            replace(VERSION, help="the newest version to keep", required=False),
            UNTIL,
            replace(RUN_KEY, help="identifies the request: a command with the same key rolls back once"),
        ),
    ),
    Verb(
        name="alter",
        help="Continue the log with the spec of the pipeline, although its sinks, source, deduplication or state differ from those in the log.",
        example="orders.toml --dry-run",
        builds="the source and the sinks",
        parameters=(
            DRY_RUN,
            Parameter(
                "alter_from",
                "replace only a spec with this config, which the dry run and the error of a run show",
                metavar="CONFIG",
                in_preview=True,
            ),
            Texts("moved", "the dataset of this files sink was copied to the new path", metavar="SINK", in_form=True),
        ),
    ),
    Verb(
        name="fork",
        help="Create a pipeline that continues another one after a version, as a trial.",
        example="orders_v2.toml s3://lake/_streamsem/orders --at 41",
        builds="the source and the sinks",
        parameters=(
            Positional("original", "URL or path of the original pipeline's log", metavar="LOG"),
            Integer("at", "the version; -1: the beginning (default: the newest)"),
            UNTIL,
            Parameter(
                "from_time",
                "replay the source from this time: start without state at the first records with this time or a later one",
                option="from",
                metavar="TIME",
            ),
        ),
    ),
    Verb(
        name="compact",
        help="Rewrite the rows of many small files into fewer, larger files.",
        example="orders.toml --dry-run",
        builds="the source and the sinks",
        parameters=(
            DRY_RUN,
            Parameter(
                "sink",
                "the sink to compact (default: all files sinks). The table of a Delta or Iceberg sink is compacted only if it is named here: afterwards, "
                "versions whose files were rewritten cannot be reprocessed or rolled back in this table",
                metavar="NAME",
            ),
            TARGET_FILE_BYTES,
            MAX_BYTES,
            *SESSION,
            PACKAGES,
        ),
    ),
    Verb(
        name="erase",
        help="Erase the rows of a person, for example, from everything that the pipeline stores.",
        effect="No version before the erasure can be read, rolled back to or, if it had such rows, reprocessed. This cannot be undone.",
        example="orders.toml --where 'user_id = 42' --dry-run",
        builds="the source and the sinks",
        parameters=(
            Parameter(
                "where",
                "selects the rows: COLUMN = VALUE or COLUMN IN (VALUE, ...), joined by AND; -: read it from the standard input",
                required=True,
                metavar="PREDICATE",
            ),
            ONLY_QUARANTINED,
            DRY_RUN,
            TARGET_FILE_BYTES,
            MAX_BYTES,
            *SESSION,
            PACKAGES,
        ),
    ),
    Verb(
        name="vacuum",
        help="Delete files of attempts that did not commit, staged files of published versions, state that no kept version needs, and on request replaced "
        "files.",
        effect="A version that expires cannot be read or rolled back to, and some cannot be reprocessed.",
        example="orders.toml --dry-run",
        builds="the sinks",
        parameters=(DRY_RUN, ALL_VERSIONS, KEEP_VERSIONS, KEEP_DAYS),
    ),
)

ACTIONS = {verb.name: verb for verb in VERBS if verb.params}
"""The verbs that a run of :func:`actions_dag` can perform."""
