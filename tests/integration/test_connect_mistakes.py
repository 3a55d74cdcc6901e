"""Ordinary mistakes with a Spark Connect server: each error names the cause, is retried only if that can help, and shows neither the token nor records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import boto3
import pytest

from tests.integration.parts.s3 import S3Server
from tests.integration.parts.server import ROOT, free_port, running
from tests.integration.parts.spark import ConnectServer

pytestmark = pytest.mark.integration
TOKEN = "hunter2"

PROGRAM = """
import json, os, pathlib, resource, signal, sys, threading, traceback
import psutil
from airflow_provider_streamsem import FilesSink, FilesSource, Pipeline, run_batch, verify
from airflow_provider_streamsem.errors import StreamsemError
from airflow_provider_streamsem.spark import remote
from airflow_provider_streamsem.spark.spark_engine import SparkEngine
from pyspark.sql import functions as F
from pyspark.sql.connect.session import SparkSession

root, url, pid, python, nothing, bucket, token = sys.argv[1:]
root, pid, right, results = pathlib.Path(root), int(pid), f"{url}/;token={token}", {}
remote.RETRIES = 2

def pipeline(name, transform=None, rows=1, **changes):
    directory = root / name
    (directory / "in").mkdir(parents=True)
    (directory / "in" / "a.json").write_text("".join(json.dumps({"id": i, "name": f"secret{i}"}) + "\\n" for i in range(rows)))
    source = FilesSource(path=changes.pop("path", f"{directory}/in"), format="json", schema="id long, name string")
    return Pipeline(name="p", log=f"{directory}/log", source=source, sinks={"out": FilesSink(path=f"{directory}/out")}, transform=transform)

def attempt(name, pipeline, engine=right):
    try:
        done = run_batch(pipeline, run_key="a", engine=SparkEngine(remote=engine))
        results[name] = {"kind": "committed", "text": done.status, "trace": ""}
    except StreamsemError as error:
        results[name] = {"kind": type(error).__name__, "text": str(error), "trace": "".join(traceback.format_exception(error))}

def with_function(function):
    return lambda frame: frame.withColumn("name", F.udf(function)("name"))

def divides(name):
    return 1 // 0

def imports(name):
    import no_such_module

def exits(name):
    os._exit(1)

def waits(name):
    threading.Event().wait(60)

def raises(frame):
    raise KeyError("secret0")

def kills_the_server_later(frame):
    threading.Timer(2, os.killpg, (pid, signal.SIGKILL)).start()
    return with_function(waits)(frame)

def use_python(executable):
    for process in psutil.Process(pid).children(recursive=True):
        if "python" in process.name():
            process.kill()
    pathlib.Path(python).write_text(executable)

wrong = {
    "port": f"sc://127.0.0.1:{nothing}", "host": "sc://no.such.host.invalid:15002", "token": f"{url}/;token=wrong", "no token": url,
    "token without TLS": right.replace("localhost", "127.0.0.1"), "TLS that the server lacks": right + ";use_ssl=true",
}
for name, engine in wrong.items():
    attempt(name, pipeline(name), engine)
    SparkSession._default_session.stop()
    SparkSession._active_session.session = SparkSession._default_session = None
for name, executable in {"no Python": "/no/such/python", "no output of Python": "/bin/false"}.items():
    use_python(executable)
    attempt(name, pipeline(name, with_function(str)))
use_python(sys.executable)
for transform in (raises, divides, imports, exits):
    attempt(transform.__name__, pipeline(transform.__name__, raises if transform is raises else with_function(transform)))
