"""``fuscoc test``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fuscoc.commands.options import (
    Define,
    ShuffleName,
    Spec,
    load_numpy,
    parse_defines,
    parse_topologies,
)


def property_test(
    spec: Spec,
    examples: Annotated[
        int, typer.Option(min=1, help="Cases to plan; a tenth as many are executed.")
    ] = 200,
    seed: Annotated[int | None, typer.Option(help="Repeat a run.")] = None,
    replay: Annotated[
        Path | None,
        typer.Option(help="Check only the routing that a failure saved.", exists=True),
    ] = None,
    artifact: Annotated[
        Path | None, typer.Option(help="Test this artifact instead of compiling the spec.")
    ] = None,
    topology: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODESxRANKS",
            help="Draw this cluster only, e.g. 2x4; may be repeated [up to 8x8, to execute 3x2].",
        ),
    ] = None,
    shuffle: ShuffleName = None,
    define: Define = None,
) -> None:
    """Property-test a spec: random clusters, sizes and routings, against the reference.

    Plans are checked against invariants, and kernels, which are interpreted, against the reference.
    A failure is shrunk, explained and saved, so that --replay checks it again. The command needs
    `pip install 'fuscoc[test]'`.

    Exit code: 0 if every property held, 1 if one failed, 2 if the command line is wrong.

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
        typer.echo(f"error: {error}; `pip install 'fuscoc[test]'` brings it", err=True)
        raise typer.Exit(1) from None

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
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    raise typer.Exit(int(not report.passed))
