"""Arguments that several commands take, and how they show diagnostics."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fuscoc.diagnostics import Diagnostic, render
from fuscoc.source import SourceFile

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


def parse_defines(texts: list[str] | None) -> dict[str, int]:
    """What ``-D`` says, by name."""
    defines = {}
    for text in texts or ():
        name, _, value = text.partition("=")
        if not name.isidentifier() or not value.isdecimal():
            raise typer.BadParameter(
                f"`{text}` is not NAME=VALUE with a whole number", param_hint="-D"
            )
        defines[name] = int(value)
    return defines


def show(source: SourceFile, diagnostics: tuple[Diagnostic, ...]) -> None:
    """Print diagnostics to stderr, coloured on a terminal."""
    for diagnostic in diagnostics:
        typer.echo(render(diagnostic, source, colour=sys.stderr.isatty()), err=True)
