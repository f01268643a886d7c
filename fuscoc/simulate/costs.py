"""What a call costs besides its bytes: few constants, each with where it comes from.

Those marked *fitted* are the least squares of relative errors over the tables that
``docs/simulation.md`` names as fitted; the others were measured by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """Seconds, unless it says otherwise."""

    node_dispatch: float = 24e-6
    """What a dispatch of fixed capacity inside one node takes besides its bytes: launches, counts,
    the ends of its kernels. Fitted."""
    node_combine: float = 10e-6
    """The same of a combine. Fitted."""
    slab_kernel: float = 5.3e-6
    """What each kernel of a call of fixed capacity between nodes takes besides its bytes: six of a
    dispatch, two of a combine. Fitted."""
    plan: float = 0.91e-3
    """From the call of a dispatch until its first slice is gathered: points counted, counts of all
    ranks exchanged, the hop planned. Fitted; 0.6 to 0.85 ms in a trace of fuscoc alone
    (docs/benchmarks/network_before.md, where the time goes: likewise what comes next)."""
    plan_again: float = 30e-6
    """The same with the handle of an earlier dispatch."""
    handover: float = 0.5e-3
    """By how much later it is where ranks send rows for others."""
    describe: float = 2.2e-3
    """From then until the other ranks' descriptions have come: nothing is forwarded before, at
    2.5 to 3 ms from the call. A plan that is there needs none."""
    layout: float = 0.0
    """The same of separate operators that have no forwarders: what is sent where, and where it is
    put. Nothing here: the project's contenders find it outside of their calls."""
    launch: float = 5e-6
    """From the end of what a kernel waits for to its first bytes, on another stream."""
    permute: float = 0.85
    """Part of HBM's rate that a permute of rows by ``index_select`` gets: 5.9 GB in 1753 us
    (docs/benchmarks/nvlink.md, where the time goes)."""
    reduce: float = 0.85
    """The same of an unfused weighted sum of rows: as a permute, unless a cluster knows better."""
    collective: float = 12.5e-6
    """What an unfused step (a permute, a collective) takes besides its bytes. Fitted."""
    collective_nvlink: float = 0.94
    """Part of NVLink's rate that a collective gets: 1.4 GB in 4201 us
    (docs/benchmarks/nvlink.md, likewise)."""
    collective_nic: float = 1.0
    """Part of a NIC's rate that a collective over all ranks gets."""
    hop_nic: float = 1.0
    """The same of a collective that a rank has one peer a node in."""
