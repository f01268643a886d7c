"""What ranks of the same place in their nodes send each other, in messages whose sizes both know.

One group of sends and receives, posted in the order of the current stream: no host waits for
another, and none says how much it sends. On a GPU words of the host tell how far the stream has
got; on the CPU, where gloo moves bytes while the host waits, a call waits for them.
"""

from __future__ import annotations

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from fuscoc_runtime.comm.gather import keep_until_next
from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.comm.requests import Rows, StartRound
from fuscoc_runtime.comm.rounds import post
from fuscoc_runtime.comm.subgroups import network_groups
from fuscoc_runtime.errors import ClosedError
from fuscoc_runtime.kernels.stream_words import StreamWords

NETWORK = "network"
"""The hop between nodes, in errors."""


class Rails:
    """This rank's rail: the ranks of its place in the other nodes. Construction is collective.

    Attributes:
        peers: these ranks, by node; this rank itself is not among them.
    """

    def __init__(self, members: Membership) -> None:
        topology, rank = members.topology, members.rank
        self._members, self._is_gpu = members, members.device.type == "cuda"
        forwarders = {node: topology.forwarder(rank, node) for node in range(topology.num_nodes)}
        self.peers = {node: peer for node, peer in forwarders.items() if peer != rank}
        [self._known_group] = network_groups(members, 1)
        self._words, self._number = StreamWords(2, members.device), 0
        # Who has not sent anything yet is not connected.
        there = torch.zeros(2, topology.num_nodes, 1, dtype=torch.int64, device=members.device)
        self.exchange(self.between(there[0], there[1]))
        members.meet("connection")

    def between(self, sent: Tensor, received: Tensor) -> StartRound:
        """An exchange of row n of ``sent`` for what node n sends, into row n of ``received``."""
        sends, receives = (
            tuple(Rows(peer, (rows[node].view(torch.uint8),)) for node, peer in self.peers.items())
            for rows in (sent, received)
        )
        return StartRound(0, 0, sends, receives)

    def exchange(self, what: StartRound) -> None:
        """Post it; the current stream goes on when it has ended.

        Raises:
            HopTimeoutError, NetworkError: a rank has ended, or on the CPU does not come in time.
            ClosedError: the group has been destroyed.
        """
        group = self._known_group() if self._known_group is not None else None
        if group is None:
            raise ClosedError("the process group")
        started = time.monotonic()
        awaited: int | None = None
        try:
            if self._is_gpu:
                self._post(group, what)
                return
            works = post(group, what)
            keep_until_next([work for _, work in works])
            for peer, work in works:
                awaited = peer
                work.wait(timedelta(seconds=self._members.timeout))
        except (RuntimeError, TimeoutError) as error:
            seconds = time.monotonic() - started
            suspect = awaited if seconds >= self._members.timeout else None
            raise self._members.liveness.explain(NETWORK, seconds, error, suspect) from error

    def _post(self, group: dist.ProcessGroup, what: StartRound) -> None:
        self._number += 1
        self._words.write(0, self._number)
        group._start_coalescing(self._members.device)
        post(group, what)
        group._end_coalescing(self._members.device).wait()
        self._words.write(1, self._number)

    def under_way(self) -> int:
        """Which exchange the device is waiting for, by its number; 0 if for none."""
        begun, ended = self._words[0], self._words[1]
        return begun if begun != ended else 0
