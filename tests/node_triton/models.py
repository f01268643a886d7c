"""Models whose shuffles the tests compile and run on GPUs."""

from __future__ import annotations

from pathlib import Path

from benchmarks.moe_cases import Model, spec

MODELS = (
    Model(),
    Model(hidden=512, experts=8, topk=1),
    Model(hidden=16384, experts=64, topk=2),
    Model(hidden=20000, experts=60, topk=6, placement="expert_to_rank", align=16),
    Model(hidden=1001, experts=13, topk=3, placement="cyclic", align=1),
    Model(hidden=640, experts=512, topk=16, dtype="f32", align=8),
)


def compile_all(folder: Path) -> list[str]:
    """The artifacts of all models, in their order."""
    import fuscoc

    return [
        str(fuscoc.compile(spec(model, "triton"), folder / str(number)))
        for number, model in enumerate(MODELS)
    ]
