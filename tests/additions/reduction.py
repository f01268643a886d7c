"""A reduction of one's own: the smallest of a segment's rows, element by element.

    python -m tests.additions.reduction

It takes the four places that ``docs/architecture.md`` names: the word of the language, how a
kernel makes two rows one, and both in the runtime: the word, and the reference. Run by itself,
because the dialect reads the words when it is imported.
"""

from __future__ import annotations

import torch

from fuscoc.lang.dtypes import INTEGERS, SUMMABLE
from fuscoc.lang.reductions import REDUCTIONS, Reduction
from fuscoc_runtime import reference
from fuscoc_runtime.manifest import declared

REDUCTIONS["min"] = Reduction(
    "a minimum", "takes the smallest of each segment's rows", SUMMABLE | INTEGERS
)


def main() -> None:
    # They read the words of the language when they are imported.
    from fuscoc.codegen.triton_expressions import MERGES
    from fuscoc_runtime.demo.generate import generate
    from tests.engine import specs
    from tests.engine.lockstep import lockstep, round_trip

    MERGES["min"] = "tl.minimum({}, {}, propagate_nan=tl.PropagateNan.ALL)"
    reference.MERGES["min"] = torch.minimum
    declared.WAYS_BACK.append("min")
    text = specs.MAXIMA.replace("reduce max", "reduce min")
    shuffle = lockstep(text, "2x3")
    ranks = generate(shuffle.spec, shuffle.topology, 9, 0)
    dispatched = round_trip(shuffle, ranks)
    print(f"{sum(each.handle.num_slots for each in dispatched)} slots were reduced")


if __name__ == "__main__":
    main()
