"""How many examples are tried of properties of which each example takes long."""

from __future__ import annotations

from hypothesis import settings

OF_ALL = 2, 5
"""By day."""


def at_night(number: int) -> int:
    """So many; by day a part of them, the same every day."""
    part, whole = (1, 1) if settings.get_current_profile_name() == "night" else OF_ALL
    return number * part // whole
