"""The speed of two versions of fuscoc, on the same GPUs.

    python -m benchmarks.ab OLD NEW --compile-only
    python -m benchmarks.ab OLD NEW --ranks 2 --rounds 3 --limit 1.02
    NIC_GB_PER_SECOND=3.5 python -m benchmarks.ab OLD NEW --nodes 2 --cases uniform:4096

OLD and NEW are checkouts. Each compiles the deepseek-v3 shape into its ``build/ab`` if that lacks
it; ``--compile-only`` compiles anew and needs no GPU. As artifacts of one version are none to
another, each has processes of its own (`ab_rank.py`, which times and verifies). These stay, and are
told in turn to measure a case: old, new, new, old, … ; the other's wait on the host.

A case is ``uniform:8192``, whose dispatch and combine are timed, ``fp8:uniform:8192``, a dispatch
of fp8 rows with scales, ``graph:uniform:128``, both of bf16 replayed from one CUDA graph,
``graph8:uniform:128``, an eighth of what a graph with eight of both takes, or
``host:uniform:128``, what the host takes to enqueue both. With ``--nodes`` ranks are nodes of a
network, behind a NIC each (`network_nic.c`, of NIC_GB_PER_SECOND), and sizes are exact.

Ends with an error if a version failed or was wrong, or if a ratio new / old is above ``--limit``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import socket
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import torch

RANK_SCRIPT = Path(__file__).with_name("ab_rank.py")
NIC = Path(__file__).with_name("network_nic.c")
CASES = ("uniform:8192", "single:8192", "skewed:8192", "uniform:4096")
OTHERS = ("fp8:uniform:8192", "graph:uniform:128", "graph:single:128")
BETWEEN_NODES = ("uniform:4096", "single:4096")
CASE = re.compile(r"((graph([1-9]\d*)?|host|fp8):)?(uniform|single|skewed):[1-9]\d*")
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
    """A checkout and the folder of its artifacts."""

    checkout: Path
    artifacts: Path

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
        from benchmarks import fp8_cases  # these need the compiler
        from benchmarks.moe_cases import SHAPES, spec

        self.artifacts.mkdir(parents=True, exist_ok=True)
        shape = SHAPES["deepseek-v3"]
        texts = {"moe": spec(shape, backend), "fp8": fp8_cases.spec(shape, "payload")}
        for name, text in texts.items():
            source = self.artifacts / f"{name}.fsc"
            source.write_text(text, encoding="utf-8")
            self.run("-c", COMPILE, source, self.artifacts / name)


class Ranks:
    """The processes of a version, a GPU each, from ``with`` to its end."""

    def __init__(self, version: Version, num_ranks: int, num_nodes: int) -> None:
        self.version = version
        self._processes: list[subprocess.Popen[str]] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shared = {"WORLD_SIZE": num_ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for rank in range(num_ranks):
            own = {**shared, "RANK": rank}
            if num_nodes > 1:
                own |= _wire(version, rank * num_nodes // num_ranks)
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, str(RANK_SCRIPT), str(version.artifacts), str(num_nodes)],
                    cwd=version.checkout,
                    env=version.variables | {name: str(value) for name, value in own.items()},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )

    def measure(self, case: str) -> list[dict[str, Any]]:
        """What every rank reports of a case."""
        for process in self._processes:
            assert process.stdin is not None
            print(case, file=process.stdin, flush=True)
        answers = [process.stdout for process in self._processes if process.stdout is not None]
        said: dict[IO[str], str] = {}
        while len(said) < len(answers):
            for answer in select.select([each for each in answers if each not in said], [], [])[0]:
                said[answer] = answer.readline()
                if not said[answer]:
                    raise SystemExit(f"{self.version.checkout}: a rank ended in {case}")
        reports = [json.loads(said[answer]) for answer in answers]
        runtime = reports[0]["runtime"]
        if not Path(runtime).is_relative_to(self.version.checkout):
            raise SystemExit(f"{self.version.checkout}: it was {runtime} that ran")
        return reports

    def close(self) -> None:
        """Lets the ranks end. They raise what their shuffles have found wrong."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        codes = [process.wait() for process in self._processes]
        if any(codes):
            raise SystemExit(f"{self.version.checkout}: a rank failed in the end")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        for process in self._processes:
            process.kill()


