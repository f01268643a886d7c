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
HOUSE = ROOT / "runtime" / "fuscoc_runtime"
# The only rooms of the compiler that may use the runtime: to execute artifacts, or for its words.
EXECUTING = (
    "fuscoc/__init__.py",
    "fuscoc/bake.py",
    "fuscoc/commands/",
    "fuscoc/errors/",
    "fuscoc/explain/",
    "fuscoc/planning/",
    "fuscoc/simulate/",
    "fuscoc/spec_cache.py",
    "fuscoc/tables.py",
    "fuscoc/testing/",
    "fuscoc/torch.py",
    "fuscoc/topologies.py",
)
# The rooms of the runtime, lowest first: a file imports from its own room and from those before it.
# A folder is a room with all that is in it, but for what has a longer name here.
ROOMS = (
    (
        *("ccompiler.py", "dtypes.py", "errors.py", "files.py", "logs.py", "native.py"),
        *("padding.py", "scalar.py", "topology.py", "trust.py"),
    ),
    ("manifest",),
    ("reference.py",),
    ("kernels/device",),
    ("kernels",),
    ("comm",),
    ("plan",),
    ("plan/device",),
    ("plan/__init__.py", "plan/plan.py", "plan/planner.py"),  # by tensors or on the device
    ("engine",),
    ("engine/node",),
    ("face",),
    ("demo",),
    ("adapters", "deep_ep"),
    ("__init__.py", "__main__.py", "doctor", "run.py"),
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


def file_of(module: str) -> Path | None:
    """A module of the runtime; of a folder its ``__init__``."""
    place = HOUSE.parent.joinpath(*module.split("."))
    files = place.with_suffix(".py"), place / "__init__.py"
    return next((file for file in files if file.is_file()), None)


def imported_files(path: Path) -> set[Path]:
    """The files of the runtime that a file names: what stands in a folder, not the folder."""
    found: set[Path | None] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {file_of(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {file_of(name) or file_of(node.module) for name in names}
    return {file for file in found if file is not None}


def test_there_is_something_to_check() -> None:
    assert len(COMPILER) > 15
    assert len(RUNTIME) > 15


@pytest.mark.parametrize("path", RUNTIME, ids=relative)
def test_runtime_imports_no_compiler(path: Path) -> None:
    assert not imported_roots(path) & {"fuscoc", "lark", "torch_mlir"}


def room(path: Path) -> int:
    """Where in ``ROOMS`` the longest name of the file or of a folder around it stands."""
    inside = path.relative_to(HOUSE)
    names = [each.as_posix() for each in (inside, *inside.parents)]
    rooms = {name: number for number, held in enumerate(ROOMS) for name in held}
    found = [rooms[name] for name in names if name in rooms]
    assert found, f"{inside} is in no room"
    return found[0]


@pytest.mark.parametrize("path", sorted(HOUSE.rglob("*.py")), ids=relative)
def test_rooms_import_from_lower_ones(path: Path) -> None:
    """Also inside of functions, and for types only."""
    above = [other for other in imported_files(path) if room(other) > room(path)]
    assert not above, f"{relative(path)} imports {', '.join(map(relative, above))}"


def test_rooms_are_of_files_that_are_there() -> None:
    names = [name for held in ROOMS for name in held]
    assert len(names) == len(set(names))
    assert {room(path) for path in HOUSE.rglob("*.py")} == set(range(len(ROOMS)))
    assert not [name for name in names if not (HOUSE / name).exists()]


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


# What passes share with printers: how a row is cut, the cost models, and the walk over a relation.
SHARED = {
    "arguments", "cuda_casts", "cuda_entries", "cuda_tiles", "cuda_types", "language",
    "node_shuffle", "places", "points", "regions", "row_casts", "row_values", "rows", "tiles",
    "triton_tiles",
}  # fmt: skip


@pytest.mark.parametrize("path", sorted(ROOT.glob("fuscoc/passes/*.py")), ids=relative)
def test_passes_read_no_printer(path: Path) -> None:
    """Nor does anything that they import, and they do not ask the checked text."""
    assert "fuscoc.lang.checked" not in imports(path)
    found, left = set[Path](), [path]
    while left:
        if (file := left.pop()) not in found:
            found.add(file)
            places = (ROOT.joinpath(*name.split(".")) for name in imports(file))
            files = {place.with_suffix(".py") for place in places}
            left += [each for each in files if each in COMPILER]
    read = {each.stem for each in found if each.parent.name == "codegen"}
    assert read <= SHARED


def test_kernels_are_printed_from_the_dialect() -> None:
    """Printers take a module; of the checked text they quote the words, in comments."""
    readers = [
        relative(path)
        for path in sorted(ROOT.glob("fuscoc/codegen/*.py"))
        if "fuscoc.lang.checked" in imports(path)
    ]
    assert readers == ["fuscoc/codegen/spec_words.py"]


def test_importing_the_compiler_is_light() -> None:
    code = "import fuscoc, sys; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()
    assert "fuscoc" in loaded
    assert not {"torch", "torch_mlir", "triton", "lark", "fuscoc_runtime", "numpy"} & set(loaded)


# They check what the user has given, sort it as the spec says, name rows as it does, or say in its
# words what is wrong.
READS_DECLARED = (
    "engine/arguments.py", "engine/bounds.py", "engine/divisions.py", "engine/into.py",
    "engine/numbers.py", "engine/sizes.py", "engine/node/watch.py", "face/calls.py",
    "face/decorator.py", "face/limits.py", "face/lockstep.py", "face/open.py", "face/ops.py",
    "face/traced.py", "plan/census.py", "plan/explain.py",
)  # fmt: skip


def test_planner_and_engine_follow_the_program() -> None:
    """What a spec declares is for the reference, for checks of arguments and for messages."""
    readers = {
        path.relative_to(HOUSE).as_posix()
        for folder in ("plan", "engine", "face")
        for path in (HOUSE / folder).rglob("*.py")
        if any(
            isinstance(node, ast.Attribute) and node.attr == "declared"
            for node in ast.walk(ast.parse(path.read_text()))
        )
    }
    assert readers == set(READS_DECLARED)
