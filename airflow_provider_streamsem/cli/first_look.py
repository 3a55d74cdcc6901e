"""
A first look at the provider without an external system: ``streamsem run --source rate``.

The first run writes a pipeline file with a rate source. This run and all later runs read that file, as ``streamsem run FILE`` does.
"""

from __future__ import annotations

import json
import os
import shlex
from datetime import datetime, timezone

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.connectors.rate.source import RateSource
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.spec.pipeline import load_pipeline
from airflow_provider_streamsem.stores.contract import open_store

DIRECTORY = "streamsem-rate"
"""Name of the directory, below the current one, that holds the pipeline file, the log and the rows."""
_FILE = "rate.toml"
_BACKLOG_MS = 60_000
_PIPELINE = """\
# Written by `streamsem run --source rate`. You may change it: later runs read it.
name = "rate"
log = {log}
require = "exactly_once"
# where = "random < 0.5"

[source]
type = "rate"
rows_per_second = 10
start = "{start}"

[sinks.rows]
type = "files"
path = {rows}
format = "json"

[limits]
max_rows = 1_000_000
"""


def pipeline_file(directory: str) -> str:
    """
    Return the path of the pipeline file in a directory. If the file is missing, create it with a rate source whose records
    start one minute ago.

    :raises InvalidError: the file exists, and it belongs to another user or has another source
    :raises StoreRefusedError: the directory cannot be written
    """
    directory = os.path.abspath(directory)
    path = os.path.join(directory, _FILE)
    start = datetime.fromtimestamp((SYSTEM_CLOCK.now_ms() - _BACKLOG_MS) // 1000, tz=timezone.utc)
    log, rows = (json.dumps(os.path.join(directory, name), ensure_ascii=False) for name in ("log", "rows"))
    text = _PIPELINE.format(log=log, rows=rows, start=start.strftime("%Y-%m-%dT%H:%M:%SZ"))
    if open_store(directory).create(_FILE, text.encode()):
        return path
    advice = (
        "use --into DIR with a directory of your own. If you trust the file, run it by its path: streamsem run FILE."
    )
    # A pipeline file determines which code runs. Without this check, another user could prepare it in a shared directory such as /tmp.
    if os.lstat(path).st_uid != os.getuid():
        raise InvalidError("the pipeline file belongs to another user; nothing was run", file=path).advising(advice)
    if not isinstance(load_pipeline(path).source, RateSource):
        raise InvalidError("the pipeline file has another source; nothing was run", file=path).advising(advice)
    return path


def next_commands(path: str) -> list[str]:
    """Return lines that show commands to inspect the result."""
    file = os.path.relpath(path)
    quoted = shlex.quote(file)
    commands = {
        f"streamsem log {quoted}": "versions, offsets and counts",
        f"streamsem files {quoted} | tr '\\n' '\\0' | xargs -0 head -n 3": "the first rows of each committed file",
        f"streamsem explain {quoted}": "the reasons for the guarantee",
        f"streamsem run {quoted}": "the rows that have arrived since",
    }
    width = max(map(len, commands))
    return [
        "",
        f"The pipeline is {file}. Next:",
        *(f"  {name:<{width}}  # {description}" for name, description in commands.items()),
    ]
