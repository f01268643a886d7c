"""Which arguments of a step's kernel are what, looked up once."""

from __future__ import annotations

from dataclasses import dataclass

from fuscoc_runtime.manifest.program import LaunchStep
from fuscoc_runtime.manifest.schema import KernelSpec

TERMS = ("term_slot", "term_row", "term_point")
"""Columns that entries point into, rather than columns of entries."""

OTHERS = ("signals", "signal_slot", "num_peers", "my_peer", "wait_base", "abort", "late")
"""Values that all steps share, but for the slot."""


@dataclass(frozen=True)
class Places:
    """Which arguments of a kernel are what: indices into its arguments.

    ``columns``, ``bound``: by name. ``expected``: with the signal slots that are waited for.
    ``others``: by value name.
    """

    count: int
    columns: tuple[tuple[str, int], ...]
    bound: tuple[tuple[str, int], ...]
    expected: tuple[tuple[int, int], ...]
    others: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, spec: KernelSpec, step: LaunchStep) -> Places:
        at = {arg.value: index for index, arg in enumerate(spec.args)}
        count = at.pop("num_descriptors")
        bound = tuple((name, at.pop(arg)) for arg, name in step.bind.items())
        expected = tuple((slot, at.pop(f"expected_{slot}")) for slot in step.wait)
        others = tuple((name, at.pop(name)) for name in OTHERS if name in at)
        columns = tuple(at.items())
        return cls(count, columns, bound, expected, others)
