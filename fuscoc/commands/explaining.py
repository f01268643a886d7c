"""``fuscoc explain`` and ``fuscoc explain-error``."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from click.exceptions import Exit

from fuscoc.commands.options import (
    Colour,
    color_option,
    define_option,
    defines_for,
    parse_defines,
    parse_topologies,
    shuffle_option,
    spec_or_artifact_argument,
)


@click.command()
@spec_or_artifact_argument
@click.option("--topology", metavar="NODESxRANKS", help="Count for this cluster, e.g. 2x4.")
@click.option(
    "--extent",
    "-E",
    multiple=True,
    metavar="NAME=VALUE",
    help="Count with this run-time extent, or with this size everywhere; repeatable.",
)
@shuffle_option
@define_option
def explain(
    what: Path,
    topology: str | None,
    extent: tuple[str, ...],
    shuffle: str | None,
    define: tuple[str, ...],
) -> None:
    """Say back what a spec says, in words and numbers.

    The layouts with their sizes and strides; the longest contiguous run of a segment and the
    vectors it is copied in; the hops, buffers and kernels of both ways; when it is planned; which
    kernels can run it, and why others cannot. Sizes are formulae of what only a run knows: the
    run-time extents, the sizes that vary with the data, `nodes`, `ranks_per_node` and `ranks`. With
    --extent and --topology they are numbers.

    Nothing runs, and nothing is written.

    Exit code: 0, or 1 if the spec has errors or cannot run on that cluster, or 2 if the command
    line is wrong.

    \b
    Examples:
        fuscoc explain examples/moe.fsc
        fuscoc explain examples/moe.fsc --extent tokens=4096 --topology 2x4
        fuscoc explain examples/vit_patches.fsc -E images=8 -E height=224 -E width=336
        fuscoc explain build/moe
    """
    from rich.console import Console

    from fuscoc.explain.command import UnknownExtentError, run
    from fuscoc_runtime.errors import FuscoRuntimeError

    topologies = parse_topologies([topology] if topology else [])
    values = parse_defines(extent, "--extent")
    try:
        run(what, shuffle, defines_for(what, define), values, topologies, Console())
    except UnknownExtentError as error:
        raise click.BadParameter(str(error), param_hint="--extent") from None
    except FuscoRuntimeError as error:
        click.echo(f"error: {error}", err=True)
        raise Exit(1) from None


@click.command()
@click.argument("code", required=False, help="Such as FSC012 or FSR010; 12 is FSC012.")
@color_option
def explain_error(code: str | None, color: Colour) -> None:
    """Explain an error or a warning: what it means, a spec that has it, and a spec without.

    FSC codes are about specs and come from `fuscoc check` and `fuscoc compile`; FSR codes are
    raised while a shuffle runs. Without a code, all codes are listed with their titles. Codes are
    stable: one is never given a second meaning.

    Exit code: 0, or 2 if there is no such code.

    \b
    Examples:
        fuscoc explain-error FSC034
        fuscoc explain-error | grep layout
    """
    from fuscoc import errors

    if code is None:
        for each, title in errors.titles().items():
            click.echo(f"{each}  {title}")
        return
    try:
        page = errors.page(errors.normal(code))
    except errors.UnknownCodeError as error:
        raise click.BadParameter(str(error), param_hint="CODE") from None
    if not color.of(sys.stdout):
        click.echo(page, nl=False)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console(force_terminal=True).print(Markdown(page, code_theme="ansi_dark"))
