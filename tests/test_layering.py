"""The rooms of the house and the one direction of their imports, read from the source text."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted([*ROOT.glob("fuscoc/**/*.py"), *ROOT.glob("runtime/**/*.py")])
COMPILER = [path for path in FILES if path.is_relative_to(ROOT / "fuscoc")]
RUNTIME = [path for path in FILES if path.is_relative_to(ROOT / "runtime")]
# The only rooms of the compiler that may use the runtime: to execute artifacts, or for its words.
EXECUTING = (
    "fuscoc/__init__.py",
    "fuscoc/bake.py",
    "fuscoc/commands/",
    "fuscoc/errors/",
    "fuscoc/explain/",
    "fuscoc/planning/",
    "fuscoc/spec_cache.py",
    "fuscoc/tables.py",
    "fuscoc/testing/",
    "fuscoc/torch.py",
    "fuscoc/topologies.py",
)
MAX_LINES = 500


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[str]:
    """Every module named by an import statement, at any depth of the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}:{node.lineno}: imports are absolute"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_roots(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


def test_there_is_something_to_check() -> None:
    assert len(COMPILER) > 15
    assert len(RUNTIME) > 15


@pytest.mark.parametrize("path", RUNTIME, ids=relative)
def test_runtime_imports_no_compiler(path: Path) -> None:
    assert not imported_roots(path) & {"fuscoc", "lark", "torch_mlir"}


@pytest.mark.parametrize("path", COMPILER, ids=relative)
def test_compiler_needs_no_gpu_stack(path: Path) -> None:
    if not relative(path).startswith(EXECUTING):
        assert not imported_roots(path) & {"torch", "triton", "fuscoc_runtime"}


@pytest.mark.parametrize("path", COMPILER, ids=relative)
def test_only_tests_test(path: Path) -> None:
    if not relative(path).startswith(("fuscoc/testing/", "fuscoc/commands/testing.py")):
        assert not [name for name in imports(path) if name.startswith("fuscoc.testing")]


@pytest.mark.parametrize("path", RUNTIME, ids=relative)
def test_nothing_is_unpickled(path: Path) -> None:
    """Neither by Python's own means nor by torch's, whose collectives of objects pickle them."""
    assert not imported_roots(path) & {"pickle", "marshal", "shelve", "multiprocessing"}
    nodes = ast.walk(ast.parse(path.read_text()))
    named = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    assert not [name for name in named if name.endswith(("gather_object", "object_list"))]


def test_one_file_imports_mlir() -> None:
    importers = [relative(path) for path in FILES if "torch_mlir" in imported_roots(path)]
    assert importers == ["fuscoc/dialect/mlir.py"]


@pytest.mark.parametrize("path", sorted(ROOT.glob("fuscoc/passes/*.py")), ids=relative)
def test_passes_import_no_pass(path: Path) -> None:
    assert not [name for name in imports(path) if name.startswith("fuscoc.passes")]


@pytest.mark.parametrize("path", sorted(ROOT.glob("fuscoc/passes/*.py")), ids=relative)
def test_passes_know_no_application(path: Path) -> None:
    words = set(re.findall(r"[a-z]+", path.read_text().lower()))
    assert not words & {"expert", "experts", "token", "tokens", "topk", "moe", "patch", "patches"}


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_long_files_say_why(path: Path) -> None:
    lines = path.read_text().splitlines()
    if len(lines) > MAX_LINES:
        assert any("lines because" in line for line in lines[:10]), f"{len(lines)} lines"


def test_importing_the_compiler_is_light() -> None:
    code = "import fuscoc, sys; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()
    assert "fuscoc" in loaded
    assert not {"torch", "torch_mlir", "triton", "lark", "fuscoc_runtime", "numpy"} & set(loaded)


# They check what the user has given, or say in the spec's words what is wrong with it.
READS_DECLARED = (
    "engine/arguments.py", "engine/divisions.py", "engine/sizes.py", "engine/open.py",
    "engine/node/watch.py", "plan/explain.py",
)  # fmt: skip


def test_planner_and_engine_follow_the_program() -> None:
    """What a spec declares is for the reference, for checks of arguments and for messages."""
    runtime = ROOT / "runtime" / "fuscoc_runtime"
    readers = {
        path.relative_to(runtime).as_posix()
        for room in ("plan", "engine")
        for path in (runtime / room).rglob("*.py")
        if any(
            isinstance(node, ast.Attribute) and node.attr == "declared"
            for node in ast.walk(ast.parse(path.read_text()))
        )
    }
    assert readers == set(READS_DECLARED)
