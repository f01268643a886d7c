"""Every pass on the examples: the IR before it and after it, side by side in one golden file.

The text before is what the passes before it leave; the pass then runs on that *text*, so that no
state can hide between passes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fuscoc.dialect.mlir import ir
from fuscoc.pipeline import PASSES, compile_to_ir
from tests import specs
from tests.dialect.support import check_golden, fresh_context, round_trips

GOLDEN = Path(__file__).parent / "golden"
SPECS = {
    "moe": specs.moe(),
    "moe_fp8": specs.moe_fp8(),
    "moe_fp8_rebalanced": specs.moe_fp8(policy=specs.rebalanced()),
    "redistribute": specs.redistribute(),
    "vit_patches": specs.vit_patches(),
}
# Kernels have goldens of their own.
STEPS = [i for i, step in enumerate(PASSES) if step.level != "L3"]


def text_before(checked_name: str, index: int) -> str:
    name = PASSES[index - 1].name if index else "build"
    return compile_to_ir(SPECS[checked_name], after=name).text


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("index", STEPS, ids=[PASSES[i].name for i in STEPS])
def test_pass(spec: str, index: int) -> None:
    before = text_before(spec, index)
    with fresh_context():
        module = ir.Module.parse(before)
        PASSES[index].run(module)
        module.operation.verify()
        after = str(module)
    assert round_trips(before)
    assert round_trips(after)
    check_golden(
        GOLDEN / PASSES[index].name / f"{spec}.mlir", f"// before\n{before}\n// after\n{after}"
    )
