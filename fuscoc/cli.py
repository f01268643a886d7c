"""The ``fuscoc`` command. Heavy imports stay inside the commands that need them."""

from __future__ import annotations

import atexit
import gc
import io
import logging
import signal
import sys
from typing import Annotated

import typer

import fuscoc
from fuscoc.commands import (
    checking,
    compiling,
    diagnosing,
    explaining,
    formatting,
    planning,
    running,
    serving,
    simulating,
    testing,
)
from fuscoc.commands.options import os_problem, show
from fuscoc.diagnostics import CompileError

app = typer.Typer(
    name="fuscoc",
    help="A compiler for data shuffles: layouts and routing in, fused kernels and plans out.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("check")(checking.check)
app.command("compile")(compiling.compile_)
app.command("doctor")(diagnosing.doctor)
app.command("explain")(explaining.explain)
app.command("explain-error")(explaining.explain_error)
app.command("fmt")(formatting.fmt)
app.command("lsp")(serving.lsp)
app.command("run")(running.run)
app.command("plan")(planning.plan)
app.command("simulate")(simulating.simulate)
app.command("test")(testing.property_test)

ALLOCATION = "can't allocate memory"  # PyTorch raises RuntimeError for it


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


def _look_for_no_more_garbage() -> None:
    """At the end Python would look three times through all that there is, a tenth of a compile,
    though it goes with the process. Triton's bindings report as leaks what it does not find."""
    if "triton" not in sys.modules:
        gc.freeze()


def main() -> None:
    """Entry point: a spec's errors are shown and end in exit code 1.

    SIGTERM ends it as Ctrl-C does: whatever is half-written is removed.
    """
    # Modules are tens of thousands of objects and no garbage: look through all of them rarely.
    gc.set_threshold(gc.get_threshold()[0], 200)
    atexit.register(_look_for_no_more_garbage)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if isinstance(sys.stdout, io.TextIOWrapper):  # specs are UTF-8, whatever the locale
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    logging.basicConfig(format="%(message)s")
    try:
        app()
    except CompileError as error:
        show(error.source, error.diagnostics)
        sys.exit(1)
    except OSError as error:
        typer.echo(f"error: {os_problem(error)}", err=True)
        sys.exit(1)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and ALLOCATION not in str(error):
            raise
        typer.echo("error: this machine has not enough memory for that", err=True)
        sys.exit(1)
