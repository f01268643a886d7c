"""The parser's tables, kept in ``tables.json``: lark takes as long to make them as Python takes to
import this compiler.

They are those of one grammar and one version of lark. Another grammar, or another lark, makes its
own; ``python -m fuscoc.lang.tables`` writes them anew.
"""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import lark
from lark import Lark
from lark.grammar import Rule
from lark.lexer import TerminalDef

# Every command reads them, and importlib.resources takes longer to import than they to read.
GRAMMAR = Path(__file__).with_name("grammar.lark")
TABLES = Path(__file__).with_name("tables.json")


def load_parser(**options: Any) -> Lark:
    """A parser of the language with further ``options``; it keeps every token."""
    grammar = GRAMMAR.read_text(encoding="utf-8")
    kept = json.loads(TABLES.read_text(encoding="utf-8"), object_pairs_hook=_numbered)
    if kept["made_of"] != made_of(grammar):
        return _make(grammar, **options)
    return Lark._load_from_dict(kept["data"], kept["memo"], **options)


def _make(grammar: str, **options: Any) -> Lark:
    return Lark(
        grammar,
        parser="lalr",
        g_regex_flags=re.ASCII,  # so that a word ends before any other letter
        keep_all_tokens=True,
        maybe_placeholders=False,
        **options,
    )


def made_of(grammar: str) -> str:
    """What tables follow from, though not the order of what stands in them."""
    return f"lark {lark.__version__}, grammar {sha256(grammar.encode()).hexdigest()[:16]}"


def _numbered(pairs: list[tuple[str, Any]]) -> dict[int | str, Any]:
    """JSON has no keys that are numbers, and the tables have."""
    return {int(key) if key.isdigit() else key: value for key, value in pairs}


def _write_tables() -> None:
    grammar = GRAMMAR.read_text(encoding="utf-8")
    data, memo = _make(grammar).memo_serialize([TerminalDef, Rule])
    kept = {"made_of": made_of(grammar), "data": data, "memo": memo}
    text = json.dumps(kept, separators=(",", ":")) + "\n"
    TABLES.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _write_tables()
