"""``fuscoc compile``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from fuscoc.commands.cubins import assembler, tell_missing
from fuscoc.commands.options import (
    Colour,
    Format,
    OneOf,
    color_option,
    define_option,
    format_option,
    parse_defines,
    parse_topologies,
    show,
    spec_argument,
    write_report,
)
from fuscoc.diagnostics import CompileError, Diagnostic
from fuscoc.source import SourceFile, read_source

if TYPE_CHECKING:
    from fuscoc.lang.check import Checked


class Emit(StrEnum):
    """What ``compile --emit`` prints instead of writing an artifact."""

    AST = "ast"
    IR = "ir"
    KERNELS = "kernels"
    MANIFEST = "manifest"


@click.command("compile")
@spec_argument
@click.option(
    "--out", "-o", type=click.Path(path_type=Path), help="Artifact directory [build/SPEC]."
)
@define_option
@click.option(
    "--topology",
    multiple=True,
    metavar="NODESxRANKS",
    help="Plan static shuffles for this cluster; may be repeated.",
)
@click.option(
    "--cubin",
    multiple=True,
    metavar="sm_XY",
    help="Add machine code for this GPU; may be repeated.",
)
@click.option("--emit", type=OneOf(Emit), help="Print this stage instead of writing an artifact.")
@click.option("--after", metavar="PASS", help="With --emit ir or kernels: stop after this pass.")
@click.option("--print-between-passes", is_flag=True, help="Print the IR after every pass.")
@format_option
@color_option
def compile_(
    spec: Path,
    out: Path | None,
    define: tuple[str, ...],
    topology: tuple[str, ...],
    cubin: tuple[str, ...],
    emit: Emit | None,
    after: str | None,
    print_between_passes: bool,
    format: Format,
    color: Colour,
) -> None:
    """Compile a spec into an artifact directory: manifest, kernels, IR dumps, baked plans.

    Needs no GPU. An artifact is written whole, or not at all; one that is already there is
    replaced. The same spec and options give the same bytes. `fuscoc run` and `fuscoc.load` execute
    it; a machine that only does that needs no more than the package fuscoc-runtime.

    A static shuffle (one that depends on no data) is planned for every --topology at once. Kernels
    are compiled where they are loaded, unless --cubin brings machine code. For that Triton is
    needed here, and for CUDA kernels nvcc or NVRTC.

    Exit code: 0, or 1 if the spec has errors, all of which are shown, or 2 if the command line is
    wrong.

    \b
    Examples:
        fuscoc compile examples/moe.fsc
        fuscoc compile moe.fsc -o build/small -D hidden=1024 -D experts=64
        fuscoc compile moe.fsc --cubin sm_90 --cubin sm_80
        fuscoc compile examples/ulysses.fsc --topology 1x8 --topology 2x8
        fuscoc compile moe.fsc --emit ir --after coalesce-segments
        fuscoc compile moe.fsc --emit kernels --after choose-tiles
    """
    from fuscoc import driver

    if after is not None and emit not in (Emit.IR, Emit.KERNELS):
        raise click.BadParameter("--after needs --emit ir or --emit kernels")
    if emit is not None and (out is not None or cubin):
        raise click.BadParameter("--emit writes no artifact: leave out --out and --cubin")
    if format is not Format.TEXT and (emit is not None or print_between_passes):
        raise click.BadParameter("--format's document is all that is printed: leave out stages")
    source, defines = read_source(spec), parse_defines(define)
    topologies = parse_topologies(topology)
    trace = _print_pass if print_between_passes else None
    if emit is None:
        target = out if out is not None else Path("build") / spec.stem
        with _reported(source, format, color) as checked:
            driver.compile_source(
                source, target, defines, trace, topologies, assembler(cubin), checked.append
            )
        if format is Format.TEXT:
            click.echo(f"{spec} -> {target}")
        if cubin:
            tell_missing(target)
    elif emit is Emit.AST:
        click.echo(driver.emit_ast(source), nl=False)
    elif emit is Emit.IR or after is not None:
        emitted = driver.emit_ir if emit is Emit.IR else driver.emit_kernel_ir
        try:
            click.echo(emitted(source, defines, after, trace), nl=False)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--after") from None
    else:
        click.echo(driver.emit_files(source, defines, emit.value, topologies), nl=False)


@contextmanager
def _reported(source: SourceFile, format: Format, color: Colour) -> Iterator[list[Checked]]:
    """Write what is found while compiling as ``--format`` says; the errors end the command.

    The body adds the spec when it is checked.
    """
    checked: list[Checked] = []
    errors: tuple[Diagnostic, ...] = ()
    try:
        yield checked
    except CompileError as error:
        errors = error.diagnostics
    warnings = tuple(warning for each in checked for warning in each.warnings)
    if format is Format.TEXT:
        show(source, (*warnings, *errors), color)
    else:
        from fuscoc.reports import FileReport

        names = tuple(shuffle.name for each in checked if not errors for shuffle in each.shuffles)
        write_report(format, [FileReport(source, (*warnings, *errors), names)])
    if errors:
        raise Exit(1)


def _print_pass(name: str, text: str) -> None:
    click.echo(f"// after {name}\n{text}")
