"""Texts that the grammar allows, drawn from its own rules: every construct, also tomorrow's.

They mean nothing, and are written as badly as can be: any space and any comment between any words.
"""

from __future__ import annotations

import random
from functools import cache

from lark.grammar import Rule, Terminal

from fuscoc.lang.parser import _parser

NAMES = ("t", "e", "by_token", "tokens", "a_rather_long_name_of_a_layout", "max", "on", "block")
NUMBERS = ("0", "8", "7168", "65_536")
SPACES = (" ", " ", " ", "", "  ", "\t", "\n", "\n", "\r\n", "\n\n", "\n  \n\n", "    \n    ")
COMMENTS = ("// one\n", " // two \n", "\n// three\n", "\n\n//four // five\n\n", "//\r\n")
MAX_DEPTH = 12


def grammar_text(seed: int, comments: float = 0.05) -> str:
    """A random text of a few shuffles; ``comments`` is how often one stands between two words."""
    rng = random.Random(seed)
    words = [word for _ in range(rng.choice((1, 1, 2))) for word in _drawn("shuffle", rng, 0)]
    return spaced(words, rng, comments)


def spaced(words: list[str], rng: random.Random, comments: float) -> str:
    """The words with random space between them, at least where two would become one."""
    text = ""
    for word in words:
        space = rng.choice(SPACES)
        if rng.random() < comments:
            space = rng.choice(COMMENTS)
        if not space and text[-1:].isidentifier() | text[-1:].isdigit() and word[0].isalnum():
            space = " "
        if text.endswith("/"):  # else a comment would start with it
            space = f" {space}"
        text += space + word
    return text + rng.choice(("", "\n", "\n\n// the end", " // the end\n"))


def _drawn(name: str, rng: random.Random, depth: int) -> list[str]:
    """The words of one reduction of a rule; deep down only the shortest alternatives."""
    rules = _rules()[name]
    if depth > MAX_DEPTH:
        least = min(_depth(rule) for rule in rules)
        rules = [rule for rule in rules if _depth(rule) == least]
    weights = [3 if rule.origin in rule.expansion else 1 for rule in rules]  # long lists
    words = []
    for symbol in rng.choices(rules, weights)[0].expansion:
        if isinstance(symbol, Terminal):
            words.append(_word(symbol.name, rng))
        else:
            words += _drawn(symbol.name, rng, depth + (symbol != rules[0].origin))
    return words


def _word(terminal: str, rng: random.Random) -> str:
    if terminal == "NAME":
        return rng.choice(NAMES)
    if terminal == "INT":
        return rng.choice(NUMBERS)
    if terminal == "DECIMAL":
        return f"{rng.choice(NUMBERS)}.{rng.choice(NUMBERS)}"
    pattern: str = _parser().get_terminal(terminal).pattern.value
    return pattern.removesuffix(r"\b")


@cache
def _rules() -> dict[str, list[Rule]]:
    rules: dict[str, list[Rule]] = {}
    for rule in _parser().rules:
        rules.setdefault(str(rule.origin.name), []).append(rule)
    return rules


@cache
def _depths() -> dict[str, int]:
    """How deeply each rule nests at least."""
    depths: dict[str, int] = {}
    while len(depths) < len(_rules()):
        for name, rules in _rules().items():
            inner = [
                max((depths.get(s.name, 999) for s in rule.expansion if not s.is_term), default=0)
                for rule in rules
            ]
            if min(inner) < 999:
                depths.setdefault(name, 1 + min(inner))
    return depths


def _depth(rule: Rule) -> int:
    return max((_depths()[s.name] for s in rule.expansion if not s.is_term), default=0)
