"""How tables of the commands look."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table


def titled_table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    """An empty table without lines, of columns that are aligned ``left`` and then ``right``."""
    table = Table(
        title=title, title_justify="left", title_style="bold", caption_justify="left", box=None,
        padding=(0, 2, 0, 0),
    )  # fmt: skip
    for name in left:
        table.add_column(name)
    for name in right:
        table.add_column(name, justify="right")
    return table
