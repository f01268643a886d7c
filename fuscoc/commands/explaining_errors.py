"""``fuscoc explain-error``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fuscoc.commands.options import Colour, ColourWhen


def explain_error(
    code: Annotated[
        str | None, typer.Argument(metavar="CODE", help="Such as FSC012 or FSR010; 12 is FSC012.")
    ] = None,
    color: ColourWhen = Colour.AUTO,
) -> None:
    """Explain an error or a warning: what it means, a spec that has it, and a spec without.

    FSC codes are about specs and come from `fuscoc check` and `fuscoc compile`; FSR codes are
    raised while a shuffle runs. Without a code, all codes are listed with their titles. Codes are
    stable: one is never given a second meaning.

    Exit code: 0, or 2 if there is no such code.

    Examples:

        fuscoc explain-error FSC034

        fuscoc explain-error | grep layout
    """
    from fuscoc import errors

    if code is None:
        for each, title in errors.titles().items():
            typer.echo(f"{each}  {title}")
        return
    try:
        page = errors.page(errors.normal(code))
    except errors.UnknownCodeError as error:
        raise typer.BadParameter(str(error), param_hint="CODE") from None
    if not color.of(sys.stdout):
        typer.echo(page, nl=False)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console(force_terminal=True).print(Markdown(page, code_theme="ansi_dark"))
