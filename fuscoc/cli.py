"""The ``fuscoc`` command. Heavy imports stay inside the commands that need them."""

from __future__ import annotations

import atexit
import gc
import io
import logging
import signal
import sys
from importlib import import_module

import click
from click.exceptions import Exit

import fuscoc
from fuscoc.commands.options import os_problem, show
from fuscoc.diagnostics import CompileError

COMMANDS = {  # by name: the file, and what is in it
    "check": ("checking", "check"),
    "compile": ("compiling", "compile_"),
    "doctor": ("diagnosing", "doctor"),
    "explain": ("explaining", "explain"),
    "explain-error": ("explaining", "explain_error"),
    "fmt": ("formatting", "fmt"),
    "lsp": ("serving", "lsp"),
    "run": ("running", "run"),
    "plan": ("planning", "plan"),
    "simulate": ("simulating", "simulate"),
    "test": ("testing", "property_test"),
}
ALLOCATION = "can't allocate memory"  # PyTorch raises RuntimeError for it


def load_command(name: str) -> click.Command:
    """A command of ``COMMANDS``. Its file is imported here, and not before."""
    file, function = COMMANDS[name]
    command = getattr(import_module(f"fuscoc.commands.{file}"), function)
    assert isinstance(command, click.Command)
    return command


class Commands(click.Group):
    """All commands; only the one that is asked for is loaded, or all, for ``--help``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return load_command(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:  # suggests none, as it knows none
            raise click.NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """With whole sentences; click would cut long ones short."""
        helps = {name: load_command(name).help or "" for name in COMMANDS}
        with formatter.section("Commands"):
            formatter.write_dl([(name, text.partition("\n")[0]) for name, text in helps.items()])

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # as shells count; click says 1
            raise Exit(128 + signal.SIGINT) from None


def _print_version(ctx: click.Context, option: click.Parameter, requested: bool) -> None:
    if requested:
        click.echo(f"fuscoc {fuscoc.__version__}")  # loads the runtime, which states it
        raise Exit


@click.group(
    cls=Commands,
    no_args_is_help=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version.",
)
def app() -> None:
    """A compiler for data shuffles: layouts and routing in, fused kernels and plans out."""


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
        click.echo(f"error: {os_problem(error)}", err=True)
        sys.exit(1)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and ALLOCATION not in str(error):
            raise
        click.echo("error: this machine has not enough memory for that", err=True)
        sys.exit(1)
