"""Models for the tests of CUDA kernels: chosen ones, and sampled ones of every kind allowed."""

from __future__ import annotations

import random

from benchmarks.moe_cases import Model

MODELS = (
    Model(),
    Model(hidden=512, experts=8, topk=1),
    Model(hidden=2880, experts=32, topk=4),
    Model(hidden=16384, experts=64, topk=2),
    Model(hidden=1000, experts=60, topk=6, placement="expert_to_rank", align=16),
    Model(hidden=1001, experts=13, topk=3, placement="cyclic", align=1),
    Model(hidden=4096, experts=512, topk=16, placement="expert_to_rank"),
    Model(hidden=640, experts=128, topk=8, dtype="f32", align=8),
    Model(hidden=2880, experts=32, topk=4, dtype="f16"),
    Model(hidden=4, experts=13, topk=1, dtype="f32", placement="cyclic", align=1),
    Model(hidden=3, experts=8, topk=2, dtype="f32", align=1),
    Model(dtype="f8e4m3", extra=(("scales", "f32", 56), ("token", "i64", 1))),
    Model(hidden=1001, experts=13, topk=3, placement="cyclic", align=1, compact=True),
    Model(compact=True),
)


def sampled(seed: int, count: int) -> list[Model]:
    """Models of any hidden size, expert count, top-k and placement, the same for the same seed."""
    choose = random.Random(seed)
    models = []
    for _ in range(count):
        topk = choose.randint(1, 16)
        unit = choose.choice((1, 2, 4, 8, 64, 1024))  # elements that divide a row
        models.append(
            Model(
                hidden=choose.randint(-(-512 // unit), 16384 // unit) * unit,
                experts=choose.randint(max(8, topk), 512),
                topk=topk,
                dtype=choose.choice(("bf16", "f16", "f32")),
                placement=choose.choice(("block", "cyclic", "expert_to_rank")),
                align=choose.choice((1, 8, 16, 128)),
                compact=choose.random() < 0.3,
            )
        )
    return models
