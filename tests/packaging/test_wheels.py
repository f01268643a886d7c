"""Both distributions: built, installed away from the repository, and used there."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.tags import compatible_tags, platform_tags
from packaging.utils import parse_wheel_filename

import fuscoc_runtime
from fuscoc_runtime.native import ALL

ROOT = Path(__file__).parents[2]
PACKAGES = {"fuscoc": ROOT / "fuscoc", "fuscoc_runtime": ROOT / "runtime" / "fuscoc_runtime"}
SMALL = ("-D", "hidden=64", "-D", "experts=8", "-D", "topk=2")
NOT_SOURCES = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist")


def attempt(
    *command: object, cwd: Path, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A command that knows nothing of this repository."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "CC")}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**kept, **(variables or {})},
        capture_output=True,
        text=True,
    )


def run(*command: object, cwd: Path, variables: Mapping[str, str] | None = None) -> str:
    """Its output."""
    done = attempt(*command, cwd=cwd, variables=variables)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of both."""
    place = tmp_path_factory.mktemp("copy")
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place)
    for name in ("fuscoc", "runtime"):
        shutil.copytree(ROOT / name, place / name, ignore=NOT_SOURCES)
    return place


@pytest.fixture(scope="module")
def wheels(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels by package, built from sdists of a copy of the sources; needs no network."""
    out = tmp_path_factory.mktemp("dist")
    for project in (copy / "runtime", copy):
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, project, cwd=copy)
    return {path.name.split("-")[0]: path for path in out.glob("*.whl")}


@dataclass(frozen=True)
class Environment:
    """A virtual environment of its own, and an empty directory to work in."""

    bin: Path
    work: Path

    def run(
        self, program: str, *arguments: object, variables: Mapping[str, str] | None = None
    ) -> str:
        return run(self.bin / program, *arguments, cwd=self.work, variables=variables)


def installed(wheels: list[Path], place: Path) -> Environment:
    """An environment with these wheels, beside the dependencies that are installed here."""
    venv.create(place / "venv", symlinks=True)
    work = place / "work"
    work.mkdir()
    (site,) = (place / "venv").glob("lib/python*/site-packages")
    # As plain paths: the .pth files in them, such as those of editable installs, do nothing then.
    paths = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site / "dependencies.pth").write_text("".join(f"{path}\n" for path in paths))
    python = place / "venv" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index")
    run(*pip, "--no-deps", "--force-reinstall", *wheels, cwd=work)
    return Environment(python.parent, work)


@pytest.fixture(scope="module")
def both(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Compiler and runtime, with both examples and the artifact of one."""
    environment = installed(list(wheels.values()), tmp_path_factory.mktemp("both"))
    for name in ("moe", "vit_patches"):
        shutil.copy(ROOT / "examples" / f"{name}.fsc", environment.work)
    environment.run("fuscoc", "compile", "moe.fsc", *SMALL)
    return environment


@pytest.mark.parametrize("package", PACKAGES)
def test_wheels_hold_every_file_of_their_package_and_nothing_else(
    package: str, wheels: dict[str, Path]
) -> None:
    source = PACKAGES[package]
    files = {
        path.relative_to(source.parent).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    if package == "fuscoc_runtime":
        files |= {each.built_in.relative_to(source.parent).as_posix() for each in ALL}
    names = zipfile.ZipFile(wheels[package]).namelist()
    assert {name for name in names if ".dist-info/" not in name} == files


def test_a_wheel_of_the_runtime_is_for_every_python_of_its_platform(
    wheels: dict[str, Path],
) -> None:
    name = wheels["fuscoc_runtime"].name
    *_, tags = parse_wheel_filename(name)
    for minor in (11, 12, 13, 14):
        assert tags <= set(compatible_tags((3, minor), platforms=platform_tags()))
    assert "Root-Is-Purelib: false" in member(wheels["fuscoc_runtime"], "WHEEL")
    if platform.libc_ver()[0] == "glibc":
        assert re.search(rf"-py3-none-manylinux_2_\d+_{platform.machine()}\.whl", name)


def member(wheel: Path, file: str) -> str:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(f".dist-info/{file}"))
    return archive.read(name).decode()


def metadata(wheel: Path) -> dict[str, list[str]]:
    message = Parser().parsestr(member(wheel, "METADATA"))
    return {key: message.get_all(key, []) for key in set(message.keys())}


def test_one_version_for_both(wheels: dict[str, Path]) -> None:
    for wheel in wheels.values():
        assert metadata(wheel)["Version"] == [fuscoc_runtime.__version__]
    needed = metadata(wheels["fuscoc"])["Requires-Dist"]
    assert f"fuscoc-runtime=={fuscoc_runtime.__version__}" in needed


def test_the_runtime_needs_no_compiler(wheels: dict[str, Path]) -> None:
    needed = " ".join(metadata(wheels["fuscoc_runtime"])["Requires-Dist"])
    assert not [name for name in ("click", "fuscoc", "lark", "torch-mlir") if name in needed]
    assert {"cuda", "test", "lsp"} <= set(metadata(wheels["fuscoc"])["Provides-Extra"])


def test_the_examples_check_and_compile(both: Environment) -> None:
    checked = both.run("fuscoc", "check", "moe.fsc", "vit_patches.fsc")
    assert checked == "moe.fsc: ok (moe)\nvit_patches.fsc: ok (vit_patches)\n"
    both.run("fuscoc", "compile", "vit_patches.fsc")
    where = "import fuscoc, fuscoc_runtime as r; print(fuscoc.__file__, r.__file__)"
    for path in both.run("python", "-c", where).split():
        assert both.bin.parent in Path(path).parents
    assert both.run("fuscoc", "--version") == f"fuscoc {fuscoc_runtime.__version__}\n"
    highlighted = both.run("python", "-m", "pygments", "-f", "html", "moe.fsc")
    assert '<span class="kd">shuffle</span>' in highlighted


@pytest.mark.nightly
def test_both_run_an_artifact(both: Environment) -> None:
    """By day the runtime does, alone, and `make demo` runs both from their sources."""
    assert "moe: verified" in both.run("fuscoc", "run", "build/moe", "--ranks", 2, "--tokens", 4)


# The planner, and a list of commands whose driver notes the event of its end.
BY_C = """
import ctypes, sys
import numpy as np
from fuscoc_runtime.kernels import commands
from fuscoc_runtime.native import ALL
from fuscoc_runtime.plan import native

peer, begin, end = native.decompose(np.array([[0, 2], [3, 0]]), 1)
assert (peer.tolist(), begin.tolist(), end.tolist()) == ([[1, 0]], [[0, 0]], [[2, 3]])

noted, address = [], ctypes.c_void_p
record = ctypes.CFUNCTYPE(ctypes.c_int, address, address)(lambda *told: noted.append(told) or 0)
calls = commands.NativeCalls(record=ctypes.cast(record, address).value)
made = commands.NativeList((), ("a",), calls)
made.submit(commands.as_numbers([5]))
numbers = commands.as_numbers([5])
words = commands.Turn(stream=77, ended=6)
assert commands.submit_words()(made.at.value, ctypes.addressof(numbers), *words) == 0
assert noted == [(6, 77)], noted

with open("/proc/self/maps") as file:
    mapped = {line.split()[-1] for line in file}
assert {str(each.built_in) for each in ALL} <= mapped, mapped
"""


def test_the_runtime_alone_runs_an_artifact_without_a_compiler(
    both: Environment, wheels: dict[str, Path], tmp_path: Path
) -> None:
    alone = installed([wheels["fuscoc_runtime"]], tmp_path)
    shutil.copytree(both.work / "build" / "moe", alone.work / "moe")
    find = "import importlib.util as u; print(u.find_spec('fuscoc'))"
    assert alone.run("python", "-c", find) == "None\n"
    nothing = {"PATH": str(alone.bin), "FUSCOC_CACHE_DIR": str(tmp_path / "cache")}
    alone.run("python", "-c", BY_C, variables=nothing)
    command = "-m", "fuscoc_runtime", "run", "moe", "--ranks", 1
    assert alone.run("python", *command, variables=nothing).count("verified") == 1
    assert not (tmp_path / "cache").exists()


def test_a_build_without_a_compiler_says_so(copy: Path, tmp_path: Path) -> None:
    build = sys.executable, "setup.py", "build_ext", "--build-lib", tmp_path
    done = attempt(*build, cwd=copy / "runtime", variables={"PATH": ""})
    assert done.returncode
    assert "error: what is written in C needs a C compiler" in done.stderr


def test_a_build_needs_nothing_but_setuptools(copy: Path) -> None:
    """What it takes of the package has to be importable without any other."""
    bare = "import sys; sys.path.insert(0, '.'); import fuscoc_runtime.native"
    run(sys.executable, "-I", "-S", "-c", bare, cwd=copy / "runtime")


def test_an_editable_installation_has_no_libraries(copy: Path, tmp_path: Path) -> None:
    """Those of sources that change would be left over. It needs no compiler."""
    build = f"from setuptools import build_meta; build_meta.build_editable({str(tmp_path)!r})"
    run(sys.executable, "-c", build, cwd=copy / "runtime", variables={"PATH": ""})
    (wheel,) = tmp_path.glob("*.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    assert not [*copy.rglob("*.so")]
