"""How many slots a key of a packed layout takes: the words of ``align``.

A key takes whole blocks of slots. ``align 128`` says how many slots a block has, and leaves the
number of blocks to the first rule here: as few as hold the key's points. ``align rule(128)`` names
another one. What a rule takes is in ``fuscoc_runtime/padding.py``; here is what the compiler has to
know of it.
"""

from __future__ import annotations

from collections.abc import Callable

from fuscoc.lang import ast
from fuscoc.lang.fold import fold_constant
from fuscoc.lang.scope import Scope

PADDINGS: dict[str, Callable[[int], int]] = {"fewest": lambda align: align - 1}
"""Word -> slots of a block -> the most slots that a key takes beyond those of its points."""

DEFAULT_PADDING = next(iter(PADDINGS))
MAX_ALIGN = 2**20


def check_align(clause: ast.Align, scope: Scope) -> tuple[str, int | None]:
    """The rule of an ``align`` and the slots of a block; None if that is no constant."""
    match clause.value:
        case ast.Call(function=ast.Ident(name=rule), args=(size,)) if rule in PADDINGS:
            pass
        case size:
            rule = DEFAULT_PADDING
    return rule, fold_constant(size, scope, "an alignment", MAX_ALIGN)
