"""Calls that differ in few numbers: addresses, and which call it is."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from struct import Struct

from fuscoc_runtime.comm.rails import Rails
from fuscoc_runtime.kernels.commands import (
    TURN_WORDS,
    CommandList,
    Numbers,
    Turn,
    as_numbers,
    submit_words,
)
from fuscoc_runtime.kernels.nccl import NcclError

NO_TURN = Turn()


class Prepared:
    """Calls of a list of commands, whose numbers are filled in once for every entry of the ring of
    handles, but for those that vary (`CommandList`)."""

    __slots__ = "_at", "_calls", "_commands", "_enqueue", "_numbers", "_rails", "_write"

    def __init__(
        self,
        commands: CommandList,
        values: Sequence[Mapping[str, int]],
        varied: Sequence[str],
        rails: Rails | None = None,
    ) -> None:
        """``values`` has what is alike in all calls, for every entry; ``varied`` names the rest,
        with which the names of the list begin. ``rails`` posts the list's exchanges."""
        names, count = commands.names, len(varied)
        assert names[:count] == tuple(varied)
        missing = {*names[count:]} - values[0].keys()
        assert not missing, missing
        self._commands, self._rails = commands, rails
        self._numbers = [
            as_numbers([*[0] * count, *(each[name] for name in names[count:])]) for each in values
        ]
        self._write = Struct(f"{TURN_WORDS + count}q").pack_into
        # Where C finds the list and calls; without it, the calls.
        self._at: int | None = None
        self._calls, self._enqueue = [*range(len(values))], self._carry_out
        if commands.native is not None:
            self._at, self._enqueue = commands.native.at.value, submit_words()
            self._calls = [ctypes.addressof(each) for each in self._numbers]

    def fill(self, index: int, varied: Sequence[int]) -> Numbers:
        """The numbers of a call into that entry's memory, until the next one of it is filled."""
        numbers = self._numbers[index]
        self._write(numbers, 0, *NO_TURN, *varied)
        return numbers

    def submit(self, index: int, turn: Sequence[int], varied: Sequence[int]) -> None:
        """Enqueue a call into that entry's memory: ``turn`` are the words of its `Turn`, whose
        stream captures nothing. On the CPU there are no streams.

        Raises:
            as `Rails.submit`, or `CommandList.submit` without rails.
        """
        if self._rails is not None:
            self._rails.check()
        if failed := self._enqueue(self._at, self._calls[index], *turn, *varied):
            raise self._failure(failed)

    def _carry_out(self, _: int | None, index: int, *words: int) -> int:
        """By Python."""
        self._write(numbers := self._numbers[index], 0, *words)
        if self._rails is None:
            self._commands.submit(numbers)
        else:
            self._rails.submit(self._commands, numbers)
        return 0

    def _failure(self, failed: int) -> Exception:
        assert self._commands.native is not None
        error = self._commands.native.failure(failed)
        if self._rails is None or not isinstance(error, NcclError):
            return error
        explained = self._rails.explained(error)
        explained.__cause__ = error
        return explained
