"""``fuscoc run``."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import fuscoc
from fuscoc.commands.options import (
    MAX_SEED,
    Define,
    ShuffleName,
    SpecOrArtifact,
    defines_for,
    load_numpy,
)


class Device(StrEnum):
    """Where ``run`` computes."""

    CPU = "cpu"
    CUDA = "cuda"


def run(
    what: SpecOrArtifact,
    ranks: Annotated[int, typer.Option(min=1, help="Ranks to start.")] = 4,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes that the ranks are split over.")] = 1,
    tokens: Annotated[int, typer.Option(min=0, help="Extent of a rank's outermost index.")] = 16,
    shuffle: ShuffleName = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the generated data.")] = 0,
    device: Annotated[
        Device | None, typer.Option(help="Default: GPUs if there are enough, else the CPU.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for a rank.")] = 60.0,
    trace: Annotated[
        Path | None,
        typer.Option(help="Write what every rank did when, for ui.perfetto.dev.", dir_okay=False),
    ] = None,
    define: Define = None,
) -> None:
    """Shuffle generated data over several ranks and verify it against the reference.

    Starts a process for every rank, on this machine's GPUs if there are enough, else on the CPU;
    under torchrun this process is one of the ranks. On a CPU kernels are interpreted: take small
    sizes there.

    Exit code: 0 if all ranks are verified, 1 if one differs or fails, 2 if the command line is
    wrong.

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
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    if os.environ.get("RANK", "0") == "0":
        tables.show_run(report)
    raise typer.Exit(int(not report.verified))
