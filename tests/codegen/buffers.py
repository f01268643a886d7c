"""Rows in which every write shows, on one rank or on all of a node; lists drawn over them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.codegen.memory import Int64s, addresses, filled, int64s, zeros

NUM_ROWS = 9
FILLING = 0xA5


def named(fields: Any, side: str) -> dict[str, Any]:
    return {f"{field}_{side}": buffer for field, buffer in fields.items()}


def fresh(seg_bytes: dict[str, int]) -> dict[str, Any]:
    """Rows in which every write shows."""
    return {f: filled(np.full((NUM_ROWS, n), FILLING, np.uint8)) for f, n in seg_bytes.items()}


def draw_distinct(data: st.DataObject, choices: list[Any], most: int = 6) -> list[Any]:
    return data.draw(st.lists(st.sampled_from(choices), unique=True, max_size=most))


def draw_each(data: st.DataObject, num: int, below: int) -> Int64s:
    return int64s(data.draw(st.lists(st.integers(0, below - 1), min_size=num, max_size=num)))


class Node:
    """The windows of a node's ranks: rows by field, and signal words."""

    def __init__(self, num_peers: int, seg_bytes: dict[str, int]) -> None:
        self.num_peers = num_peers
        self.rows = [fresh(seg_bytes) for _ in range(num_peers)]
        self.words = [zeros((5, num_peers), np.int32) for _ in range(num_peers)]

    def bases(self) -> dict[str, Int64s]:
        return {f: addresses([peer[f] for peer in self.rows]) for f in self.rows[0]}

    def signal_arguments(self, slot: int, me: int) -> dict[str, Any]:
        return {
            "signals": addresses(self.words),
            "signal_slot": slot,
            "num_peers": self.num_peers,
            "my_peer": me,
        }

    def check(
        self,
        rows: dict[str, Any],
        peers: Int64s,
        slots: Int64s,
        signal: tuple[int, int, int],
    ) -> None:
        """Rows lie where the list sent them, nothing else changed, and every peer was signalled."""
        for peer in range(self.num_peers):
            for field, moved in rows.items():
                wanted = np.full_like(self.rows[peer][field], FILLING)
                wanted[slots[peers == peer]] = moved[peers == peer]
                np.testing.assert_array_equal(self.rows[peer][field], wanted)
            slot, me, count = signal
            words = np.zeros_like(self.words[peer])
            words[slot, me] = count
            np.testing.assert_array_equal(self.words[peer], words)
