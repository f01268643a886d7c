"""How a language spells the single operations of a shuffle's regions (``regions.py``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from typing import Any, Generic, TypeVar

DROPPED = -1
OUT_OF_RANGE = -2

Value = TypeVar("Value")


class Language(ABC, Generic[Value]):
    """How operations on i64 and on conditions are spelled.

    ``named`` is entered around the making of a value that has a name in the text.
    """

    @abstractmethod
    def constant(self, value: int) -> Value: ...

    @abstractmethod
    def arithmetic(self, op: str, lhs: Value, rhs: Value) -> Value:
        """``addi``, ``subi``, ``muli``, ``divsi``, ``remsi``, ``floordivsi``: as in ``arith``, and
        ``andi``, ``ori`` of conditions. Divisors are positive."""

    @abstractmethod
    def compare(self, predicate: str, lhs: Value, rhs: Value) -> Value:
        """A condition; ``eq``, ``ne``, ``slt`` or ``sge``, as in ``arith``."""

    @abstractmethod
    def select(self, condition: Value, then: Value, otherwise: Value) -> Value: ...

    def bound(self, predicate: str, lhs: Value, rhs: Value) -> Value:
        """That of two values of which the predicate holds: the least, or the most."""
        return self.select(self.compare(predicate, lhs, rhs), lhs, rhs)

    @abstractmethod
    def extent(self, name: str) -> Value: ...

    @abstractmethod
    def lookup(self, name: str, offset: Value) -> Value:
        """The element of an input at a row-major offset."""

    @abstractmethod
    def owner(self, key: Value) -> Value:
        """The rank of a key that exists."""

    def named(self, name: str) -> AbstractContextManager[Any]:
        return nullcontext()

    def located(self, op: Any) -> AbstractContextManager[Any]:
        """Entered around the spelling of ``op``."""
        return nullcontext()

    def between(self, name: str, value: Value, first: int, end: Value) -> Value:
        """Whether ``first <= value < end``."""
        bounds = self.compare("sge", value, self.constant(first)), self.compare("slt", value, end)
        with self.named(name):
            return self.arithmetic("andi", *bounds)

    def fold(self, op: str, values: Sequence[Value]) -> Value:
        """Several values, at least one, joined by ``op``."""
        return reduce(lambda lhs, rhs: self.arithmetic(op, lhs, rhs), values)

    def is_dropped(self, value: Value) -> Value:
        return self.compare("eq", value, self.constant(DROPPED))


class RaggedLanguage(Language[Value]):
    """One in which sources may be ragged."""

    @abstractmethod
    def cell_base(self, outer: Value) -> Value:
        """The cells before an outer index of a ragged source."""
