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
    library,
)
from fuscoc_runtime.kernels.nccl import NcclError

NO_TURN = Turn()


class Prepared:
    """Calls of a list of commands, whose numbers are filled in once for every entry of the ring of
    handles, but for those that vary (`CommandList`)."""

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
        self._commands, self._rails, self._native = commands, rails, commands.native
        self._numbers = [
            as_numbers([*[0] * count, *(each[name] for name in names[count:])]) for each in values
        ]
        self._write = Struct(f"{TURN_WORDS + count}q").pack_into
        if self._native is not None:
            self._at, self._enqueue = self._native.at, library().fuscoc_submit
            self._calls = [ctypes.c_void_p(ctypes.addressof(each)) for each in self._numbers]

    def fill(self, index: int, varied: Sequence[int]) -> Numbers:
        """The numbers of a call into that entry's memory, until the next one of it is filled."""
        numbers = self._numbers[index]
        self._write(numbers, 0, *NO_TURN, *varied)
        return numbers

    def submit(self, index: int, *words: int) -> None:
        """Enqueue a call into that entry's memory: ``words`` are those of its `Turn`, whose stream
        captures nothing, and the numbers that vary. On the CPU there are no streams.

        Raises:
            as `Rails.submit`, or `CommandList.submit` without rails.
        """
        self._write(numbers := self._numbers[index], 0, *words)
        rails, native = self._rails, self._native
        if native is None:
            if rails is None:
                self._commands.submit(numbers)
            else:
                rails.submit(self._commands, numbers)
            return
        if rails is not None:
            rails.group()  # raises if that is gone
        if failed := self._enqueue(self._at, self._calls[index]):
            error = native.failure(failed)
            if rails is not None and isinstance(error, NcclError):
                raise rails.explained(error) from error
            raise error
