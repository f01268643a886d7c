"""The ``fuscoc`` command. Heavy imports stay inside the commands that need them."""

from __future__ import annotations

import logging
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import fuscoc
from fuscoc.diagnostics import CompileError, Diagnostic, render
from fuscoc.source import SourceFile

if TYPE_CHECKING:
    from fuscoc.manifest import Assembler

app = typer.Typer(
    name="fuscoc",
    help="A compiler for data shuffles: layouts and routing in, fused kernels and plans out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Spec = Annotated[Path, typer.Argument(help="A .fsc file.", exists=True, dir_okay=False)]
Define = Annotated[
    list[str] | None,
    typer.Option("--define", "-D", metavar="NAME=VALUE", help="Override a const of the spec."),
]


class Emit(StrEnum):
    """What ``compile --emit`` prints instead of writing an artifact."""

    AST = "ast"
    IR = "ir"
    KERNELS = "kernels"
    MANIFEST = "manifest"


class Balance(StrEnum):
    """``plan --balance``: who forwards what crosses the network."""

    NONE = "none"
    STATIC = "static"
    GREEDY = "greedy"
    LPT = "lpt"
    SPLIT = "split"
    AUTO = "auto"


class Schedule(StrEnum):
    """``plan --schedule``: in which stages it crosses."""

    PAIRWISE = "pairwise"
    SPREAD_OUT = "spread-out"
    FAST = "fast"
    AUTO = "auto"


class Device(StrEnum):
    """Where ``run`` computes."""

    CPU = "cpu"
    CUDA = "cuda"


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"fuscoc {fuscoc.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options that come before the command."""


@app.command()
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
            checked = check_file(source, _defines(define))
        except CompileError as error:
            _show(source, error.diagnostics)
            failed = True
            continue
        _show(source, checked.warnings)
        names = ", ".join(shuffle.name for shuffle in checked.shuffles)
        typer.echo(f"{path}: ok ({names})")
    raise typer.Exit(int(failed))


@app.command("compile")
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
    source, defines = driver.read_source(spec), _defines(define)
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


@app.command()
def run(
    what: Annotated[
        Path, typer.Argument(help="A .fsc file or an artifact directory.", exists=True)
    ],
    ranks: Annotated[int, typer.Option(min=1, help="Ranks to start.")] = 4,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes that the ranks are split over.")] = 1,
    tokens: Annotated[int, typer.Option(min=0, help="Extent of a rank's outermost index.")] = 16,
    shuffle: Annotated[
        str | None, typer.Option(help="Which shuffle, if there are several.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the generated data.")] = 0,
    device: Annotated[
        Device | None, typer.Option(help="Default: GPUs if there are enough, else the CPU.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for a rank.")] = 60.0,
    define: Define = None,
) -> None:
    """Shuffle generated data over several ranks and verify it against the reference.

    Starts a process for every rank, on this machine's GPUs if there are enough, else on the CPU;
    under torchrun this process is one of the ranks. Exit code 1 if any rank differs.
    """
    import tempfile

    from rich.console import Console

    from fuscoc import run_report
    from fuscoc_runtime.errors import FuscoRuntimeError
    from fuscoc_runtime.run import RankDiedError, run

    if what.is_dir() and define:
        raise typer.BadParameter("--define needs a .fsc file, not an artifact")
    console = Console(stderr=True)
    try:
        with tempfile.TemporaryDirectory(prefix="fuscoc-") as scratch, console.status("") as status:
            artifact = what
            if not what.is_dir():
                status.update(f"compiling {what}")
                artifact = fuscoc.compile(what, Path(scratch) / what.stem, **_defines(define))
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
                progress=lambda phase: status.update(f"running {what} on {ranks} ranks: {phase}"),
            )
    except (FuscoRuntimeError, RankDiedError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    if os.environ.get("RANK", "0") == "0":
        run_report.show(report)
    raise typer.Exit(int(not report.verified))


@app.command()
def plan(
    what: Annotated[
        Path, typer.Argument(help="A .fsc file or an artifact directory.", exists=True)
    ],
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the cluster.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="Ranks on each node.")] = 8,
    routing: Annotated[
        str,
        typer.Option(help="uniform, single-node, zipf:EXPONENT, imbalanced or a .npy/.npz file."),
    ] = "uniform",
    tokens: Annotated[
        int | None, typer.Option(min=0, help="Extent of a rank's outermost index [4096 or 32].")
    ] = None,
    balance: Annotated[
        Balance | None, typer.Option(help="Who forwards what [as the spec says].")
    ] = None,
    schedule: Annotated[Schedule, typer.Option(help="Stages of the network hop.")] = Schedule.AUTO,
    shuffle: Annotated[
        str | None, typer.Option(help="Which shuffle, if there are several.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of a made-up routing.")] = 0,
    nic: Annotated[float, typer.Option(min=0.001, help="GB/s of a rank's NIC.")] = 50.0,
    nvlink: Annotated[float, typer.Option(min=0.001, help="GB/s of a rank's NVLink.")] = 450.0,
    save: Annotated[
        Path | None, typer.Option(help="Write the plan to this .npz file.", dir_okay=False)
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a report with pictures.", dir_okay=False)
    ] = None,
    define: Define = None,
) -> None:
    """Plan a shuffle for a cluster: rows by hop, NIC loads, stages, predicted times.

    Needs no GPU and no cluster: all ranks are planned in this process.
    """
    from fuscoc.planning import command
    from fuscoc_runtime import Topology
    from fuscoc_runtime.errors import FuscoRuntimeError

    options = command.PlanOptions(
        topology=Topology(nodes, gpus_per_node),
        routing=routing,
        tokens=tokens,
        balance=balance.value if balance is not None else None,
        schedule=schedule.value,
        seed=seed,
        nic_bandwidth=nic * 1e9,
        nvlink_bandwidth=nvlink * 1e9,
        save=save,
        html=html,
    )
    try:
        command.run(what, shuffle, _defines(define), options)
    except (FuscoRuntimeError, command.RoutingError, command.MissingExtraError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


@app.command("test")
def property_test(
    spec: Spec,
    examples: Annotated[int, typer.Option(min=1, help="Generated cases of every property.")] = 200,
    seed: Annotated[int | None, typer.Option(help="Repeat a run.")] = None,
    replay: Annotated[
        Path | None,
        typer.Option(help="Check only the routing that a failure saved.", exists=True),
    ] = None,
    artifact: Annotated[
        Path | None, typer.Option(help="Test this artifact instead of compiling the spec.")
    ] = None,
    shuffle: Annotated[
        str | None, typer.Option(help="Which shuffle, if there are several.")
    ] = None,
    define: Define = None,
) -> None:
    """Property-test a spec: random clusters, sizes and routings, against the reference.

    A failure is shrunk, explained and saved, so that --replay checks it again.
    """
    try:
        from fuscoc.testing.runner import run_tests
    except ModuleNotFoundError as error:
        typer.echo(f"error: {error}; `pip install 'fuscoc[test]'` brings it", err=True)
        raise typer.Exit(1) from None

    report = run_tests(
        spec,
        examples=examples,
        seed=seed,
        replay=replay,
        artifact=artifact,
        shuffle=shuffle,
        defines=_defines(define),
    )
    raise typer.Exit(int(not report.passed))


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


def _defines(texts: list[str] | None) -> dict[str, int]:
    defines = {}
    for text in texts or ():
        name, _, value = text.partition("=")
        if not name.isidentifier() or not value.isdecimal():
            raise typer.BadParameter(
                f"`{text}` is not NAME=VALUE with a whole number", param_hint="-D"
            )
        defines[name] = int(value)
    return defines


def _show(source: SourceFile, diagnostics: tuple[Diagnostic, ...]) -> None:
    for diagnostic in diagnostics:
        typer.echo(render(diagnostic, source, colour=sys.stderr.isatty()), err=True)


def main() -> None:
    """Entry point: a spec's errors are shown and end in exit code 1."""
    logging.basicConfig(format="%(message)s")
    try:
        app()
    except CompileError as error:
        _show(error.source, error.diagnostics)
        sys.exit(1)
    except OSError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
