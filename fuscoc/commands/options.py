"""Arguments that several commands take, and how they show diagnostics."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from fuscoc.diagnostics import Diagnostic, render
from fuscoc.source import SourceFile

if TYPE_CHECKING:
    from fuscoc.reports import FileReport


class Format(StrEnum):
    """``--format``: how diagnostics are written."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"


class Colour(StrEnum):
    """``--color``: whether text is coloured."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"

    def of(self, stream: IO[Any]) -> bool:
        """Whether to colour what is written to a stream: on a terminal, unless NO_COLOR is set."""
        if self is not Colour.AUTO:
            return self is Colour.ALWAYS
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        return stream.isatty() and not plain


Spec = Annotated[Path, typer.Argument(help="A .fsc file.", exists=True, dir_okay=False)]
SpecOrArtifact = Annotated[
    Path, typer.Argument(help="A .fsc file or an artifact directory.", exists=True)
]
ShuffleName = Annotated[
    str | None, typer.Option("--shuffle", help="Which shuffle, if there are several.")
]
Define = Annotated[
    list[str] | None,
    typer.Option("--define", "-D", metavar="NAME=VALUE", help="Override a const of the spec."),
]
DiagnosticFormat = Annotated[
    Format,
    typer.Option("--format", help="How errors and warnings are written; documents go to stdout."),
]
ColourWhen = Annotated[
    Colour, typer.Option("--color", help="Colour; auto is on a terminal unless NO_COLOR is set.")
]


def parse_defines(texts: list[str] | None, option: str = "-D") -> dict[str, int]:
    """What ``-D``, or another option like it, says by name."""
    defines = {}
    for text in texts or ():
        name, _, value = text.partition("=")
        if not name.isidentifier() or not value.isdecimal():
            raise typer.BadParameter(
                f"`{text}` is not NAME=VALUE with a whole number", param_hint=option
            )
        defines[name] = int(value)
    return defines


def parse_topologies(texts: list[str] | None) -> list[str]:
    """What ``--topology`` says, each in its normal form."""
    if not texts:
        return []
    from fuscoc_runtime.errors import TopologyError
    from fuscoc_runtime.topology import Topology

    try:
        return [str(Topology.parse(text)) for text in texts]
    except TopologyError as error:
        raise typer.BadParameter(error.problem, param_hint="--topology") from None


def os_problem(error: OSError) -> str:
    """What the operating system refused, in its words: ``my.fsc: no such file or directory``."""
    if error.filename is None or error.strerror is None:
        return str(error)
    return f"{os.fspath(error.filename)}: {error.strerror[:1].lower()}{error.strerror[1:]}"


def show(
    source: SourceFile, diagnostics: Iterable[Diagnostic], colour: Colour = Colour.AUTO
) -> None:
    """Print diagnostics to stderr, coloured on a terminal."""
    for diagnostic in diagnostics:
        typer.echo(render(diagnostic, source, colour=colour.of(sys.stderr)), err=True, color=True)


def write_report(format: Format, reports: Sequence[FileReport]) -> None:
    """Print the document of ``--format json`` or ``--format sarif`` to stdout."""
    from fuscoc.reports import WRITERS

    typer.echo(WRITERS[format.value](reports), nl=False)
