"""Whether one name is another with a slip of the pen, or only resembles it.

Similar names are common in one shuffle: ``m`` and ``n``, ``num_q`` and ``num_k``, ``rows`` and
``cols``, ``width_1`` and ``width_2``, ``page`` and ``pages``. None of these is a slip.
"""

from __future__ import annotations

from itertools import takewhile

# In shorter words one letter more or less, or another one, makes too many other words.
MIN_LETTERS, MIN_LETTERS_REPLACED = 5, 6


def is_slip(name: str, other: str) -> bool:
    """Whether names differ in case or underscores only, or words of one are slips of the other's.

    One with an ``s`` at the end is the plural, and no slip.
    """
    if name == other or is_plural(name, other):
        return False
    if _letters(name) == _letters(other):
        return len(name) >= MIN_LETTERS
    words, others = name.split("_"), other.split("_")
    return len(words) == len(others) and all(map(_same_or_slip, words, others))


def is_plural(name: str, other: str) -> bool:
    """Whether one of two names is the other with an ``s``."""
    return name == f"{other}s" or other == f"{name}s"


def _letters(name: str) -> str:
    return name.replace("_", "").casefold()


def _same_or_slip(word: str, other: str) -> bool:
    """One letter too many or too few, two exchanged, or one inside that is another.

    Digits count things, and a first letter (also a last one, if replaced) tells things apart.
    """
    start = _num_common(word, other)
    end = _num_common(word[start:][::-1], other[start:][::-1])
    rests = word[start : len(word) - end], other[start : len(other) - end]
    letters = max(len(word), len(other))
    if word == other:
        return True
    if letters < MIN_LETTERS or any(letter.isdigit() for rest in rests for letter in rest):
        return False
    match sorted(map(len, rests)):
        case [0, 1]:
            return start > 0
        case [1, 1]:
            return start > 0 and end > 0 and letters >= MIN_LETTERS_REPLACED
        case [2, 2]:
            return rests[0] == rests[1][::-1]
    return False


def _num_common(word: str, other: str) -> int:
    """How many letters two words begin with alike."""
    return sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(word, other, strict=False))
    )
