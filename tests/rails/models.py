"""Models whose shuffles the tests compile and run between GPUs."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.moe_cases import Model, spec

MODELS = (
    Model(),
    Model(hidden=512, experts=8, topk=1),
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


if __name__ == "__main__":
    print("\n".join(compile_all(Path(sys.argv[1]))))
