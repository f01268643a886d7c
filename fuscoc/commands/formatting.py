"""``fuscoc fmt``."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import click
from click.exceptions import Exit

from fuscoc.commands.options import Colour, color_option, os_problem, show
from fuscoc.diagnostics import CompileError
from fuscoc.source import SourceFile, read_source

STDIN = Path("-")


@click.command()
@click.argument(
    "files",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
    help=".fsc files; - is standard input.",
)
@click.option("--check", is_flag=True, help="Write nothing; tell which files would change.")
@click.option("--diff", is_flag=True, help="Write nothing; print what would change.")
@color_option
def fmt(files: tuple[Path, ...], check: bool, diff: bool, color: Colour) -> None:
    """Write specs in their one form: indented, aligned in columns, at most 100 wide.

    Only space changes, and the comma behind the last field of a segment: where there is one, each
    field gets a line of its own. Comments stay beside their words. Comments that share a column go
    on sharing one. A file is written whole, or not at all. One with syntax errors is left as it is,
    and the errors are shown. What is given on standard input is written to standard output.

    Exit code: 0 if all is well, 1 if a file has syntax errors, or would change with --check or
    --diff, 2 if the command line is wrong.

    \b
    Examples:
        fuscoc fmt my.fsc
        fuscoc fmt --check examples/*.fsc
        fuscoc fmt --diff my.fsc
        fuscoc fmt - < my.fsc
    """
    failed = False
    for path in files:
        try:
            failed |= _format(path, dry=check or diff, print_diff=diff)
        except CompileError as error:
            show(error.source, error.diagnostics, color)
            failed = True
        except OSError as error:
            click.echo(f"error: {os_problem(error)}", err=True)
            failed = True
    raise Exit(int(failed))


def _format(path: Path, *, dry: bool, print_diff: bool) -> bool:
    """Format one file; true if it would change and stays as it is."""
    from fuscoc import fixing
    from fuscoc.lang.format import format_text

    source = _read_stdin() if path == STDIN else read_source(path)
    after = SourceFile(source.path, format_text(source))
    if print_diff:
        click.echo(fixing.diff(source, after), nl=False)
    if dry:
        if after != source:
            click.echo(f"{source.path} would change", err=True)
        return after != source
    if path == STDIN:
        sys.stdout.write(after.text)
    elif after != source:
        fixing.write_source(source, after)
        click.echo(f"formatted {source.path}", err=True)
    return False


def _read_stdin() -> SourceFile:
    if sys.stdin is None:
        raise OSError(errno.EBADF, "it is closed", "<stdin>")
    try:
        return SourceFile("<stdin>", sys.stdin.buffer.read().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        click.echo(f"error: <stdin> is not UTF-8: {error}", err=True)
        raise Exit(1) from None
