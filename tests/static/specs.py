"""Static shuffles, small enough to be executed."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from fuscoc import driver
from fuscoc.source import as_source
from fuscoc_runtime.manifest.artifact import Artifact, load_artifact

EXAMPLES = Path(__file__).parents[2] / "examples"

TRANSPOSE = """
shuffle transpose {
  const rows = 12, columns = 16
  index i : rows / ranks
  index j : columns
  segment one { x : f32 }
  layout by_row[i, j] of one
  layout by_column[c, r] of one dense(columns / ranks, rows)
  dispatch by_row[i, j] -> by_column[j % (columns / ranks), rank * (rows / ranks) + i]
    on j / (columns / ranks)
  combine reverse
}"""

BROADCAST = """
shuffle broadcast {
  const copies = 4
  index i : 3
  index c : copies
  segment row { x : f32[5] }
  layout mine[i] of row
  layout all[r, s] of row dense(ranks, 3)
  dispatch mine[i] -> all[rank, i] on c
  combine reverse reduce sum
}"""

PARTS = """
shuffle parts {
  index i : rows / ranks
  segment row { x : f32[2] }
  layout mine[i] of row
  layout theirs[i] of row
  dispatch mine[i] -> theirs[i] on (rank + 1) % (rows / 6)
}"""


# Odd ranks send nothing: their neighbours hand them rows to send.
LOPSIDED = """
shuffle lopsided {
  const rows = 6
  index i : rows
  segment row { x : f32[5] }
  layout mine[i] of row
  layout theirs[i] of row
  dispatch mine[i] -> theirs[i] on (rank + ranks / 2) % ranks * (1 - rank % 2) - rank % 2
    balance rebalance slice 40 B
  combine reverse
}"""


def compile(text: str, out: Path, *topologies: str, **defines: int) -> Path:
    """Compile a spec, or an example by its name, and plan it for the topologies."""
    source = EXAMPLES / text if text.endswith(".fsc") else text
    return driver.compile_source(as_source(source), out, defines, topologies=topologies)


@cache
def artifact(text: str, topologies: tuple[str, ...] = (), **defines: int) -> Artifact:
    """A compiled spec, or an example by its name; every one once."""
    directory = tempfile.mkdtemp(prefix="fuscoc-tests-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return load_artifact(compile(text, Path(directory) / "artifact", *topologies, **defines))


def ulysses(*topologies: str) -> Artifact:
    """16 tokens of 8 heads, in blocks of 2."""
    return artifact("ulysses.fsc", topologies, tokens=16, heads=8, width=4, block=2)


def redistribute(*topologies: str) -> Artifact:
    """32 rows."""
    return artifact("redistribute.fsc", topologies, rows=32, columns=6)
