"""How the kernels of one node divide a GPU: those in CUDA, and those in Triton."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Schedule:
    """How a call uses the GPU; a zero takes the value of `model_schedule`.

    At most ``num_sms`` SMs run CTAs. In dispatch ``send_ctas`` of them hold ``send_warps`` sending
    warps each; in combine ``reduce_teams`` teams of a CTA prefer reducing to finalising. Up to
    ``dispatch_group`` and ``combine_group`` source segments share a flag: equal on all ranks.
    """

    num_sms: int = 0
    send_ctas: int = 0
    send_warps: int = 0
    reduce_teams: int = 0
    dispatch_group: int = 0
    combine_group: int = 0


IN_FLIGHT_BYTES = 4.5e6  # on their way to all peers, they keep NVLink full
EARLY_BYTES = 2.3e6  # what NVLink carries of that while a plan is made
FLAGGED_BYTES = 14336  # of a row that has a flag of its own


def expected_destinations(num_ranks: int, fanout: int) -> float:
    """Remote ranks of a segment, if its points go anywhere; at least one."""
    return max(1.0, (num_ranks - 1) * (1 - (1 - 1 / num_ranks) ** fanout))


def num_early(num_ranks: int, fanout: int, row_bytes: int) -> int:
    """Segments of a rank that are sent while the plan is made."""
    return math.ceil(EARLY_BYTES / (row_bytes * expected_destinations(num_ranks, fanout)))


def model_schedule(
    num_ctas: int, warps: int, teams: int, num_ranks: int, fanout: int, row_bytes: int
) -> Schedule:
    """The split of ``num_ctas`` CTAs, of ``warps`` warps in dispatch and ``teams`` in combine.

    A sending warp has one row of ``row_bytes`` under way to each remote rank of its segment.
    Gathered in a third of the CTAs senders leave the others wholly to HBM work. On few SMs, where
    expanding is what runs short, a few warps of each CTA send instead.

    In combine, teams that have nothing to finalise reduce, so few need to prefer it; on few SMs
    most must, in larger groups, since every peer waits for what is reduced. Among two ranks
    reducing is half of the work. A long row is worth a flag of its own, which lets work on it begin
    sooner; sending to one peer alone does not gain by it.

    The constants were measured with two and with four H200.
    """
    few, very_few, pair = num_ctas <= 64, num_ctas <= 32, num_ranks <= 2
    destinations = expected_destinations(num_ranks, fanout)
    senders = math.ceil(IN_FLIGHT_BYTES / (row_bytes * destinations))
    if few:
        send_ctas, send_warps = num_ctas, max(1, warps // 4 if pair else min(warps // 4, 3))
    else:
        # More than a third where rows are so short, or buffers so large, that it is too few.
        send_ctas = min(num_ctas // 2, max(-(-num_ctas // 3), -(-senders // warps)))
        send_warps = max(1, min(warps // 2, 6), min(warps, -(-senders // send_ctas)))
    group = min(2, math.ceil(FLAGGED_BYTES / row_bytes))
    quarters = 2 if pair else 3 if very_few else 2 if few else 1
    return Schedule(
        num_sms=num_ctas,
        send_ctas=send_ctas,
        send_warps=send_warps,
        reduce_teams=max(1, teams * quarters // 4),
        dispatch_group=2 if few or pair else group,
        combine_group=4 if very_few else 2 if few else 1 if pair else group,
    )


@dataclass(frozen=True)
class Programs:
    """How the kernels use the GPU: programs of a launch, and how many of them send or reduce.

    Up to ``dispatch_group`` and ``combine_group`` source segments share a flag. All ranks take the
    same groups. A kernel that sorts rows has as many programs as ``sms`` SMs hold.
    """

    dispatch: int
    senders: int
    combine: int
    reducers: int
    sms: int
    dispatch_group: int = 2
    combine_group: int = 2


SENT_BYTES = 28672  # of an SM, under way by its programs that send or reduce,
MOST_SENDERS = 8  # of which it has so many at most
ROW_WARPS = 4  # of a program that moves long rows
MOST_FLAGGED, MOST_RETURNED = 16, 8  # segments under a flag, there and back


def model_programs(
    device: torch.device,
    num_sms: int | None,
    combine_an_sm: int = 4,
    row_bytes: int = SENT_BYTES,
    fanout: int = 1,
    row_warps: int = ROW_WARPS,
) -> Programs:
    """Programs that fill ``num_sms`` SMs: as many as their registers hold, a few of them sending.

    A program has ``row_bytes`` under way at a time. Where that is little, there are more of them,
    half of which send, and more segments share a flag, which waits until all has arrived. The
    constants were measured with two H100 and rows of 1.2, 2 and 14 KB. Of programs of fewer
    ``row_warps`` than these had there are as many warps, unless ranks share the GPU, which count on
    the number of programs.

    The GPU spreads them over all its SMs. An interpreted launch runs its programs one after the
    other; then one does everything, since a program that waits would keep the next from sending.
    """
    if device.type == "cpu":
        return Programs(1, 1, 1, 1, 1)
    available = torch.cuda.get_device_properties(device).multi_processor_count
    sms = min(num_sms or available, available)
    senders = min(max(SENT_BYTES // row_bytes, 2), MOST_SENDERS)
    of_flag = max(SENT_BYTES // (row_bytes * fanout), 2)
    each = max(1, ROW_WARPS // row_warps) * sms if sms == available else sms
    return Programs(
        max(7, 2 * senders) * each,
        senders=senders * each,
        combine=max(combine_an_sm, 2 * senders) * each,
        reducers=senders * each,
        sms=sms,
        dispatch_group=min(of_flag, MOST_FLAGGED),
        combine_group=min(of_flag, MOST_RETURNED),
    )
