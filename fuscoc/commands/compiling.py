"""``fuscoc check`` and ``fuscoc compile``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fuscoc.commands.options import Define, Spec, parse_defines, show
from fuscoc.diagnostics import CompileError

if TYPE_CHECKING:
    from fuscoc.manifest import Assembler


class Emit(StrEnum):
    """What ``compile --emit`` prints instead of writing an artifact."""

    AST = "ast"
    IR = "ir"
    KERNELS = "kernels"
    MANIFEST = "manifest"


def check(
    files: Annotated[list[Path], typer.Argument(help=".fsc files.", exists=True, dir_okay=False)],
    define: Define = None,
) -> None:
    """Check specs and print every error and warning found in them."""
    from fuscoc import driver
    from fuscoc.lang.check import check_file

    failed = False
    for path in files:
        source = driver.read_source(path)
        try:
            checked = check_file(source, parse_defines(define))
        except CompileError as error:
            show(source, error.diagnostics)
            failed = True
            continue
        show(source, checked.warnings)
        names = ", ".join(shuffle.name for shuffle in checked.shuffles)
        typer.echo(f"{path}: ok ({names})")
    raise typer.Exit(int(failed))


def compile_(
    spec: Spec,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Artifact directory [build/<spec name>].")
    ] = None,
    define: Define = None,
    topology: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODESxRANKS", help="Plan static shuffles for this cluster; may be repeated."
        ),
    ] = None,
    cubin: Annotated[
        list[str] | None,
        typer.Option(metavar="sm_XY", help="Add CUDA machine code for this GPU; may be repeated."),
    ] = None,
    emit: Annotated[
        Emit | None, typer.Option(help="Print this stage instead of writing an artifact.")
    ] = None,
    after: Annotated[
        str | None, typer.Option(metavar="PASS", help="With --emit ir: stop after this pass.")
    ] = None,
    print_between_passes: Annotated[
        bool, typer.Option("--print-between-passes", help="Print the IR after every pass.")
    ] = False,
) -> None:
    """Compile a spec into an artifact directory."""
    from fuscoc import driver

    if after is not None and emit is not Emit.IR:
        raise typer.BadParameter("--after needs --emit ir")
    source, defines = driver.read_source(spec), parse_defines(define)
    topologies = _topologies(topology)
    trace = _print_pass if print_between_passes else None
    if emit is None:
        target = out if out is not None else Path("build") / spec.stem
        driver.compile_source(source, target, defines, trace, topologies, _assembler(cubin))
        typer.echo(f"{spec} -> {target}")
        if cubin:
            _tell_missing_cubins(target)
    elif emit is Emit.AST:
        typer.echo(driver.emit_ast(source), nl=False)
    elif emit is Emit.IR:
        try:
            typer.echo(driver.emit_ir(source, defines, after, trace), nl=False)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--after") from None
    else:
        typer.echo(driver.emit_files(source, defines, emit.value, topologies), nl=False)


def _print_pass(name: str, text: str) -> None:
    typer.echo(f"// after {name}\n{text}")


def _assembler(archs: list[str] | None) -> Assembler | None:
    """Makes the cubins that ``--cubin`` asks for; None if it asks for none."""
    if not archs:
        return None
    from fuscoc.manifest import Assembler
    from fuscoc_runtime.kernels import cuda

    for arch in archs:
        number = arch.removeprefix("sm_")
        if number == arch or not number.isdecimal() or int(number) < 80:
            raise typer.BadParameter(f"`{arch}` is not sm_80 or later", param_hint="--cubin")
    try:
        cuda.find_compiler()
    except cuda.CudaError as error:
        raise typer.BadParameter(str(error), param_hint="--cubin") from None
    return Assembler(tuple(dict.fromkeys(archs)), cuda.headers_digest(), cuda.cubin)


def _tell_missing_cubins(artifact: Path) -> None:
    """Say why shuffles of an artifact have no machine code."""
    from fuscoc_runtime import load_artifact

    for shuffle in load_artifact(artifact).manifest.shuffles:
        if shuffle.cuda is None:
            typer.echo(f"no CUDA kernels for `{shuffle.name}`: {shuffle.cuda_note}", err=True)


def _topologies(texts: list[str] | None) -> list[str]:
    from fuscoc_runtime.errors import TopologyError
    from fuscoc_runtime.topology import Topology

    try:
        return [str(Topology.parse(text)) for text in texts or ()]
    except TopologyError as error:
        raise typer.BadParameter(error.problem, param_hint="--topology") from None
