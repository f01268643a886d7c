"""``fuscoc check``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from click.exceptions import Exit

from fuscoc.commands.options import (
    SPEC_FILE,
    Colour,
    Format,
    color_option,
    define_option,
    format_option,
    parse_defines,
    parse_topologies,
    show,
    write_report,
)
from fuscoc.diagnostics import CompileError
from fuscoc.reports import FileReport, fixable
from fuscoc.source import SourceFile, read_source


@click.command()
@click.argument("files", nargs=-1, required=True, type=SPEC_FILE, help=".fsc files.")
@define_option
@click.option(
    "--topology",
    multiple=True,
    metavar="NODESxRANKS",
    help="Check for this cluster too, e.g. 2x4; may be repeated.",
)
@click.option("--fix", is_flag=True, help="Apply the safe fixes to the files, then check again.")
@click.option("--diff", is_flag=True, help="Print what --fix would change; write nothing.")
@format_option
@color_option
def check(
    files: tuple[Path, ...],
    define: tuple[str, ...],
    topology: tuple[str, ...],
    fix: bool,
    diff: bool,
    format: Format,
    color: Colour,
) -> None:
    """Check specs and print every error and warning found in them.

    All errors of all files are reported, each with its place, its code (`fuscoc explain-error CODE`
    explains it) and, where it is known, what to write instead. Neither torch nor MLIR is loaded,
    unless --topology asks for the plan of a static shuffle.

    A fix is safe if nothing else can have been meant, such as a misspelt name that is like just one
    declared name. `--fix` repeats until no safe fix is left and writes each file whole, or not at
    all; a file without safe fixes is not touched. The errors and warnings printed with --fix and
    --diff are those that remain.

    Text goes to stderr and a line for each good file to stdout. With --format json or sarif,
    one document goes to stdout; docs/diagnostics.md describes it.

    Exit code: 0 if no file has an error, 1 if one has (or --diff has something to show), 2 if the
    command line is wrong.

    \b
    Examples:
        fuscoc check examples/*.fsc
        fuscoc check moe.fsc -D experts=96 --topology 2x8
        fuscoc check moe.fsc --fix
        fuscoc check *.fsc --format sarif > fuscoc.sarif
    """

    if diff and format is not Format.TEXT:
        raise click.BadParameter("--diff prints a diff in place of --format's document")
    defines, topologies = parse_defines(define), parse_topologies(topology)
    reports = []
    changed = False
    for path in files:
        source = read_source(path)
        if fix or diff:
            fixed = _fixed(source, defines, topologies, write=not diff)
            changed |= fixed != source
            source = fixed
        reports.append(_report(source, defines, topologies))
        if format is Format.TEXT:
            _show(reports[-1], color)
    if format is not Format.TEXT:
        write_report(format, reports)
    elif num_fixable := fixable(reports):
        fixes = "1 fix is" if num_fixable == 1 else f"{num_fixable} fixes are"
        click.echo(f"{fixes} safe: `fuscoc check --fix` applies what is", err=True)
    failed = any(not report.ok for report in reports)
    raise Exit(int(failed or (diff and changed)))


def _report(
    source: SourceFile, defines: Mapping[str, int], topologies: Sequence[str]
) -> FileReport:
    from fuscoc import driver

    try:
        checked = driver.check_source(source, defines, topologies)
    except CompileError as error:
        return FileReport(source, error.diagnostics)
    return FileReport(source, checked.warnings, tuple(each.name for each in checked.shuffles))


def _fixed(
    source: SourceFile, defines: Mapping[str, int], topologies: Sequence[str], *, write: bool
) -> SourceFile:
    """The source with all safe fixes; told to stderr and written, or shown as a diff on stdout."""
    from fuscoc.fixing import diff, fix_source, write_source

    fixed, applied = fix_source(source, lambda text: _report(text, defines, topologies).diagnostics)
    if not write:
        click.echo(diff(source, fixed), nl=False)
    elif applied:
        write_source(source, fixed)
        for each in applied:
            click.echo(f"fixed {each}", err=True)
    return fixed


def _show(report: FileReport, color: Colour) -> None:
    show(report.source, report.diagnostics, color)
    if report.ok:
        click.echo(f"{report.source.path}: ok ({', '.join(report.shuffles)})")