attempt("unknown column", pipeline("unknown column", lambda frame: frame.select("nothing")))
attempt("cast", pipeline("cast", lambda frame: frame.selectExpr("cast(name as int) as id")))
attempt("missing jar", pipeline("missing jar", path=f"s3://{bucket}/in"))
attempt("right", pipeline("right", with_function(str)))
# The codec of Parquet has written its library to a temporary directory by now.
before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
attempt("large file", pipeline("large file", lambda frame: frame.withColumn("u", F.expr("uuid()")), rows=20_000))
resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
killed = pipeline("killed", kills_the_server_later)
attempt("killed", killed)
attempt("down", killed.replace(transform=None))
print("RESULTS", json.dumps(results))
input()
remote.RETRIES = 5
attempt("started again", killed.replace(transform=None))
results["rows"] = verify(killed.log).rows
print("RESULTS", json.dumps(results), flush=True)
os._exit(0)  # grpc may wait forever for the channel to the killed server when the interpreter ends
"""

EXPECTED = {
    "port": ("StageError", "the Spark Connect server does not respond"),
    "host": ("StageError", "no.such.host.invalid:15002"),
    "token": ("StoreRefusedError", "refuses the user or the token"),
    "no token": ("StoreRefusedError", "refuses the user or the token"),
    "token without TLS": ("InvalidError", "does not speak TLS"),
    "TLS that the server lacks": ("InvalidError", "does not speak TLS"),
    "no Python": ("InvalidError", "cannot start a Python worker"),
    "no output of Python": ("InvalidError", "cannot start a Python worker"),
    "raises": ("DataError", "the transform raised KeyError"),
    "divides": ("DataError", "a Python function of the transform raised ZeroDivisionError"),
    "imports": ("InvalidError", "name='no_such_module'"),
    "exits": ("StageError", "a Python worker of Spark ended"),
    "unknown column": ("DataError", "name='`nothing`'"),
    "cast": ("DataError", "CAST_INVALID_INPUT"),
    "missing jar": ("InvalidError", "S3AFileSystem"),
    "large file": ("StoreRefusedError", "refusal='File too large'"),
    "right": ("committed", "committed"),
    "killed": ("StageError", "the Spark Connect server ended, or does not respond"),
    "down": ("StageError", "the Spark Connect server does not respond"),
    "started again": ("committed", "committed"),
}


@pytest.fixture(scope="module")
def results(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of all mistakes, which one process makes with one server that has a token and no jars."""
    directory = tmp_path_factory.mktemp("connect")
    boto3.client("s3").put_object(Bucket="lake", Key="connect-mistakes/in/a.json", Body=b'{"id": 1}\n')
    (python := directory / "python").write_text(sys.executable)
    (chosen := directory / "chosen-python").write_text(f'#!/bin/sh\nexec "$(cat {python})" "$@"\n')
    chosen.chmod(0o755)
    conf = {
        "spark.connect.authenticate.token": TOKEN,
        "spark.pyspark.python": str(chosen),
        "spark.driver.extraClassPath": "",
    }
    server = ConnectServer(directory / "server", conf, python=str(chosen))
    arguments = [str(directory), server.url.replace("127.0.0.1", "localhost"), "", str(python), str(free_port()), "lake/connect-mistakes", TOKEN]  # fmt: skip
    with running(server):
        arguments[2] = str(server.pid)
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments], cwd=ROOT, env=os.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as program:  # fmt: skip
            assert program.stdin is not None
            assert program.stdout is not None
            lines = (line for line in program.stdout if line.startswith("RESULTS "))
            next(lines)
            server.wait()
            server.start()
            program.stdin.write("\n")
            program.stdin.flush()
            found: dict[str, Any] = json.loads(next(lines).removeprefix("RESULTS "))
    return found


@pytest.mark.parametrize("mistake", EXPECTED)
def test_mistake_with_spark_connect_is_named_and_retried_only_if_that_can_help(
    results: dict[str, Any], mistake: str
) -> None:
    kind, text = EXPECTED[mistake]
    assert results[mistake]["kind"] == kind, results[mistake]["text"]
    assert text in results[mistake]["text"]
    assert "secret" not in results[mistake]["text"]
    assert TOKEN not in results[mistake]["trace"]


def test_batch_of_a_killed_connect_server_is_committed_once_by_the_retry_in_the_same_process(
    results: dict[str, Any],
) -> None:
    assert results["rows"] == {"out": 1}
