"""``python -m fuscoc_runtime``: run and verify an artifact, or look at the machine, where fuscoc is
not."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fuscoc_runtime.errors import FuscoRuntimeError

if TYPE_CHECKING:
    from fuscoc_runtime.run import RunReport


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 if every rank was verified, or the machine is healthy; 1 if not, or if the run
    failed."""
    parser = argparse.ArgumentParser(prog="python -m fuscoc_runtime", description=__doc__)
    commands = parser.add_subparsers(required=True)
    _add_run(commands.add_parser("run", help="shuffle made-up data and verify it"))
    _add_doctor(commands.add_parser("doctor", help="what of fuscoc can run on this machine"))
    options = vars(parser.parse_args(arguments))
    command = options.pop("command")
    result: int = command(**options)
    return result


def _add_run(command: argparse.ArgumentParser) -> None:
    command.set_defaults(command=_run)
    command.add_argument("artifact", help="directory that `fuscoc compile` wrote")
    command.add_argument("--shuffle", help="which shuffle, if there are several")
    command.add_argument("--ranks", type=int, default=4, help="ranks to start [%(default)s]")
    command.add_argument("--nodes", type=int, default=1, help="nodes to split them over [1]")
    command.add_argument("--tokens", type=int, default=16, help="outermost extent [%(default)s]")
    command.add_argument("--seed", type=int, default=0, help="seed of the data [%(default)s]")
    command.add_argument("--device", choices=("cpu", "cuda"), help="default: GPUs if enough")
    command.add_argument("--timeout", type=float, default=60.0, help="seconds [%(default)s]")
    command.add_argument("--trace", help="write what every rank did when, for Perfetto")


def _run(**options: Any) -> int:
    # Ahead of torch, whose C++ would load it and drop what Ctrl-C raises in it.
    import_module("numpy")
    from fuscoc_runtime.run import RankDiedError, run

    try:
        report = run(**options, progress=_tell)
    except (FuscoRuntimeError, RankDiedError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if os.environ.get("RANK", "0") == "0":
        _show(report)
    return 0 if report.verified else 1


def _add_doctor(command: argparse.ArgumentParser) -> None:
    command.set_defaults(command=_doctor)
    command.add_argument("--json", action="store_true", help="one JSON document")
    command.add_argument("--nccl", action="store_true", help="also try NCCL between two GPUs")


def _doctor(*, json: bool, nccl: bool) -> int:
    from fuscoc_runtime.doctor.report import examine
    from fuscoc_runtime.doctor.words import sections

    report = examine(nccl=nccl)
    if json:
        print(report.as_json())
        return int(not report.healthy)
    for section in sections(report):
        print(section.title)
        width = max(len(name) for name, _ in section.rows)
        for name, text in section.rows:
            print(f"  {name:<{width}}  {text}")
    return int(not report.healthy)


def _tell(phase: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(phase, file=sys.stderr)


def _show(report: RunReport) -> None:
    print(f"{report.shuffle} on {report.topology} ({report.ranks[0].device.split(':')[0]})")
    for rank in report.ranks:
        combine = "-" if rank.combine_ms is None else f"{rank.combine_ms:.1f} ms"
        print(
            f"  rank {rank.rank}: {rank.tokens} tokens, {rank.slots} slots; rows: network "
            f"{rank.network.rows} (saved {rank.network.saved_rows}), NVLink {rank.nvlink.rows} "
            f"(saved {rank.nvlink.saved_rows}), local {rank.local.rows}; plan "
            f"{rank.planning_ms:.1f} ms, dispatch {rank.dispatch_ms:.1f} ms, combine {combine}; "
            + ("verified" if rank.problem is None else f"WRONG: {rank.problem}")
        )


if __name__ == "__main__":
    sys.exit(main())
