"""Executors run functions of this package without having it, also if Spark pickles them long after the plan was made, as Spark Connect does."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark import cloudpickle

from airflow_provider_streamsem.connectors.parsing import parsed
from airflow_provider_streamsem.connectors.parsing.exact.arrow_json import ArrowJson
from airflow_provider_streamsem.connectors.parsing.exact.blocks import parsed_batches
from airflow_provider_streamsem.connectors.parsing.exact.values import Settings
from airflow_provider_streamsem.connectors.pickling import pickle_by_value

WITHOUT_PACKAGE = """
import pickle, pyarrow, sys
sys.modules["airflow_provider_streamsem"] = None
texts = pyarrow.record_batch([pyarrow.array(['{"id": 7}', "{"])], names=["text"])
print([batch.to_pydict() for batch in pickle.load(open(sys.argv[1], "rb"))(iter([texts]))])
"""


def test_parser_is_pickled_by_value_after_the_plan_was_made(tmp_path: Path) -> None:
    pickle_by_value(*parsed._MODULES)
    parser_of = partial(ArrowJson, pa.schema([("id", pa.int64())]), Settings())
    function = partial(parsed_batches, parser_of=parser_of, text="text", names=["id", "reason"], masks={"present": [0]})
    (tmp_path / "function").write_bytes(cloudpickle.dumps(function))
    command = [sys.executable, "-c", WITHOUT_PACKAGE, str(tmp_path / "function")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "{'id': [7, None], 'reason': [None, 'no JSON object'], 'present': [1, None]}" in done.stdout