def _wire(version: Version, node: int) -> dict[str, str]:
    """The variables of a rank that is on its own node, as in `network.py`."""
    return {
        "NCCL_HOSTID": f"node-{node}",
        "LD_PRELOAD": str(version.artifacts / "nic.so"),
        "NCCL_SOCKET_IFNAME": "lo",
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",
        "NCCL_SOCKET_NTHREADS": "1",
        "NCCL_NSOCKS_PERTHREAD": "16",
    }


def case(text: str) -> str:
    if not CASE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no case such as graph:uniform:128")
    return text


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("old", type=Path, help="a checkout")
    parser.add_argument("new", type=Path, help="another")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=1, help="how many of them the ranks are on")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each")
    parser.add_argument("--cases", type=case, nargs="+")
    parser.add_argument("--backend", choices=("cuda", "triton"), default="cuda", help="of bf16")
    parser.add_argument("--artifacts", type=Path, help="a folder for both; default: build/ab each")
    parser.add_argument("--limit", type=float, help="the largest ratio new / old that is accepted")
    parser.add_argument("--compile-only", action="store_true", help="write artifacts and stop")
    options = parser.parse_args(given)
    if options.cases is None:
        options.cases = [*BETWEEN_NODES] if options.nodes > 1 else [*CASES, *OTHERS]
    if options.nodes > 1 and any(each.count(":") > 1 for each in options.cases):
        parser.error("between nodes a case is a routing and its tokens, such as uniform:4096")
    return options


def versions(options: argparse.Namespace) -> dict[str, Version]:
    found = {}
    backend = "auto" if options.nodes > 1 else options.backend
    for name, checkout in (("old", options.old.resolve()), ("new", options.new.resolve())):
        folder = options.artifacts.resolve() / name if options.artifacts else checkout / "build/ab"
        found[name] = Version(checkout, folder / backend)
        if options.compile_only or not found[name].artifacts.exists():
            found[name].compile(backend)
            nic = ("cc", "-O2", "-shared", "-fPIC", "-o", folder / backend / "nic.so", NIC, "-ldl")
            subprocess.run(nic, check=True)
            print(f"compiled {found[name].artifacts}", flush=True)
    return found


def main(given: Sequence[str] | None = None) -> None:
    options = arguments(given)
    num_gpus = torch.cuda.device_count()
    if num_gpus < options.ranks and not options.compile_only:
        raise SystemExit(
            f"{options.ranks} ranks need as many GPUs, and this machine has {num_gpus}; "
            "--compile-only writes the artifacts without"
        )
    both = versions(options)
    if options.compile_only:
        return
    found: list[Comparison] = []
    wrong: list[str] = []
    with ExitStack() as stack:
        ranks = {
            name: stack.enter_context(Ranks(version, options.ranks, options.nodes))
            for name, version in both.items()
        }
        for each in options.cases:
            times: dict[str, list[Mapping[str, float]]] = {"old": [], "new": []}
            for name in turns(options.rounds):
                reports = ranks[name].measure(each)
                # A run that is cut short has said what it knew.
                micros = reports[0]["times"].items()
                print(f"{name}: {', '.join(f'{k} {v:.1f} µs' for k, v in micros)}", flush=True)
                times[name].append(reports[0]["times"])
                wrong += [f"{name}: {line}" for report in reports for line in report["wrong"]]
            found += compare(times["old"], times["new"])
    print(f"\n{options.ranks} × {reports[0]['setup']}, {options.rounds} rounds\n")
    print(markdown(found), flush=True)
    wrong = list(dict.fromkeys(wrong)) + problems(found, options.limit)
    if wrong:
        raise SystemExit("\n" + "\n".join(wrong))


if __name__ == "__main__":
    main()
