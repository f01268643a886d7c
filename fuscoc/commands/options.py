"""Arguments that several commands take, and how they show diagnostics."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from importlib import import_module
from math import isnan
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

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


MAX_DIGITS = 100
"""Of a number on the command line; Python refuses to read very long ones."""
E = TypeVar("E", bound=StrEnum)


class OneOf(click.Choice[E]):
    """A member of a StrEnum, written as its value; click itself would have its name."""

    def normalize_choice(self, choice: object, ctx: click.Context | None) -> str:
        return str(choice)


class Number(click.FloatRange):
    """A number of a range; click lets NaN into any."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = super().convert(value, param, ctx)
        if isnan(number):
            self.fail(f"{value} is no number.", param, ctx)
        return number


SPEC_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
OUTPUT_FILE = click.Path(dir_okay=False, path_type=Path)
SEED = click.IntRange(0, 2**32 - 1)

spec_argument = click.argument("spec", type=SPEC_FILE, help="A .fsc file.")
spec_or_artifact_argument = click.argument(
    "what",
    type=click.Path(exists=True, path_type=Path),
    help="A .fsc file or an artifact directory.",
)
shuffle_option = click.option("--shuffle", help="Which shuffle, if there are several.")
define_option = click.option(
    "--define", "-D", multiple=True, metavar="NAME=VALUE", help="Override a const of the spec."
)
tokens_option = click.option(
    "--tokens",
    type=click.IntRange(min=0),
    help="Extent of a rank's outermost index [4096; dense target: 32].",
)
format_option = click.option(
    "--format",
    type=OneOf(Format),
    default=Format.TEXT.value,
    help="How errors and warnings are written; documents go to stdout.",
)
color_option = click.option(
    "--color",
    type=OneOf(Colour),
    default=Colour.AUTO.value,
    help="Colour; auto is on a terminal unless NO_COLOR is set.",
)


def load_numpy() -> None:
    """To be called where torch is about to be loaded.

    Torch's own C++ loads numpy otherwise, and drops the exception that Ctrl-C or SIGTERM raise in
    it: the command would go on.
    """
    import_module("numpy")


def parse_defines(texts: Iterable[str], option: str = "-D") -> dict[str, int]:
    """What ``-D``, or another option like it, says by name."""
    defines = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name.isidentifier() or not (value.isascii() and value.isdecimal()):
            raise click.BadParameter(
                f"`{text}` is not NAME=VALUE with a whole number", param_hint=option
            )
        if len(value) > MAX_DIGITS:
            raise click.BadParameter(
                f"`{name}` is given a number of {len(value)} digits", param_hint=option
            )
        defines[name] = int(value)
    return defines


def defines_for(what: Path, texts: Sequence[str]) -> dict[str, int]:
    """``parse_defines`` for a spec; an artifact's constants are what they are."""
    if texts and what.is_dir():
        raise click.BadParameter("needs a .fsc file, not an artifact", param_hint="-D")
    return parse_defines(texts)


def parse_topologies(texts: Sequence[str]) -> list[str]:
    """What ``--topology`` says, each in its normal form."""
    if not texts:
        return []
    from fuscoc_runtime.errors import TopologyError
    from fuscoc_runtime.topology import Topology

    try:
        return [str(Topology.parse(text)) for text in texts]
    except TopologyError as error:
        raise click.BadParameter(error.problem, param_hint="--topology") from None


def os_problem(error: OSError) -> str:
    """What the operating system refused, in its words: ``my.fsc: no such file or directory``."""
    if error.strerror is None:
        return str(error)
    reason = f"{error.strerror[:1].lower()}{error.strerror[1:]}"
    return reason if error.filename is None else f"{os.fspath(error.filename)}: {reason}"


def show(
    source: SourceFile, diagnostics: Iterable[Diagnostic], colour: Colour = Colour.AUTO
) -> None:
    """Print diagnostics to stderr, coloured on a terminal."""
    for diagnostic in diagnostics:
        click.echo(render(diagnostic, source, colour=colour.of(sys.stderr)), err=True, color=True)


def write_report(format: Format, reports: Sequence[FileReport]) -> None:
    """Print the document of ``--format json`` or ``--format sarif`` to stdout."""
    from fuscoc.reports import WRITERS

    click.echo(WRITERS[format.value](reports), nl=False)
