"""``fuscoc test``."""

from __future__ import annotations

from pathlib import Path

import click
from click.exceptions import Exit

from fuscoc.commands.options import (
    define_option,
    load_numpy,
    parse_defines,
    parse_topologies,
    shuffle_option,
    spec_argument,
)


@click.command("test")
@spec_argument
@click.option(
    "--examples",
    type=click.IntRange(min=1),
    default=200,
    help="Cases to plan; a tenth as many are executed.",
)
@click.option("--seed", type=int, help="Repeat a run.")
@click.option(
    "--replay",
    type=click.Path(exists=True, path_type=Path),
    help="Check only the routing that a failure saved.",
)
@click.option(
    "--artifact",
    type=click.Path(path_type=Path),
    help="Test this artifact instead of compiling the spec.",
)
@click.option(
    "--topology",
    multiple=True,
    metavar="NODESxRANKS",
    help="Draw this cluster only, e.g. 2x4; may be repeated [up to 8x8, to execute 3x2].",
)
@shuffle_option
@define_option
def property_test(
    spec: Path,
    examples: int,
    seed: int | None,
    replay: Path | None,
    artifact: Path | None,
    topology: tuple[str, ...],
    shuffle: str | None,
    define: tuple[str, ...],
) -> None:
    """Property-test a spec: random clusters, sizes and routings, against the reference.

    Plans are checked against invariants, and kernels, which are interpreted, against the reference.
    A failure is shrunk, explained and saved, so that --replay checks it again. The command needs
    `pip install 'fuscoc[test]'`.

    Exit code: 0 if every property held, 1 if one failed, 2 if the command line is wrong.

    \b
    Examples:
        fuscoc test my.fsc
        fuscoc test my.fsc --examples 2000 --seed 7
        fuscoc test my.fsc --topology 1x8 --topology 2x4
        fuscoc test my.fsc --replay FILE
    """
    load_numpy()
    try:
        from fuscoc.planning.files import RoutingFileError
        from fuscoc.testing.routes import NoRoutingError
        from fuscoc.testing.runner import run_tests
        from fuscoc.testing.spec import UnknownShuffleError
        from fuscoc_runtime.errors import FuscoRuntimeError
    except ModuleNotFoundError as error:
        click.echo(f"error: {error}; `pip install 'fuscoc[test]'` brings it", err=True)
        raise Exit(1) from None

    try:
        report = run_tests(
            spec,
            examples=examples,
            seed=seed,
            replay=replay,
            artifact=artifact,
            topologies=parse_topologies(topology),
            shuffle=shuffle,
            defines=parse_defines(define),
        )
    except (FuscoRuntimeError, NoRoutingError, RoutingFileError, UnknownShuffleError) as error:
        click.echo(f"error: {error}", err=True)
        raise Exit(1) from None
    raise Exit(int(not report.passed))
