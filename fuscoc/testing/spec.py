"""A spec as its manifest says it, lowered but without its files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fuscoc.declared import declared_json
from fuscoc.lang.check import check
from fuscoc.lang.checked import CheckedShuffle
from fuscoc.pipeline import compile_to_ir
from fuscoc.program import into_json, program_json
from fuscoc.source import as_source
from fuscoc_runtime.manifest import schema
from fuscoc_runtime.manifest.decode import decode
from fuscoc_runtime.plan.choose import check_rule


class UnknownShuffleError(ValueError):
    """A shuffle that the spec has not; the message lists those that it has."""


@dataclass(frozen=True, repr=False)
class Spec:
    """One shuffle of a ``.fsc`` text.

    ``shuffle`` is the manifest's description of it, without kernels for one node.
    """

    text: str
    shuffle: schema.ShuffleSpec

    def with_rules(self, **changes: Any) -> Spec:
        """The same shuffle with other rules of the network hop, e.g. ``forwarder="split"``; the
        text stays.

        Raises:
            OptionError: there is no such rule, or it has no such value; says which there are.
        """
        for name, value in changes.items():
            check_rule(name, value)
        program = self.shuffle.program.with_rules(**changes)
        return Spec(self.text, replace(self.shuffle, program=program))

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """How hypothesis shows it in a falsifying example."""
        printer.text(repr(self))

    def __repr__(self) -> str:
        return f"Spec({self.shuffle.name}):\n{self.text.strip()}\n"


def load_spec(source: str | Path, name: str | None = None, **defines: int) -> Spec:
    """Check a spec, given as a path or as its text; ``name`` chooses between several shuffles.

    ``defines`` overrides constants of the spec.

    Raises:
        CompileError: the spec has errors.
        UnknownShuffleError: it has no shuffle of that name, or several and no name is given.
    """
    found = {spec.shuffle.name: spec for spec in load_specs(source, **defines)}
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    if name not in found:
        question = "which of them?" if name is None else f"there is no `{name}`"
        raise UnknownShuffleError(f"the spec holds {', '.join(found)}: {question}")
    return found[name]


def load_specs(source: str | Path, **defines: int) -> list[Spec]:
    """Every shuffle of a spec; see ``load_spec``."""
    file = as_source(source)
    return [Spec(file.text, describe(each)) for each in check(file, defines)]


def describe(checked: CheckedShuffle) -> schema.ShuffleSpec:
    """What the manifest says of a shuffle: what it declares, and its program."""
    module = compile_to_ir(checked).module
    described = {
        "name": checked.name,
        "declared": declared_json(checked),
        "program": program_json(module, str),
        "into": into_json(checked.into, module, str),
        "shares_plan": checked.shares_plan,
    }
    reply = None if checked.reply is None else describe(checked.reply)
    return replace(decode(schema.ShuffleSpec, described), reply=reply)
