"""Whole-process times of the compiler's commands, interleaved.

    python benchmarks/compiler.py [--runs 11] [--markdown docs/benchmarks/compiler.md]

Every command is run in turn, several times; the median, the fastest and the slowest are reported. A
command that fails ends the benchmark, and compiled artifacts must load. *With plans*: of 262,144
rows of 512 numbers, for 1x2 and 2x4.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path

from fuscoc_runtime import load_artifact

FUSCOC = [sys.executable, "-c", "from fuscoc.cli import main; main()"]
PLANNED = ["--topology", "1x2", "--topology", "2x4", "-D", "rows=262144", "-D", "columns=512"]


def commands(scratch: Path) -> dict[str, tuple[list[str], float]]:
    """What is run, and the bar in seconds."""
    out, plans = scratch / "moe", scratch / "redistribute"
    return {
        "import fuscoc": ([sys.executable, "-c", "import fuscoc"], 0.1),
        "fuscoc check examples/moe.fsc": ([*FUSCOC, "check", "examples/moe.fsc"], 0.4),
        "fuscoc compile examples/moe.fsc": (
            [*FUSCOC, "compile", "examples/moe.fsc", "-o", str(out)],
            1.5,
        ),
        "fuscoc compile examples/redistribute.fsc, with plans": (
            [*FUSCOC, "compile", "examples/redistribute.fsc", *PLANNED, "-o", str(plans)],
            1.5,
        ),
    }


def measure(runs: int) -> list[str]:
    """A markdown table."""
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for number in range(runs + 1):
            for name, (command, _) in commands(scratch).items():
                started = time.perf_counter()
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                if number:  # the first run fills caches
                    times.setdefault(name, []).append(time.perf_counter() - started)
        for artifact in scratch.iterdir():
            load_artifact(artifact)
        rows = ["| command | median s | min | max | bar |", "|---|---|---|---|---|"]
        for name, (_, bar) in commands(scratch).items():
            mine = times[name]
            rows.append(
                f"| `{name}` | {statistics.median(mine):.2f} | {min(mine):.2f} "
                f"| {max(mine):.2f} | {bar} |"
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch-mlir", "lark", "click"))
    text = "\n".join(
        [
            "# Compiler: whole-process times",
            "",
            f"`python benchmarks/compiler.py --runs {options.runs}`, commands interleaved, on a",
            f"shared two-core x86-64 machine, {date.today()}; Python {platform.python_version()}, "
            f"{versions}.",
            "The bar is the most that a command should take. *With plans*: of 262,144 rows of 512",
            "numbers, for 1x2 and 2x4.",
            "",
            *measure(options.runs),
            "",
        ]
    )
    print(text)
    if options.markdown:
        options.markdown.write_text(text)


if __name__ == "__main__":
    main()
