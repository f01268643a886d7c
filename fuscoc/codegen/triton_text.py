"""How single operations of a relation are spelled in Triton."""

from __future__ import annotations

from fuscoc.codegen.cuda_relation import SYMBOLS, CudaText

LONG = 36
"""Characters of an expression beyond which it is a variable."""


class TritonText(CudaText):
    """Triton expressions of i64, or of conditions; what has a name is a variable."""

    def declared(self, name: str, value: str) -> str:
        return f"{name} = {value}"

    def constant(self, value: int) -> str:
        return str(value)

    def arithmetic(self, op: str, lhs: str, rhs: str) -> str:
        if op == "floordivsi":
            return self.made(f"vectors.floor_div({lhs}, {rhs})")
        symbol = {"divsi": "//", "andi": "&", "ori": "|"}.get(op) or SYMBOLS[op]
        return self.made(f"{lhs} {symbol} {rhs}", binds=False)

    def bound(self, predicate: str, lhs: str, rhs: str) -> str:
        return self.select(self.compare(predicate, lhs, rhs), lhs, rhs)

    def select(self, condition: str, then: str, otherwise: str) -> str:
        return self.made(f"tl.where({condition}, {then}, {otherwise})")

    def extent(self, name: str) -> str:
        return f"extent_{name}"

    def owner(self, key: str) -> str:
        return self.made(f"tl.load(owners + {key})")

    def lookup(self, name: str, offset: str) -> str:
        return self.made(f"tl.load(input_{name} + {offset}).to(tl.int64)")

    def of_call(self, table: str, index: str) -> str:
        return self.made(f"tl.load({table} + {index})")

    def made(self, text: str, *, binds: bool = True) -> str:
        if len(text) > LONG:
            self.wish = self.wish or "value"
        return super().made(text, binds=binds)
