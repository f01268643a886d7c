"""Handles as tensors: what an operator of ``torch.library`` can return, save and be given.

A token is an int64 CPU tensor of one element, the number of its ticket. Its memory *is* the ticket,
an object that holds the routing; so the routing lives exactly as long as any tensor that shares
the token's memory, whoever keeps it: the user, a compiled graph, or autograd.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from fuscoc_runtime.errors import ClosedError

_WORD_BYTES = 8


class _Ticket(bytearray):
    """The memory of a token."""

    routing: Sequence[Any]


_numbers = itertools.count(1)
_tickets: WeakValueDictionary[int, _Ticket] = WeakValueDictionary()


def issue(routing: Sequence[Any]) -> Tensor:
    """A token for the handles of one dispatch, one for each rank of this process."""
    number = next(_numbers)
    ticket = _Ticket(number.to_bytes(_WORD_BYTES, "little"))
    ticket.routing = routing
    _tickets[number] = ticket
    with torch.inference_mode(False):  # autograd may save it, however the dispatch was made
        return torch.frombuffer(ticket, dtype=torch.int64)


def redeem(token: Tensor) -> Sequence[Any]:
    """The handles that ``token`` was issued for.

    Raises:
        ClosedError: it is a copy that outlived the token, as hooks may make it of what a compiled
            function saves, or of another process.
    """
    ticket = _tickets.get(int(token.numpy()[0]))  # not `item`, which a trace would show as a wait
    if ticket is None:
        raise ClosedError(
            "the routing of a token that was copied (by hooks on saved tensors, such as "
            "save_on_cpu with pin_memory, which cannot be around a compiled call)"
        )
    return ticket.routing
