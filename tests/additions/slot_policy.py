"""A slot policy of one's own: every key has a block at least, so that no group of a GEMM is empty.

    python -m tests.additions.slot_policy

It takes the two files that ``docs/architecture.md`` names: the word of the language with its bound,
and the rule, which the planner and the Triton kernels take from there. Run by itself, because the
dialect reads the words when it is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuscoc.lang.padding import PADDINGS as WORDS
from fuscoc_runtime.padding import PADDINGS as RULES

ALIGN, KEYS, NUM_RANKS = 4, 10, 2
BATCHES = ((5, 0), (0, 0), (3, 12))


def occupied(points, align):  # type: ignore[no-untyped-def]
    """As few blocks as hold the points, but one at least."""
    return points // align + (points % align > 0) + (points == 0)


WORDS["occupied"] = lambda align: align
RULES["occupied"] = occupied


def offsets(keys: Any, rank: int) -> list[int]:
    """Where the slots of the rank's keys begin, and end: keys in blocks, by counting."""
    found = [0]
    for key in range(KEYS):
        if key * NUM_RANKS // KEYS == rank:
            blocks = max(1, len(range(0, int((keys == key).sum()), ALIGN)))
            found.append(found[-1] + blocks * ALIGN)
    return found


def in_kernels(group: Any, artifact: str) -> list[list[int]]:
    """The offsets of all batches on one rank, by the Triton kernels of one node; rows and sums are
    compared with the reference."""
    from fuscoc_runtime.engine.node.engine import NodeEngine
    from fuscoc_runtime.manifest.program import PackedSlots
    from fuscoc_runtime.padding import most_slots
    from tests.node_triton.rank_work import MAX_SOURCES, batch, epochs, open_shuffle

    epochs(group, artifact, BATCHES, 1)
    shuffle = open_shuffle(group, artifact)
    target, engine = shuffle.spec.program.target, shuffle._executor.engine
    assert isinstance(target, PackedSlots)
    assert isinstance(engine, NodeEngine)
    points = MAX_SOURCES * NUM_RANKS * shuffle.spec.program.fanout
    keys = -(-KEYS // NUM_RANKS)
    assert engine.node.limits.capacity == most_slots(target, points, keys)
    found = []
    for number, sizes in enumerate(BATCHES):
        data = batch(shuffle.spec, sizes, 1 + number)[shuffle.rank]
        _, handle = shuffle.dispatch(**data.source, **data.inputs, **data.extents)
        found.append(handle.key_offsets.tolist())
    return found


def main() -> None:
    # They read the words of the language when they are imported.
    from fuscoc_runtime.demo.generate import generate
    from tests.engine import specs
    from tests.engine.lockstep import lockstep, round_trip
    from tests.engine.pool import IMPORTED, Pool
    from tests.node_triton.rank_work import batch

    # Before the kernels, which take the rules that there are.
    IMPORTED.insert(0, "tests.additions.slot_policy")
    aligned = specs.routed("f32", keys=KEYS, align=ALIGN)
    text = aligned.replace(f"align {ALIGN}", f"align occupied({ALIGN})")

    def check(found: Sequence[Sequence[int]], ranks: Sequence[Any]) -> None:
        import torch

        keys = torch.cat([data.inputs["idx"].flatten() for data in ranks])
        assert list(map(list, found)) == [offsets(keys, rank) for rank in range(NUM_RANKS)]

    shuffle = lockstep(text, f"{NUM_RANKS}x1")
    assert shuffle.spec.cuda is None
    ranks = generate(shuffle.spec, shuffle.topology, 9, 0)
    check([each.handle.key_offsets.tolist() for each in round_trip(shuffle, ranks)], ranks)
    pool = Pool(NUM_RANKS)
    found = pool.run(in_kernels, NUM_RANKS, str(specs.artifact(text).path))
    pool.close()
    for number, sizes in enumerate(BATCHES):
        check([each[number] for each in found], batch(shuffle.spec, sizes, 1 + number))
    print(f"{sum(each[-1][-1] for each in found)} slots of keys that all have some")


if __name__ == "__main__":
    main()
