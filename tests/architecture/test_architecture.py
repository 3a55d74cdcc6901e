"""Rules of the code base: layers, sans-IO protocol, sizes, names, errors and documents."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import airflow_provider_streamsem
from airflow_provider_streamsem import errors, registry
from airflow_provider_streamsem.connectors.lookup import Lookup
from airflow_provider_streamsem.connectors.sink import PublishingSink, Sink
from airflow_provider_streamsem.connectors.source import Source

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "airflow_provider_streamsem"
FILES = sorted(PACKAGE.rglob("*.py"))
TEXT = {path: path.read_text() for path in FILES}
TREES = {path: ast.parse(text) for path, text in TEXT.items()}
PROTOCOL = (ROOT / "docs" / "PROTOCOL.md").read_text()


def test_imports_follow_the_layers() -> None:
    process = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports"))], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout


def test_protocol_does_no_io() -> None:
    banned = {"open", "print", "input", "hash", "id", "eval", "exec", "compile", "__import__"}
    for path in (PACKAGE / "protocol").glob("*.py"):
        called = {
            node.func.id
            for node in ast.walk(TREES[path])
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not called & banned, path


def test_every_folder_with_modules_is_a_package() -> None:
    """The import linter and the wheel leave out the modules of other folders."""
    folders = {path.parent for path in TREES}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_functions_are_short_and_take_few_parameters() -> None:
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                assert node.end_lineno is not None
                assert node.end_lineno - node.lineno < 60, f"{path}:{node.name}"
                parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                # The arguments of an operator are its interface to a DAG. Airflow's own operators have more.
                maximum = 14 if path.parent.name == "operators" and node.name == "__init__" else 8
                assert len([p for p in parameters if p.arg not in ("self", "cls")]) <= maximum, f"{path}:{node.name}"


def test_no_module_has_a_generic_name() -> None:
    for path in FILES:
        assert not re.fullmatch(r"(utils?|helpers?|common|core|base_?.*|.*_?managers?)", path.stem), path


def test_no_test_module_imports_another_one() -> None:
    """Fixtures that several test modules use are in modules of their own, such as ``tests/pipeline_fixture.py``."""
    found = []
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                module = getattr(node, "module", None)
                names = [f"{module}.{alias.name}" if module else alias.name for alias in node.names]
                found += [(str(path), name) for name in names if re.match(r"tests\.(.*\.)?test_\w+(\.|$)", name)]
    assert found == []


def test_nothing_is_unpickled_or_evaluated() -> None:
    senders = {PACKAGE / "connectors" / "pickling.py"}
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [a.name for a in node.names] + [getattr(node, "module", "") or ""]
                serializers = {"pickle", "cloudpickle", "marshal", "shelve"} & set(names)
                # This module only tells Spark's pickler which modules to send by value. It loads nothing.
                assert not serializers or (path in senders and serializers == {"cloudpickle"}), path
    assert not [path for path in senders if re.search(r"cloudpickle\.(load|dump)", TEXT[path])]


def test_public_names_equal_the_names_of_the_package() -> None:
    table = airflow_provider_streamsem._NAMES
    assert sorted(airflow_provider_streamsem.__all__) == sorted(["__version__", *table])
    for name, module in table.items():
        public = getattr(airflow_provider_streamsem, name)
        assert public.__module__ == module, name
    block = re.search(r"if TYPE_CHECKING:\n(.*?)\n\ndef ", TEXT[PACKAGE / "__init__.py"], re.DOTALL)
    assert block is not None
    typed = set(re.findall(r"from (\S+) import (.+)", block[1]))
    assert {name: module for module, names in typed for name in names.split(", ")} == table
    with pytest.raises(AttributeError):
        airflow_provider_streamsem.nothing  # noqa: B018


def test_public_classes_and_functions_are_documented() -> None:
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith(("_", "test_")):
                assert ast.get_docstring(node), f"{path}:{node.name}"


ERRORS = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, errors.StreamsemError) and cls is not errors.StreamsemError
]


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)
def test_every_error_states_its_effect_and_what_to_do(cls: type[errors.StreamsemError]) -> None:
    assert cls.__name__.endswith("Error")
    assert isinstance(cls.retryable, bool)
    assert re.search(r"othing|written|visible|stays|unknown", cls.__doc__ or ""), (
        "the docstring must state what was written"
    )
    effect = f"; {cls.effect}" if cls.effect else ""
    assert str(cls("something failed", key="k")) == f"something failed{effect} (key='k'). Do: {cls.do}"
    assert str(cls("it failed; nothing was written")) == f"it failed; nothing was written. Do: {cls.do}"
    assert cls.do.endswith(".")
    assert not cls.do[0].isupper()


def test_base_error_cannot_be_raised() -> None:
    with pytest.raises(TypeError, match="subclasses"):
        errors.StreamsemError("x")


def test_every_raised_error_is_public_or_marked_as_internal() -> None:
    allowed = {cls.__name__ for cls in ERRORS} | {
        "UnknownResultError",
        "RangeChangedError",  # fails a task of Spark, and the engine translates it
        "TimeoutError",  # fails a task of Spark, which is repeated
        "MessageError",  # becomes the reason of a quarantined record
        "BadRecordError",  # likewise
        "UnknownEncodingError",  # likewise
        "RowsDifferError",  # becomes a DataError or a PublishError
        "NothingSentError",  # contains the error that the publish loop raises
        "DescriptorsError",  # becomes an InvalidError
        "HTTPException",  # the response of a request of the web view
        "Crash",
        "TypeError",
        "ValueError",
        "AttributeError",
        "NotImplementedError",
        "AssertionError",  # raised by functions that users call in their tests
    }
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
                assert node.exc.func.id in allowed or node.exc.func.id.startswith("_"), f"{path}:{node.lineno}"


def test_every_invariant_of_the_protocol_is_tested_or_reserved() -> None:
    rows = re.findall(r"^\| \*\*(I\d+)\*\*(?:, \*\*(I\d+)\*\*)? \| (.*) \|$", PROTOCOL, re.MULTILINE)
    reserved = {name for a, b, text in rows if "reserved" in text for name in (a, b) if name}
    named = {name for a, b, _ in rows for name in (a, b) if name}
    assert named == {f"I{n}" for n in range(1, 29)}
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    for name in named - reserved:
        # A test is named after the invariant, or expects its violation.
        assert re.search(rf"def test_{name}_|\"{name}\"|'{name}'|I\d+={name}", tests), f"{name} is not tested"


def test_every_rule_id_in_the_code_is_in_the_protocol() -> None:
    defined = set(re.findall(r"\*\*([A-Z]\d+[a-z]?)\*\*", PROTOCOL))
    assert {"W13a", "A6", "I21", "P9"} <= defined
    for path, text in TEXT.items():
        for cited in re.findall(r"\(((?:(?!S3)[A-Z]\d+[a-z]?(?:, | and | to )?)+)\)", text):
            for rule in re.findall(r"[A-Z]\d+[a-z]?", cited):
                assert rule in defined, f"{path} cites {rule}"


def test_readme_commands_are_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = set(re.findall(r"^make ([a-z]+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert {"demo", "test"} <= commands
    assert commands <= targets
    assert len(targets) <= 13


def test_build_files_contain_no_download_url() -> None:
    for name in ("constraints.txt", "pyproject.toml", "Makefile", ".ci/run"):
        assert not re.search(r"https?://", (ROOT / name).read_text()), name


def test_spark_packages_are_pinned_to_one_version() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert pins["pyspark"] == pins["pyspark-client"]


def test_wheel_has_every_page_and_example_dag() -> None:
    """A deployment has only the wheel, and messages name pages."""
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    data_files = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    shipped = {file.relative_to(ROOT) for patterns in data_files.values() for p in patterns for file in ROOT.glob(p)}
    pages = {page.relative_to(ROOT) for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "adr"}
    examples = {file.relative_to(ROOT) for file in (ROOT / "dags").glob("*.py")}
    assert pages | examples <= shipped
    for location, patterns in data_files.items():
        for pattern in patterns:
            assert str(Path(pattern).parent) in (location.partition("streamsem/")[2] or "."), (
                "links between pages must work in the wheel"
            )


LAYER_OF = {
    "sources": "connectors",
    "lookups": "connectors",
    "sinks": "connectors",
    "stores": "stores",
    "engines": "spark",
}


def test_every_import_is_of_a_declared_distribution_or_of_what_it_requires() -> None:
    """What a declared distribution requires itself is installed with it, such as Jinja2 with Airflow."""
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [name for name in project["optional-dependencies"] if name != "dev"]
    texts = [*project["dependencies"], *(text for name in extras for text in project["optional-dependencies"][name])]
    declared = {canonicalize_name(Requirement(text).name) for text in texts}
    for _ in range(2):  # apache-airflow requires apache-airflow-core
        required = [
            Requirement(text) for name in declared if is_installed(name) for text in metadata.requires(name) or ()
        ]
        declared |= {canonicalize_name(each.name) for each in required if each.marker is None or each.marker.evaluate()}
    distributions = metadata.packages_distributions()
    undeclared = {
        name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in imported_packages(node)
        if name not in {*sys.stdlib_module_names, PACKAGE.name}
        and not declared & {canonicalize_name(each) for each in distributions.get(name, [name])}
    }
    assert undeclared == set()


def imported_packages(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    return {node.module.partition(".")[0]} if isinstance(node, ast.ImportFrom) and node.module else set()


def is_installed(name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


@pytest.mark.parametrize("kind", LAYER_OF)
def test_registry_names_only_modules_of_the_layer_of_their_kind(kind: registry.Kind) -> None:
    """import-linter does not see the modules that the registry imports by name."""
    registered_by_tests = "tests."
    for target in registry._BUILT_IN[kind].values():
        if target.startswith(registered_by_tests):
            continue
        assert target.startswith(f"airflow_provider_streamsem.{LAYER_OF[kind]}."), target


@pytest.mark.parametrize("kind", ["sources", "sinks", "lookups"])
def test_every_connector_defines_the_abstract_members_of_its_base_class(kind: registry.Kind) -> None:
    for name in registry.names(kind):
        connector = registry.load(kind, name)
        bases = {"sources": Source, "lookups": Lookup}
        base = bases.get(kind) or (PublishingSink if connector.is_outside_log else Sink)
        assert issubclass(connector, base), name
        assert connector.__abstractmethods__ == frozenset(), name


@pytest.mark.parametrize("kind", ["sources", "sinks", "lookups"])
def test_no_argument_of_a_connector_has_a_member_of_its_base_class_as_default(kind: registry.Kind) -> None:
    """A dataclass takes a property of its base class as the default of a field with the same name."""
    for name in registry.names(kind):
        fields = dataclasses.fields(registry.load(kind, name))
        assert [field.name for field in fields if isinstance(field.default, property)] == [], name
