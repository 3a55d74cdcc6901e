"""README and docs match the code: drawings are current, and the Python and TOML on the pages is accepted."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import tomllib

import airflow_provider_streamsem
from airflow_provider_streamsem import FilesSink, KafkaSource, Pipeline, registry
from airflow_provider_streamsem.pipeline.spec.pipeline import from_json
from benchmarks import results
from tests.code_blocks import blocks
from tools import benchmark_page, life_of_a_batch, plots

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


ORDERS = Pipeline(
    name="orders",
    log="/log",
    source=KafkaSource(topics=["orders"], conn_id="kafka_default"),
    sinks={"lake": FilesSink(path="/out")},
)


def test_drawing_of_the_states_equals_the_table_of_the_protocol() -> None:
    assert life_of_a_batch.PAGE.read_text() == life_of_a_batch.drawing()


def test_python_api_lists_every_public_name() -> None:
    lines = (ROOT / "docs" / "reference" / "api.md").read_text().splitlines()
    listed = {line.rpartition(".")[2] for line in lines if line.startswith("::: ")}
    assert {*airflow_provider_streamsem.__all__} - listed == {"__version__"}


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 100


PYTHON = [(page, n) for page in PAGES for n in range(len(blocks(page, "python")))]


@pytest.mark.parametrize(("page", "n"), PYTHON, ids=lambda value: value.stem if isinstance(value, Path) else str(value))
def test_python_of_a_page_is_accepted(page: Path, n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that import the package are executed, so pipelines and DAGs are created. Other blocks are only compiled."""
    code = compile(blocks(page, "python")[n], str(page), "exec")
    text = blocks(page, "python")[n]
    # Pages refer to the pipeline of the README and do not run it.
    is_complete = "from airflow_provider_streamsem" in text and "(..." not in text and "def test_" not in text
    if is_complete and not re.search(r"^from (dags\.|orders |my_)|^read_(committed|state)\(spark", text, re.MULTILINE):
        monkeypatch.setitem(os.environ, "AIRFLOW_HOME", str(tmp_path / "airflow"))
        # The replacement is not set in the defining module, because modules imported by the page would keep it.
        monkeypatch.setattr(airflow_provider_streamsem, "run_batch", lambda pipeline, *, run_key: None)
        exec(code, {"__name__": "page", "ORDERS": ORDERS, "pipeline": ORDERS})


TOML = [(page, n) for page in PAGES for n in range(len(blocks(page, "toml")))]


@pytest.mark.parametrize(("page", "n"), TOML, ids=lambda value: value.stem if isinstance(value, Path) else str(value))
def test_toml_of_a_page_is_accepted(page: Path, n: int) -> None:
    """A block may be a part of a pipeline. A name, a log, a source and a sink are added to it."""
    block = tomllib.loads(blocks(page, "toml")[n])
    block.pop("spark_conf", None)
    source = {} if "sources" in block else {"source": {"type": "rate"}}
    others = {"name": "p", "log": "/log", "sinks": {"out": {"type": "files", "path": "/out"}}, **source}
    from_json({**others, **block}, where=page.name)


def own_names(kind: registry.Kind) -> list[str]:
    """The registered types of this package. Other tests register types, too."""
    classes = {name: registry.load(kind, name) for name in registry.names(kind)}
    return [name for name, cls in classes.items() if cls.__module__.startswith(airflow_provider_streamsem.__name__)]


@pytest.mark.parametrize(("kind", "table"), [("sources", "[source]"), ("sinks", "[sinks."), ("lookups", "[lookups.")])
def test_reference_names_every_registered_type(kind: registry.Kind, table: str) -> None:
    page = (ROOT / "docs" / "reference" / "airflow.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith("| ") and table in line and "`type`" not in line]
    assert re.findall(r"`([a-z0-9_]+)`", row.split(" | ")[1]) == own_names(kind), "docs/reference/airflow.md"


@pytest.mark.parametrize("kind", ["sources", "sinks"])
def test_index_of_connectors_and_python_api_name_every_class(kind: registry.Kind) -> None:
    index = (ROOT / "docs" / "connectors" / "index.md").read_text()
    api = (ROOT / "docs" / "reference" / "api.md").read_text()
    classes = [registry.load(kind, name) for name in own_names(kind)]
    assert [cls.__name__ for cls in classes if f"[`{cls.__name__}`](" not in index] == [], "docs/connectors/index.md"
    assert [cls.__name__ for cls in classes if f"::: {cls.__module__}.{cls.__name__}\n" not in api] == [], (
        "docs/reference/api.md"
    )


def test_navigation_has_every_page() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES[1:] if page.parent.name != "adr"}
    assert [page for page in sorted(pages) if page not in re.findall(r"[\w/-]+\.md", navigation)] == [], "mkdocs.yml"


def test_tables_of_the_benchmarks_show_the_stored_results_and_their_goals() -> None:
    assert benchmark_page.PAGE.read_text() == benchmark_page.page(), "run `python -m tools.benchmark_page`"
    shown = benchmark_page.PAGE.read_text()
    assert {result.benchmark for result in results.results()} <= set(re.findall(r"<!-- results: (\w+) -->", shown))


def test_every_goal_is_that_of_a_result() -> None:
    found = [*results.results()]
    unused = [goal for goal in results.GOALS if not any(goal.includes(r.benchmark, r.case, r.peer) for r in found)]
    assert unused == []


def test_plots_show_the_stored_results(tmp_path: Path) -> None:
    drawn = {path.name: path.read_text() for path in plots.draw(tmp_path)}
    pages = "".join((plots.PAGES / f"{name}.md").read_text() for name in ("benchmarks", "chaos"))
    for name in drawn:
        assert f"]({name})" in pages
        stored = (plots.PAGES / name).read_text()
        labels = re.findall(r"<text[^>]*>([^<]+)</text>", stored)
        assert labels == re.findall(r"<text[^>]*>([^<]+)</text>", drawn[name]), f"{name}: run `python -m tools.plots`"
    for row in results.latest():
        assert f">{int(row['ms']):,}</text>" in drawn[f"benchmark-{row['benchmark']}.svg"]
