"""``fuscoc simulate``."""

from __future__ import annotations

from pathlib import Path

import click
from click.exceptions import Exit

from fuscoc.commands.options import (
    OUTPUT_FILE,
    SEED,
    define_option,
    defines_for,
    load_numpy,
    shuffle_option,
    spec_or_artifact_argument,
    tokens_option,
)


@click.command()
@spec_or_artifact_argument
@click.option(
    "--cluster",
    default="h100-8x8-roce",
    help="A cluster of the package, or a .toml file of your own.",
)
@tokens_option
@click.option(
    "--traffic",
    default="uniform",
    help="uniform, single-node, imbalanced, zipf:EXPONENT or a .npy/.npz file.",
)
@click.option(
    "--against",
    default="",
    show_default=False,
    help="Contenders: spec, fixed, naive, deduplicated, fusco, fast.",
)
@click.option("--ablate", is_flag=True, help="Switch parts off, one by one.")
@click.option(
    "--sweep",
    metavar="NAME=V,V",
    help="tokens; nic, nvlink or hbm in GB/s; latency in µs; or oversubscription.",
)
@click.option(
    "--layers",
    type=click.IntRange(min=1),
    default=1,
    help="Layers of the model that shuffle.",
)
@shuffle_option
@click.option("--seed", type=SEED, default=0, help="Seed of made-up traffic.")
@click.option("--json", type=OUTPUT_FILE, help="Write the record.")
@click.option("--html", type=OUTPUT_FILE, help="Write a page to explore it.")
@define_option
def simulate(
    what: Path,
    cluster: str,
    tokens: int | None,
    traffic: str,
    against: str,
    ablate: bool,
    sweep: str | None,
    layers: int,
    shuffle: str | None,
    seed: int,
    json: Path | None,
    html: Path | None,
    define: tuple[str, ...],
) -> None:
    """Simulate a shuffle on a cluster that need not be there: times, loads, contenders, memory.

    The compiled program and its plan are simulated as flows: copies and exchanges on links that
    share their bandwidth fairly, with signals and waits between them. It needs no GPU.
    docs/simulation.md says how well that agrees with measurements.

    Exit code: 0, or 1 if the spec or the cluster has errors or the routing does not fit, or 2 if
    the command line is wrong.

    \b
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
        click.echo(f"error: {NativeBuildError(0, str(error))}", err=True)
        raise Exit(1) from None
    except wrong as error:
        click.echo(f"error: {error.args[0] if isinstance(error, LookupError) else error}", err=True)
        raise Exit(1) from None


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
        raise click.BadParameter(
            f"`{text}` is not NAME=VALUE,VALUE with positive numbers", param_hint="--sweep"
        )
    return name.strip(), numbers
