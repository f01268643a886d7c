"""The speed of two versions of fuscoc, on the same GPUs.

    python -m benchmarks.ab OLD NEW --compile-only
    python -m benchmarks.ab OLD NEW --ranks 2 --rounds 3 --limit 1.02

OLD and NEW are checkouts. Each compiles the deepseek-v3 shape into its ``build/ab`` if that lacks
it; ``--compile-only`` compiles anew and needs no GPU. As artifacts of one version are none to
another, processes of one (`ab_rank.py`, which times and verifies) follow those of the other: old,
new, new, old, … A case is ``uniform:8192``, whose dispatch and combine are timed,
``graph:uniform:128``, both replayed from one CUDA graph, ``graph8:uniform:128``, an eighth of what
a graph with eight of both takes, or ``host:uniform:128``, what the host takes to enqueue both. Ends
with an error if a version failed or was wrong, or if a ratio new / old is above ``--limit``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

RANK_SCRIPT = Path(__file__).with_name("ab_rank.py")
CASES = ("uniform:8192", "single:8192", "skewed:8192", "uniform:4096")
GRAPHS = ("graph:uniform:128", "graph:single:128")
CASE = re.compile(r"((graph([1-9]\d*)?|host):)?(uniform|single|skewed):[1-9]\d*")
COMPILE = "import sys, fuscoc; fuscoc.compile(sys.argv[1], sys.argv[2])"


@dataclass(frozen=True)
class Comparison:
    """Microseconds of a case, a median for each round."""

    case: str
    old: tuple[float, ...]
    new: tuple[float, ...]

    @property
    def ratio(self) -> float:
        return statistics.median(self.new) / statistics.median(self.old)

    @property
    def difference(self) -> str:
        """Beyond the spread is what every round of one says about every round of the other."""
        if min(self.new) > max(self.old):
            return "slower"
        return "faster" if max(self.new) < min(self.old) else "within the spread"


def compare(
    old: Sequence[Mapping[str, float]], new: Sequence[Mapping[str, float]]
) -> list[Comparison]:
    """By case, from the times of every round."""
    return [
        Comparison(case, tuple(each[case] for each in old), tuple(each[case] for each in new))
        for case in old[0]
    ]


def markdown(comparisons: Sequence[Comparison]) -> str:
    lines = [
        "| case | old, µs (min–max) | new, µs (min–max) | new / old | difference |",
        "|---|---|---|---|---|",
    ]
    for each in comparisons:
        old, new = map(_spread, (each.old, each.new))
        lines.append(f"| {each.case} | {old} | {new} | {each.ratio:.3f} | {each.difference} |")
    return "\n".join(lines)


def _spread(times: Sequence[float]) -> str:
    return f"{statistics.median(times):.1f} ({min(times):.1f}–{max(times):.1f})"


def problems(comparisons: Sequence[Comparison], limit: float | None) -> list[str]:
    """The cases whose ratio is above the limit."""
    if limit is None:
        return []
    return [
        f"{each.case} takes {each.ratio:.3f} times as long, more than {limit}"
        for each in comparisons
        if each.ratio > limit
    ]


def turns(rounds: int) -> list[str]:
    """Who runs when: neither version always comes first."""
    return [name for i in range(rounds) for name in (("old", "new"), ("new", "old"))[i % 2]]


@dataclass(frozen=True)
class Version:
    """A checkout and its artifact."""

    checkout: Path
    artifact: Path

    @property
    def variables(self) -> dict[str, str]:
        """Under which Python imports this version's packages, and nothing beside the script."""
        path = [str(self.checkout), str(self.checkout / "runtime")]
        path += [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
        return os.environ | {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}

    def run(self, *command: str | Path) -> None:
        """Python with these arguments."""
        line = [sys.executable, *map(str, command)]
        done = subprocess.run(
            line, cwd=self.checkout, env=self.variables, capture_output=True, text=True
        )
        if done.returncode:
            said = (done.stdout + done.stderr)[-4000:]
            raise SystemExit(f"{said}\n{self.checkout}: {' '.join(line)} failed")

    def compile(self, backend: str) -> None:
        from benchmarks.moe_cases import SHAPES, spec  # needs the compiler

        self.artifact.parent.mkdir(parents=True, exist_ok=True)
        text = self.artifact.with_suffix(".fsc")
        text.write_text(spec(SHAPES["deepseek-v3"], backend), encoding="utf-8")
        self.run("-c", COMPILE, text, self.artifact)

    def measure(self, num_ranks: int, cases: Sequence[str]) -> dict[str, Any]:
        """What rank 0 wrote."""
        with tempfile.TemporaryDirectory(prefix="fuscoc-ab-") as scratch:
            out = Path(scratch) / "out.json"
            ranks = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}")
            self.run(*ranks, RANK_SCRIPT, self.artifact, out, *cases)
            report: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        if not Path(report["runtime"]).is_relative_to(self.checkout):
            raise SystemExit(f"{self.checkout}: it was {report['runtime']} that ran")
        return report


def case(text: str) -> str:
    if not CASE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no case such as graph:uniform:128")
    return text


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("old", type=Path, help="a checkout")
    parser.add_argument("new", type=Path, help="another")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each")
    parser.add_argument("--cases", type=case, nargs="+", default=[*CASES, *GRAPHS])
    parser.add_argument("--backend", choices=("cuda", "triton"), default="cuda")
    parser.add_argument("--artifacts", type=Path, help="a folder for both; default: build/ab each")
    parser.add_argument("--limit", type=float, help="the largest ratio new / old that is accepted")
    parser.add_argument("--compile-only", action="store_true", help="write artifacts and stop")
    return parser.parse_args(given)


def versions(options: argparse.Namespace) -> dict[str, Version]:
    found = {}
    for name, checkout in (("old", options.old.resolve()), ("new", options.new.resolve())):
        folder = options.artifacts.resolve() / name if options.artifacts else checkout / "build/ab"
        found[name] = Version(checkout, folder / f"moe-{options.backend}")
    return found


def main(given: Sequence[str] | None = None) -> None:
    options = arguments(given)
    both = versions(options)
    num_gpus = torch.cuda.device_count()
    if num_gpus < options.ranks and not options.compile_only:
        raise SystemExit(
            f"{options.ranks} ranks need as many GPUs, and this machine has {num_gpus}; "
            "--compile-only writes the artifacts without"
        )
    for version in both.values():
        if options.compile_only or not version.artifact.exists():
            version.compile(options.backend)
            print(f"compiled {version.artifact}", flush=True)
    if options.compile_only:
        return
    reports: dict[str, list[dict[str, Any]]] = {"old": [], "new": []}
    for name in turns(options.rounds):
        report = both[name].measure(options.ranks, options.cases)
        # A run that is cut short has said what it knew.
        each = ", ".join(f"{what} {micros:.1f} µs" for what, micros in report["times"].items())
        print(f"{name}: {each}", flush=True)
        reports[name].append(report)
    times = {name: [report["times"] for report in reports[name]] for name in reports}
    found = compare(times["old"], times["new"])
    print(f"\n{options.ranks} × {reports['new'][0]['setup']}, {options.rounds} rounds\n")
    print(markdown(found), flush=True)
    wrong = [f"{n}: {line}" for n in reports for each in reports[n] for line in each["wrong"]]
    wrong = list(dict.fromkeys(wrong)) + problems(found, options.limit)
    if wrong:
        raise SystemExit("\n" + "\n".join(wrong))


if __name__ == "__main__":
    main()
