"""What becomes of a module: the passes that are left, then kernels and a manifest, then a run."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from fuscoc.dialect import new_context
from fuscoc.dialect.attrs import attributes_remembered, unchanged, verify
from fuscoc.dialect.base import ILL_TYPED, PassError
from fuscoc.dialect.mlir import PassManager, ir
from fuscoc.pipeline import BUILD, PASSES, compile_to_ir
from tests.gate import observe
from tests.gate.examples import Example

BOUNDARIES = ((BUILD, "L0"), *((step.name, step.level) for step in PASSES))
"""After what modules are flipped, and the level that they are at then."""


@dataclass(frozen=True)
class Objection:
    """A verifier or a pass does not take the module.

    One that ``crashed`` says nothing about the module: such an objection does not count.
    """

    reason: str
    crashed: bool = False


Outcome = observe.Program | Objection


class Subject:
    """An example in one MLIR context, and what became of its flipped modules so far."""

    def __init__(self, example: Example) -> None:
        self.example = example
        self.context = new_context()
        self._outcomes: dict[tuple[int, str], Outcome] = {}
        self._interned: dict[str, str] = {}
        texts: dict[str, str] = {}
        compile_to_ir(example.checked, print_between=texts.__setitem__)
        with self.context, attributes_remembered():
            self.modules = [_parsed(text) for text in texts.values()]
        self.logs = observe.Logs(example)

    @cached_property
    def unflipped(self) -> observe.Program:
        """What becomes of the example itself."""
        with self.context:
            outcome = self.outcome(len(PASSES), self.modules[-1].operation.clone())
        assert isinstance(outcome, observe.Program)
        return outcome

    def outcome(self, at: int, module: Any) -> Outcome:
        """What becomes of a module that is at boundary ``at``; it is used up."""
        key = at, module.operation.get_asm(print_generic_op_form=True, assume_verified=True)
        if key not in self._outcomes:
            self._outcomes[key] = self._lowered(at, module)
        return self._outcomes[key]

    def _lowered(self, at: int, module: Any) -> Outcome:
        try:
            verify(module)
            if at == len(PASSES):
                _without_locations(module)
                return observe.program(self.example, module, self._interned)
            PASSES[at].run(module)
        except (PassError, ir.MLIRError) as error:
            return Objection(str(error), crashed=ILL_TYPED in str(error))
        except Exception as error:
            return Objection(f"{type(error).__name__}: {error}", crashed=True)
        return self.outcome(at + 1, module)

    def differ(self, one: observe.Program, other: observe.Program) -> bool:
        """Whether what is executed differs: kernels, or the log of a run."""
        if one.kernels.keys() != other.kernels.keys():
            return True
        if any(differ_bare(name, one.kernels[name], other.kernels[name]) for name in one.kernels):
            return True
        if one.warps != other.warps:
            return True
        return one.manifest != other.manifest and self.logs.differ(one, other)


def _parsed(text: str) -> Any:
    """A module that its verifiers take: half of the time of all that is compiled here is theirs."""
    with unchanged():
        return ir.Module.parse(text)


def _without_locations(module: Any) -> None:
    """They name variables of kernels; modules that were parsed have none."""
    strip = PassManager.parse("builtin.module(strip-debuginfo)", module.context)
    strip.enable_verifier(False)
    strip.run(module.operation)


def differ_bare(name: str, one: str, other: str) -> bool:
    """Whether kernels differ without comments and docstrings."""
    return one != other and _bare(name, one) != _bare(name, other)


@cache
def _bare(name: str, text: str) -> str:
    if not name.endswith(".py"):
        return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)
