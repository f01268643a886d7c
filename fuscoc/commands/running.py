"""``fuscoc run``."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path

import click
from click.exceptions import Exit

import fuscoc
from fuscoc.commands.options import (
    OUTPUT_FILE,
    SEED,
    Number,
    OneOf,
    define_option,
    defines_for,
    load_numpy,
    shuffle_option,
    spec_or_artifact_argument,
)


class Device(StrEnum):
    """Where ``run`` computes."""

    CPU = "cpu"
    CUDA = "cuda"


@click.command()
@spec_or_artifact_argument
@click.option("--ranks", type=click.IntRange(min=1), default=4, help="Ranks to start.")
@click.option(
    "--nodes", type=click.IntRange(min=1), default=1, help="Nodes that the ranks are split over."
)
@click.option(
    "--tokens", type=click.IntRange(min=0), default=16, help="Extent of a rank's outermost index."
)
@shuffle_option
@click.option("--seed", type=SEED, default=0, help="Seed of the generated data.")
@click.option(
    "--device", type=OneOf(Device), help="Default: GPUs if there are enough, else the CPU."
)
@click.option("--timeout", type=Number(min=0.1), default=60.0, help="Seconds to wait for a rank.")
@click.option(
    "--trace", type=OUTPUT_FILE, help="Write what every rank did when, for ui.perfetto.dev."
)
@define_option
def run(
    what: Path,
    ranks: int,
    nodes: int,
    tokens: int,
    shuffle: str | None,
    seed: int,
    device: Device | None,
    timeout: float,
    trace: Path | None,
    define: tuple[str, ...],
) -> None:
    """Shuffle generated data over several ranks and verify it against the reference.

    Starts a process for every rank, on this machine's GPUs if there are enough, else on the CPU;
    under torchrun this process is one of the ranks. On a CPU kernels are interpreted: take small
    sizes there.

    Exit code: 0 if all ranks are verified, 1 if one differs or fails, 2 if the command line is
    wrong.

    \b
    Examples:
        fuscoc run examples/moe.fsc --ranks 4 --nodes 2 --tokens 64
        fuscoc run build/vit_patches --device cpu
        fuscoc run examples/ulysses.fsc -D tokens=1024
        torchrun --nproc-per-node 8 -m fuscoc run build/moe --tokens 4096
    """
    import tempfile

    from rich.console import Console

    load_numpy()
    from fuscoc import tables
    from fuscoc_runtime.errors import ArtifactError, FuscoRuntimeError
    from fuscoc_runtime.run import RankDiedError, run

    defines = defines_for(what, define)
    console = Console(stderr=True)
    try:
        with tempfile.TemporaryDirectory(prefix="fuscoc-") as scratch, console.status("") as status:
            artifact = what
            if not what.is_dir():
                status.update(f"compiling {what}")
                artifact = fuscoc.compile(what, Path(scratch) / what.stem, **defines)
            status.update(f"running {what} on {ranks} ranks")
            report = run(
                artifact,
                shuffle=shuffle,
                ranks=ranks,
                nodes=nodes,
                tokens=tokens,
                seed=seed,
                device=device,
                timeout=timeout,
                trace=trace,
                progress=lambda phase: status.update(f"running {what} on {ranks} ranks: {phase}"),
            )
    except (FuscoRuntimeError, RankDiedError) as error:
        if isinstance(error, ArtifactError) and not what.is_dir():
            error.path = str(what)  # and not the artifact that was made of it
        click.echo(f"error: {error}", err=True)
        raise Exit(1) from None
    if os.environ.get("RANK", "0") == "0":
        tables.show_run(report)
    raise Exit(int(not report.verified))
