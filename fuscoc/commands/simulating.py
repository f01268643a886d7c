"""``fuscoc simulate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fuscoc.commands.options import (
    MAX_SEED,
    Define,
    ShuffleName,
    SpecOrArtifact,
    defines_for,
    load_numpy,
)


def simulate(
    what: SpecOrArtifact,
    cluster: Annotated[
        str, typer.Option(help="A cluster of the package, or a .toml file of your own.")
    ] = "h100-8x8-roce",
    tokens: Annotated[
        int | None,
        typer.Option(min=0, help="Extent of a rank's outermost index [4096; dense target: 32]."),
    ] = None,
    traffic: Annotated[
        str,
        typer.Option(help="uniform, single-node, imbalanced, zipf:EXPONENT or a .npy/.npz file."),
    ] = "uniform",
    against: Annotated[
        str, typer.Option(help="Contenders: spec, fixed, naive, deduplicated, fusco, fast.")
    ] = "",
    ablate: Annotated[bool, typer.Option("--ablate", help="Switch parts off, one by one.")] = False,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=V,V",
            help="tokens; nic, nvlink or hbm in GB/s; latency in µs; or oversubscription.",
        ),
    ] = None,
    layers: Annotated[int, typer.Option(min=1, help="Layers of the model that shuffle.")] = 1,
    shuffle: ShuffleName = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of made-up traffic.")] = 0,
    json: Annotated[
        Path | None, typer.Option("--json", help="Write the record.", dir_okay=False)
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page to explore it.", dir_okay=False)
    ] = None,
    define: Define = None,
) -> None:
    """Simulate a shuffle on a cluster that need not be there: times, loads, contenders, memory.

    The compiled program and its plan are simulated as flows: copies and exchanges on links that
    share their bandwidth fairly, with signals and waits between them. It needs no GPU.
    docs/simulation.md says how well that agrees with measurements.

    Exit code: 0, or 1 if the spec or the cluster has errors or the routing does not fit, or 2 if
    the command line is wrong.

    Examples:

        fuscoc simulate examples/moe.fsc --cluster h100-8x8-roce --tokens 16384 --against naive,fast

        fuscoc simulate moe.fsc --cluster mine.toml --traffic zipf:0.8 --ablate

        fuscoc simulate moe.fsc --sweep tokens=4096,8192,16384 --html page.html
    """
    swept = _sweep(sweep)
    load_numpy()
    from fuscoc.planning.command import MissingExtraError, RoutingError
    from fuscoc.simulate import command
    from fuscoc.simulate.contenders import SimulationError
    from fuscoc_runtime.errors import FuscoRuntimeError, NativeBuildError
    from fuscoc_runtime.plan.native import BuildError

    options = command.SimulateOptions(
        cluster=cluster,
        tokens=tokens,
        traffic=traffic,
        against=tuple(each.strip() for each in against.split(",") if each.strip()),
        ablate=ablate,
        sweep=swept,
        layers=layers,
        seed=seed,
        json=json,
        html=html,
    )
    wrong = FuscoRuntimeError, RoutingError, MissingExtraError, SimulationError, LookupError
    try:
        command.run(what, shuffle, defines_for(what, define), options)
    except BuildError as error:  # of the stages, or of the policies
        typer.echo(f"error: {NativeBuildError(0, str(error))}", err=True)
        raise typer.Exit(1) from None
    except wrong as error:
        typer.echo(f"error: {error.args[0] if isinstance(error, LookupError) else error}", err=True)
        raise typer.Exit(1) from None


def _sweep(text: str | None) -> tuple[str, tuple[float, ...]] | None:
    """What ``--sweep`` says."""
    if text is None:
        return None
    name, _, values = text.partition("=")
    try:
        numbers = tuple(float(each) for each in values.split(","))
    except ValueError:
        numbers = ()
    if not numbers or not all(0 < number < 1e12 for number in numbers):
        raise typer.BadParameter(
            f"`{text}` is not NAME=VALUE,VALUE with positive numbers", param_hint="--sweep"
        )
    return name.strip(), numbers
