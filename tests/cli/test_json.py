"""The JSON and the text of every command that only reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import run
from tests.pipeline_fixture import PipelineFixture

GOLDEN = Path(__file__).parent / "json_shapes.json"


def shape(value: Any) -> Any:
    """The names and types of a JSON document. A list has the shape of its first item. Names that are data are replaced by ``*``."""
    if isinstance(value, dict):
        data = value and all(
            key in ("files", "out")
            or key.startswith("written.")
            or key in ("read", "parsed", "filtered", "quarantined")
            for key in value
        )
        return (
            {"*": shape(next(iter(value.values())))}
            if data and "files" not in value
            else {key: shape(item) for key, item in sorted(value.items())}
        )
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return {"bool": "boolean", "NoneType": "null", "str": "string", "int": "integer"}[type(value).__name__]


def commands(fixture: PipelineFixture) -> dict[str, list[str]]:
    log, toml = str(fixture.root / "log"), str(fixture.root / "p.toml")
    return {
        "log": ["log", log],
        "show": ["show", log, "0"],
        "files": ["files", toml, "--at", "0", "--since", "-1", "--sink", "out"],
        "quarantine": ["quarantine", log],
        "verify": ["verify", toml],
        "doctor": ["doctor", log],
        "lag": ["lag", toml],
        "vacuum": ["vacuum", toml, "--dry-run"],
    }


def test_json_shape_of_every_command_is_stable(fixture: PipelineFixture, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = {}
    for name, argv in commands(fixture).items():
        code, out, _ = run(capsys, *argv, "--json")
        assert code == 0, name
        shapes[name] = shape(json.loads(out))
    if not GOLDEN.exists():
        GOLDEN.write_text(json.dumps(shapes, indent=1, sort_keys=True) + "\n")
        pytest.fail("The shapes were missing and have been recorded. Review and commit them.")
    assert shapes == json.loads(GOLDEN.read_text())


def test_shapes_are_documented() -> None:
    documented = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()
    for name, expected in json.loads(GOLDEN.read_text()).items():
        assert f"### {name}\n\n```json\n{json.dumps(expected, indent=1, sort_keys=True)}\n```" in documented, name


@pytest.mark.parametrize("name", ["log", "show", "files", "verify", "doctor", "lag", "vacuum"])
def test_every_command_prints_text(fixture: PipelineFixture, capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, out, err = run(capsys, *commands(fixture)[name])
    assert (code, err) == (0, "")
    assert out.strip()


def test_json_is_the_only_output_of_a_pipeline_file_that_imports_airflow(tmp_path: Path) -> None:
    """Importing Airflow gives the root logger a handler that writes to standard output. py4j logs when the process ends."""
    (tmp_path / "in").mkdir()
    code = f"""
import airflow.sdk, atexit, logging
from airflow_provider_streamsem import FilesSink, FilesSource, Pipeline
print("from the file")
atexit.register(logging.getLogger("py4j.clientserver").info, "Closing down clientserver connection")
atexit.register(logging.getLogger("other").warning, "the process ends")
P = Pipeline(name="p", log={str(tmp_path / "log")!r}, source=FilesSource(path={str(tmp_path / "in")!r}, format="text"),
    sinks={{"out": FilesSink(path={str(tmp_path / "out")!r})}}, transform="operator:pos")
"""
    (tmp_path / "p.py").write_text(code)
    command = [sys.executable, "-m", "airflow_provider_streamsem.cli.main", "run", f"{tmp_path}/p.py:P", "--json"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(process.stdout)["status"] == "empty"
    assert "from the file" in process.stderr
    assert "Closing down" not in process.stderr
