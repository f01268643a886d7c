"""Both distributions: built, installed away from the repository, and used there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

import pytest

import fuscoc_runtime

ROOT = Path(__file__).parents[2]
PACKAGES = {"fuscoc": ROOT / "fuscoc", "fuscoc_runtime": ROOT / "runtime" / "fuscoc_runtime"}
SMALL = ("-D", "hidden=64", "-D", "experts=8", "-D", "topk=2")
NOT_SOURCES = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist")


def run(*command: object, cwd: Path) -> str:
    """The output of a command that knows nothing of this repository."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels by package, built from sdists of a copy of the sources; needs no network."""
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("dist")
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("fuscoc", "runtime"):
        shutil.copytree(ROOT / name, copy / name, ignore=NOT_SOURCES)
    for project in (copy / "runtime", copy):
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, project, cwd=copy)
    return {path.name.split("-")[0]: path for path in out.glob("*.whl")}


@dataclass(frozen=True)
class Environment:
    """A virtual environment of its own, and an empty directory to work in."""

    bin: Path
    work: Path

    def run(self, program: str, *arguments: object) -> str:
        return run(self.bin / program, *arguments, cwd=self.work)


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
    names = zipfile.ZipFile(wheels[package]).namelist()
    assert {name for name in names if ".dist-info/" not in name} == files


def metadata(wheel: Path) -> dict[str, list[str]]:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    message = Parser().parsestr(archive.read(name).decode())
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


def test_the_runtime_alone_runs_an_artifact(
    both: Environment, wheels: dict[str, Path], tmp_path: Path
) -> None:
    alone = installed([wheels["fuscoc_runtime"]], tmp_path)
    shutil.copytree(both.work / "build" / "moe", alone.work / "moe")
    find = "import importlib.util as u; print(u.find_spec('fuscoc'))"
    assert alone.run("python", "-c", find) == "None\n"
    output = alone.run("python", "-m", "fuscoc_runtime", "run", "moe", "--ranks", 1)
    assert output.count("verified") == 1
