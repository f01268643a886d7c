"""The pictures that ``vit_patches.py`` draws, and its figure of where their patches go. Hardly two
patches look alike, so one in a wrong place is seen at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
"""A picture [height, width, 3], or patches [length, p, p, 3]."""

DIGITS = ("75557", "26227", "71747", "71717", "55711", "74717", "74757", "71122", "75757", "75717")
"""Of each the five rows, whose three bits are an octal digit: 7 is a whole row, 5 its two ends."""
COLUMNS, GAP = 16, 2
"""Patches in a line of a sequence that is shown, and pixels between them."""


@dataclass(frozen=True)
class Shown:
    """What a rank shows: its pictures, the sequence that it was sent, and its pictures again as
    they were brought back, unchanged and as the model predicts them."""

    pictures: Sequence[Bytes]
    sequence: Bytes
    unchanged: Sequence[Bytes]
    predicted: Sequence[Bytes]


def draw(rank: int, picture: int, height: int, width: int, random: np.random.Generator) -> Bytes:
    """Rings or stripes on a gradient, in a colour of the rank, and over them both numbers."""
    places = np.stack(np.mgrid[:height, :width], -1)  # [height, width, 2], in pixels
    hue = 0.382 * rank + random.uniform(-0.05, 0.05)
    colour = 0.5 + 0.5 * np.cos(2 * np.pi * (hue + np.array([0, 1, 2]) / 3))
    across = (places / (height, width) * random.permutation([0.3, 0.7])).sum(-1, keepdims=True)
    shade = (140 + 100 * colour) * (1 - across) + 90 * colour * across
    if random.random() < 0.5:
        distance = np.linalg.norm(places - random.uniform(0, (height, width)), axis=-1)
    else:
        distance = places @ random.uniform(-1, 1, 2)
    shade[distance // random.uniform(8, 14) % 2 == 0] += random.uniform(-40, 40, 3)
    ink = digits(f"{rank}{picture}", height, width)
    shade[ink] = 0.2 * shade[ink] + random.choice([0, 200])
    return shade.clip(0, 255).astype(np.uint8)


def digits(text: str, height: int, width: int) -> NDArray[np.bool_]:
    """Where ink is, [height, width], if the digits fill a picture."""
    rows = [[f"{int(DIGITS[int(each)][row], 8):03b}" for each in text] for row in range(5)]
    lines = ["0" + "0".join(row) + "0" for row in rows]
    bits = np.pad([[bit == "1" for bit in line] for line in lines], ((1, 1), (0, 0)))
    y = np.arange(height) * bits.shape[0] // height
    x = np.arange(width) * bits.shape[1] // width
    return bits[y][:, x]


def side_by_side(pictures: Sequence[Bytes]) -> Bytes:
    """One picture of them all, on white."""
    height = max(len(each) for each in pictures)
    return np.hstack([framed(each, height, each.shape[1] + 2 * GAP) for each in pictures])


def in_lines(patches: Bytes) -> Bytes:
    """One picture of a sequence: ``COLUMNS`` patches a line, in the order of their slots."""
    side = patches.shape[1] + GAP
    lines = [patches[first : first + COLUMNS] for first in range(0, len(patches), COLUMNS)]
    rows = [np.hstack([framed(each, side, side) for each in line]) for line in lines]
    return np.vstack([framed(row, side, COLUMNS * side) for row in rows])


def framed(picture: Bytes, height: int, width: int) -> Bytes:
    """The picture with white below and to its right."""
    below, right = height - picture.shape[0], width - picture.shape[1]
    return np.pad(picture, ((0, below), (0, right), (0, 0)), constant_values=255)


def plot(ranks: Sequence[Shown], path: Path) -> None:
    """A row for every rank; all pixels are of one size."""
    from matplotlib.figure import Figure

    titles = ("decoded", "packed", "brought back unchanged", "brought back as predicted")
    shown = [
        [
            side_by_side(each.pictures),
            in_lines(each.sequence),
            side_by_side(each.unchanged),
            side_by_side(each.predicted),
        ]
        for each in ranks
    ]
    heights = [max(len(each) for each in row) for row in shown]
    widths = [max(each.shape[1] for each in column) for column in zip(*shown, strict=True)]
    figure = Figure(figsize=(sum(widths) / 100 + 1, sum(heights) / 100 + 1), layout="constrained")
    panels = figure.subplots(
        len(ranks), len(titles), squeeze=False, width_ratios=widths, height_ratios=heights
    )
    for rank, row in enumerate(shown):
        for axes, title, picture, width in zip(panels[rank], titles, row, widths, strict=True):
            axes.imshow(framed(picture, heights[rank], width), interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            if rank == 0:
                axes.set_title(title)
        sequence = ranks[rank].sequence
        decoded = sum(each.size for each in ranks[rank].pictures) // sequence[0].size
        panels[rank, 0].set_ylabel(f"rank {rank}")
        panels[rank, 0].set_xlabel(f"{decoded} patches")
        panels[rank, 1].set_xlabel(f"{len(sequence)} patches")
    figure.savefig(path, dpi=100)
