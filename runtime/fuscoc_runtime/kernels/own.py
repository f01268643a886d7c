"""The device functions that are kernels by themselves, for any shuffle."""

from __future__ import annotations

OWN = {
    ("refuse", "refuse"): 1,
    ("hop", "acknowledge"): 1,
    ("hop", "tell"): 1,
    ("known", "again"): 1,
    ("known", "agree"): 1,
    ("known", "judge"): 1,
    ("known", "tell"): 1,
    ("answer", "follow"): 1,
    ("answer", "announce"): 1,
    ("answer", "adopt"): 1,
    ("flows", "number"): 8,
    ("flows", "share"): 1,
    ("flows", "pass_by"): 1,
    ("flows", "settle"): 4,
    ("ragged", "add_up"): 4,
    ("ragged", "spread"): 4,
    ("ragged", "drop"): 4,
    ("ragged", "leave_out"): 4,
}
"""Warps of a program, by module of ``kernels/device`` and name."""
