"""``fuscoc lsp``."""

from __future__ import annotations

import click
from click.exceptions import Exit


@click.command()
@click.option(
    "--stdio",
    is_flag=True,
    default=True,
    help="The only way to talk, and what editors often ask for.",
)
def lsp(stdio: bool) -> None:
    """Serve an editor: the language server, over standard input and output.

    Errors and warnings while you type, with their fixes; types and sizes of what is under the
    cursor; go to definition; formatting. docs/editors.md has the settings of several editors.
    It needs `pip install 'fuscoc[lsp]'`.

    Exit code: 0 when the editor ends the session, 1 if what it needs is not installed.

    \b
    Examples, as the command of a language server in an editor's settings:
        fuscoc lsp
        fuscoc lsp --stdio
    """
    try:
        from fuscoc.lsp.server import make_server
    except ModuleNotFoundError as error:
        click.echo(f"error: {error}; `pip install 'fuscoc[lsp]'` brings it", err=True)
        raise Exit(1) from None

    make_server().start_io()
