"""The rooms of the house and the one direction of their imports, read from the source text."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES = sorted([*ROOT.glob("fuscoc/**/*.py"), *ROOT.glob("runtime/**/*.py")])
COMPILER = [path for path in FILES if path.is_relative_to(ROOT / "fuscoc")]
RUNTIME = [path for path in FILES if path.is_relative_to(ROOT / "runtime")]
PASSES = sorted(ROOT.glob("fuscoc/passes/*.py"))
HOUSE = ROOT / "runtime" / "fuscoc_runtime"
# The only rooms of the compiler that may use the runtime: to execute artifacts, or for its words.
EXECUTING = (
    "fuscoc/__init__.py",
    "fuscoc/ahead.py",
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
        *(
            "arrays.py",
            "ccompiler.py",
            "defaults.py",
            "dtypes.py",
            "errors.py",
            "files.py",
            "logs.py",
            "native.py",
        ),
        *("padding.py", "room.py", "scalar.py", "topology.py", "trust.py"),
    ),
    ("manifest",),
    ("reference.py",),
    ("kernels/device",),
    ("kernels",),
    ("comm",),
    ("plan",),
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


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Imports and attributes, at any depth of the file."""
    kept = ast.Import | ast.ImportFrom | ast.Attribute
    return tuple(each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, kept))


@cache
def imports(path: Path) -> frozenset[str]:
    """Every module named by an import statement, at any depth of the file."""
    found = set[str]()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}:{node.lineno}: imports are absolute"
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def attributes(path: Path) -> set[str]:
    return {node.attr for node in nodes(path) if isinstance(node, ast.Attribute)}


def among(paths: Iterable[Path], others: Iterable[str]) -> list[str]:
    """Those of the files that import one of the packages."""
    return [relative(path) for path in paths if imported_roots(path) & set(others)]


def imported_roots(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


@cache
def file_of(module: str) -> Path | None:
    """A module of the runtime; of a folder its ``__init__``."""
    place = HOUSE.parent.joinpath(*module.split("."))
    files = place.with_suffix(".py"), place / "__init__.py"
    return next((file for file in files if file.is_file()), None)


def imported_files(path: Path) -> set[Path]:
    """The files of the runtime that a file names: what stands in a folder, not the folder."""
    found: set[Path | None] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {file_of(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {file_of(name) or file_of(node.module) for name in names}
    return {file for file in found if file is not None}


def test_there_is_something_to_check() -> None:
    assert len(COMPILER) > 15
    assert len(RUNTIME) > 15
    assert len(PASSES) > 10


def test_runtime_imports_no_compiler() -> None:
    assert among(RUNTIME, ("fuscoc", "lark", "torch_mlir")) == []


@cache
def room(path: Path) -> int:
    """Where in ``ROOMS`` the longest name of the file or of a folder around it stands."""
    inside = path.relative_to(HOUSE)
    names = [each.as_posix() for each in (inside, *inside.parents)]
    rooms = {name: number for number, held in enumerate(ROOMS) for name in held}
    found = [rooms[name] for name in names if name in rooms]
    assert found, f"{inside} is in no room"
    return found[0]


def test_rooms_import_from_lower_ones() -> None:
    """Also inside of functions, and for types only."""
    above = [
        f"{relative(path)} imports {relative(other)}"
        for path in HOUSE.rglob("*.py")
        for other in imported_files(path)
        if room(other) > room(path)
    ]
    assert above == []


def test_rooms_are_of_files_that_are_there() -> None:
    names = [name for held in ROOMS for name in held]
    assert len(names) == len(set(names))
    assert {room(path) for path in HOUSE.rglob("*.py")} == set(range(len(ROOMS)))
    assert not [name for name in names if not (HOUSE / name).exists()]


def test_compiler_needs_no_gpu_stack() -> None:
    others = [path for path in COMPILER if not relative(path).startswith(EXECUTING)]
    assert among(others, ("torch", "triton", "fuscoc_runtime")) == []


def test_only_tests_test() -> None:
    testing = ("fuscoc/testing/", "fuscoc/commands/testing.py")
    others = [path for path in COMPILER if not relative(path).startswith(testing)]
    assert [
        relative(path)
        for path in others
        if any(name.startswith("fuscoc.testing") for name in imports(path))
    ] == []


def test_nothing_is_unpickled() -> None:
    """Neither by Python's own means nor by torch's, whose collectives of objects pickle them."""
    assert among(RUNTIME, ("pickle", "marshal", "shelve", "multiprocessing")) == []
    unpickle = ("gather_object", "object_list")
    assert [
        relative(path)
        for path in RUNTIME
        if any(name.endswith(unpickle) for name in attributes(path))
    ] == []


def test_one_file_imports_mlir() -> None:
    importers = [relative(path) for path in FILES if "torch_mlir" in imported_roots(path)]
    assert importers == ["fuscoc/dialect/mlir.py"]


def test_passes_import_no_pass() -> None:
    assert [
        relative(path)
        for path in PASSES
        if any(name.startswith("fuscoc.passes") for name in imports(path))
    ] == []


def test_passes_know_no_application() -> None:
    theirs = {"expert", "experts", "token", "tokens", "topk", "moe", "patch", "patches"}
    words = {
        relative(path): theirs & set(re.findall(r"[a-z]+", path.read_text().lower()))
        for path in PASSES
    }
    assert {path: known for path, known in words.items() if known} == {}


def test_long_files_say_why() -> None:
    long = {path: path.read_text().splitlines() for path in FILES}
    assert [
        f"{relative(path)}: {len(lines)} lines"
        for path, lines in long.items()
        if len(lines) > MAX_LINES and not any("lines because" in line for line in lines[:10])
    ] == []


# What passes share with printers: how a row is cut, the cost models, and the walk over a relation.
SHARED = {
    "arguments", "cuda_casts", "cuda_entries", "cuda_tiles", "cuda_types", "language",
    "node_shuffle", "places", "points", "regions", "row_casts", "row_values", "rows", "tiles",
    "triton_tiles",
}  # fmt: skip


def test_passes_read_no_printer() -> None:
    """Nor does anything that they import, and they do not ask the checked text."""
    assert [relative(path) for path in PASSES if "fuscoc.lang.checked" in imports(path)] == []
    found, left = set[Path](), list(PASSES)
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


# They check what the user has given, sort it as the spec says, name rows as it does, say in its
# words what is wrong, or know from it what there must be room for.
READS_DECLARED = (
    "engine/arguments.py", "engine/bounds.py", "engine/divisions.py", "engine/into.py",
    "engine/numbers.py", "engine/sizes.py", "engine/node/crossing.py", "engine/node/watch.py",
    "face/calls.py", "face/decorator.py", "face/limits.py", "face/lockstep.py", "face/open.py",
    "face/ops.py", "face/traced.py", "plan/census.py", "plan/explain.py",
)  # fmt: skip


def test_planner_and_engine_follow_the_program() -> None:
    """What a spec declares is for the reference, for checks of arguments and for messages."""
    readers = {
        path.relative_to(HOUSE).as_posix()
        for folder in ("plan", "engine", "face")
        for path in (HOUSE / folder).rglob("*.py")
        if "declared" in attributes(path)
    }
    assert readers == set(READS_DECLARED)
