"""Calls that differ in few numbers: addresses, and which call it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fuscoc_runtime.kernels.commands import Numbers, as_numbers


class Prepared:
    """The numbers of a list of commands (`CommandList.names`), filled in once for every entry of
    the ring of handles."""

    def __init__(
        self,
        names: Sequence[str],
        values: Sequence[Mapping[str, int]],
        varied: Sequence[str],
    ) -> None:
        """``values`` has what is alike in all calls, for every entry; ``varied`` names the rest,
        some of which the list may have no use for."""
        missing = {*names} - {*varied} - values[0].keys()
        assert not missing, missing
        self._numbers = [as_numbers([each.get(name, 0) for name in names]) for each in values]
        places = {name: place for place, name in enumerate(names)}
        self._places = [(places[name], i) for i, name in enumerate(varied) if name in places]

    def fill(self, index: int, varied: Sequence[int]) -> Numbers:
        """The numbers of a call into that entry's memory, until the next one of it is filled."""
        numbers = self._numbers[index]
        for place, i in self._places:
            numbers[place] = varied[i]
        return numbers
