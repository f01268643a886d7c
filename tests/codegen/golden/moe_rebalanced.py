"""Kernels of shuffle ``moe`` in moe.fsc, by fuscoc 0.1.0. Do not edit.

Every argument is an int64, a count or an address; docs/abi.md of fuscoc describes them.
"""

import triton
import triton.language as tl


# moe.fsc:18: dispatch by_token[t] -> by_expert[r(t, k), *] dedup(node, rank)
@triton.jit(do_not_specialize=range(8))
def moe_relation(
    num_points: tl.int64,
    num_ranks: tl.int64,
    topk_idx: tl.int64,
    key_to_rank: tl.int64,
    source: tl.int64,
    src_offset: tl.int64,
    rank: tl.int64,
    key: tl.int64,
):
    num_points = num_points.to(tl.int64)
    num_ranks = num_ranks.to(tl.int64)
    topk_idx = topk_idx.to(tl.int64).to(tl.pointer_type(tl.int64))
    key_to_rank = key_to_rank.to(tl.int64).to(tl.pointer_type(tl.int64))
    source = source.to(tl.int64).to(tl.pointer_type(tl.int64))
    src_offset = src_offset.to(tl.int64).to(tl.pointer_type(tl.int64))
    rank = rank.to(tl.int64).to(tl.pointer_type(tl.int64))
    key = key.to(tl.int64).to(tl.pointer_type(tl.int64))
    for start in range(tl.program_id(0) * 512, num_points, tl.num_programs(0) * 512):
        lane = start + tl.arange(0, 512).to(tl.int64)
        live = lane < num_points
        point = tl.minimum(lane, num_points - 1)  # idle lanes repeat the last one
        k = point % 8
        t = point // 8
        topk_idx_value = tl.load(topk_idx + (t * 8 + k))
        is_key = (topk_idx_value >= 0) & (topk_idx_value < 256)
        key_owner = tl.load(key_to_rank + tl.where(is_key, topk_idx_value, 0))
        owner = tl.where(is_key, key_owner, tl.where(topk_idx_value == -1, -1, -2))
        is_rank = (owner >= -1) & (owner < num_ranks)
        tl.store(source + point, t, mask=live)
        tl.store(src_offset + point, t, mask=live)
        tl.store(rank + point, tl.where(is_rank, owner, -2), mask=live)
        tl.store(key + point, topk_idx_value, mask=live)


# moe.fsc:18: dispatch by_token[t] -> by_expert[r(t, k), *] dedup(node, rank)
@triton.jit(do_not_specialize=range(10))
def moe_carry(
    num_descriptors: tl.int64,
    src_offset: tl.int64,
    dst_peer: tl.int64,
    dst_row: tl.int64,
    x_src: tl.int64,
    x_dst: tl.int64,
    signals: tl.int64,
    signal_slot: tl.int64,
    num_peers: tl.int64,
    my_peer: tl.int64,
):
    num_descriptors = num_descriptors.to(tl.int64)
    src_offset = src_offset.to(tl.int64).to(tl.pointer_type(tl.int64))
    dst_peer = dst_peer.to(tl.int64).to(tl.pointer_type(tl.int64))
    dst_row = dst_row.to(tl.int64).to(tl.pointer_type(tl.int64))
    x_src = x_src.to(tl.int64)
    x_dst = x_dst.to(tl.int64).to(tl.pointer_type(tl.int64))
    signals = signals.to(tl.int64).to(tl.pointer_type(tl.int64))
    signal_slot = signal_slot.to(tl.int64)
    num_peers = num_peers.to(tl.int64)
    my_peer = my_peer.to(tl.int64)
    for i in range(tl.program_id(0), num_descriptors, tl.num_programs(0)):
        src = tl.load(src_offset + i)
        peer = tl.load(dst_peer + i)
        dst = tl.load(dst_row + i)
        at = tl.arange(0, 2048)
        x_from = tl.multiple_of((x_src + src * 14336).to(tl.pointer_type(tl.int64)), 16)
        x = tl.load(x_from + at, mask=at < 1792, other=0)
        x_peer = tl.load(x_dst + peer)
        x_to = tl.multiple_of((x_peer + dst * 14336).to(tl.pointer_type(tl.int64)), 16)
        tl.store(x_to + at, x, mask=at < 1792)
    # The stores of every thread come first.
    tl.debug_barrier()
    for peer in range(num_peers):
        window = tl.load(signals + peer)
        word = (window + (signal_slot * num_peers + my_peer) * 4).to(tl.pointer_type(tl.int32))
        tl.atomic_add(word, 1, sem="release", scope="sys")


# moe.fsc:18: dispatch by_token[t] -> by_expert[r(t, k), *] dedup(node, rank)
@triton.jit(do_not_specialize=range(5))
def moe_pack(
    num_descriptors: tl.int64,
    src_offset: tl.int64,
    dst_row: tl.int64,
    x_src: tl.int64,
    x_dst: tl.int64,
):
    num_descriptors = num_descriptors.to(tl.int64)
    src_offset = src_offset.to(tl.int64).to(tl.pointer_type(tl.int64))
    dst_row = dst_row.to(tl.int64).to(tl.pointer_type(tl.int64))
    x_src = x_src.to(tl.int64)
    x_dst = x_dst.to(tl.int64)
    for i in range(tl.program_id(0), num_descriptors, tl.num_programs(0)):
        src = tl.load(src_offset + i)
        dst = tl.load(dst_row + i)
        at = tl.arange(0, 2048)
        x_from = tl.multiple_of((x_src + src * 14336).to(tl.pointer_type(tl.int64)), 16)
        x = tl.load(x_from + at, mask=at < 1792, other=0)
        x_to = tl.multiple_of((x_dst + dst * 14336).to(tl.pointer_type(tl.int64)), 16)
        tl.store(x_to + at, x, mask=at < 1792)


# moe.fsc:18: dispatch by_token[t] -> by_expert[r(t, k), *] dedup(node, rank)
@triton.jit(do_not_specialize=range(10))
def moe_pack_carried(
    num_descriptors: tl.int64,
    src_row: tl.int64,
    dst_row: tl.int64,
    x_src: tl.int64,
    x_dst: tl.int64,
    wait_base: tl.int64,
    num_peers: tl.int64,
    expected_4: tl.int64,
    abort: tl.int64,
    late: tl.int64,
):
    num_descriptors = num_descriptors.to(tl.int64)
    src_row = src_row.to(tl.int64).to(tl.pointer_type(tl.int64))
    dst_row = dst_row.to(tl.int64).to(tl.pointer_type(tl.int64))
    x_src = x_src.to(tl.int64)
    x_dst = x_dst.to(tl.int64)
    wait_base = wait_base.to(tl.int64)
    num_peers = num_peers.to(tl.int64)
    expected_4 = expected_4.to(tl.int64)
    abort = abort.to(tl.int64).to(tl.pointer_type(tl.int32))
    late = late.to(tl.int64).to(tl.pointer_type(tl.int32))
    # Wait until every peer has signalled slot 4, or the host says: in vain.
    count = num_descriptors
    polls = 0
    in_vain = 0
    for peer in range(num_peers):
        index = 4 * num_peers + peer
        word = (wait_base + index * 4).to(tl.pointer_type(tl.int32))
        behind = expected_4.to(tl.int32) - tl.atomic_add(word, 0, sem="acquire", scope="sys")
        while (behind > 0) & (in_vain == 0):
            polls += 1
            if polls % 64 == 0:
                stop = tl.load(abort, volatile=True)
                in_vain = tl.atomic_cas(late, 0, (index + 1).to(tl.int32) * stop, sem="relaxed")
            behind = expected_4.to(tl.int32) - tl.atomic_add(word, 0, sem="acquire", scope="sys")
        if behind > 0:
            count *= 0
    for i in range(tl.program_id(0), count, tl.num_programs(0)):
        src = tl.load(src_row + i)
        dst = tl.load(dst_row + i)
        at = tl.arange(0, 2048)
        x_from = tl.multiple_of((x_src + src * 14336).to(tl.pointer_type(tl.int64)), 16)
        x = tl.load(x_from + at, mask=at < 1792, other=0)
        x_to = tl.multiple_of((x_dst + dst * 14336).to(tl.pointer_type(tl.int64)), 16)
        tl.store(x_to + at, x, mask=at < 1792)


# moe.fsc:18: dispatch by_token[t] -> by_expert[r(t, k), *] dedup(node, rank)
@triton.jit(do_not_specialize=range(10))
def moe_send(
    num_descriptors: tl.int64,
    src_offset: tl.int64,
    dst_peer: tl.int64,
    dst_slot: tl.int64,
    x_src: tl.int64,
    x_dst: tl.int64,
    signals: tl.int64,
    signal_slot: tl.int64,
    num_peers: tl.int64,
    my_peer: tl.int64,
):
    num_descriptors = num_descriptors.to(tl.int64)
    src_offset = src_offset.to(tl.int64).to(tl.pointer_type(tl.int64))
    dst_peer = dst_peer.to(tl.int64).to(tl.pointer_type(tl.int64))
    dst_slot = dst_slot.to(tl.int64).to(tl.pointer_type(tl.int64))
    x_src = x_src.to(tl.int64)
    x_dst = x_dst.to(tl.int64).to(tl.pointer_type(tl.int64))
    signals = signals.to(tl.int64).to(tl.pointer_type(tl.int64))
    signal_slot = signal_slot.to(tl.int64)
    num_peers = num_peers.to(tl.int64)
    my_peer = my_peer.to(tl.int64)
    for i in range(tl.program_id(0), num_descriptors, tl.num_programs(0)):
        src = tl.load(src_offset + i)
        peer = tl.load(dst_peer + i)
        dst = tl.load(dst_slot + i)
        at = tl.arange(0, 2048)
        x_from = tl.multiple_of((x_src + src * 14336).to(tl.pointer_type(tl.int64)), 16)
        x = tl.load(x_from + at, mask=at < 1792, other=0)
        x_peer = tl.load(x_dst + peer)
        x_to = tl.multiple_of((x_peer + dst * 14336).to(tl.pointer_type(tl.int64)), 16)
        tl.store(x_to + at, x, mask=at < 1792)
    # The stores of every thread come first.
    tl.debug_barrier()
    for peer in range(num_peers):
        window = tl.load(signals + peer)
        word = (window + (signal_slot * num_peers + my_peer) * 4).to(tl.pointer_type(tl.int32))
        tl.atomic_add(word, 1, sem="release", scope="sys")


# moe.fsc:18: dispatch by_token[t] -> by_expert[r(t, k), *] dedup(node, rank)
@triton.jit(do_not_specialize=range(10))
def moe_forward(
    num_descriptors: tl.int64,
    src_row: tl.int64,
    dst_peer: tl.int64,
    dst_slot: tl.int64,
    x_src: tl.int64,
    x_dst: tl.int64,
    signals: tl.int64,
    signal_slot: tl.int64,
    num_peers: tl.int64,
    my_peer: tl.int64,
):
    num_descriptors = num_descriptors.to(tl.int64)
    src_row = src_row.to(tl.int64).to(tl.pointer_type(tl.int64))
    dst_peer = dst_peer.to(tl.int64).to(tl.pointer_type(tl.int64))
    dst_slot = dst_slot.to(tl.int64).to(tl.pointer_type(tl.int64))
    x_src = x_src.to(tl.int64)
    x_dst = x_dst.to(tl.int64).to(tl.pointer_type(tl.int64))
    signals = signals.to(tl.int64).to(tl.pointer_type(tl.int64))
    signal_slot = signal_slot.to(tl.int64)
    num_peers = num_peers.to(tl.int64)
    my_peer = my_peer.to(tl.int64)
    for i in range(tl.program_id(0), num_descriptors, tl.num_programs(0)):
        src = tl.load(src_row + i)
        peer = tl.load(dst_peer + i)
        dst = tl.load(dst_slot + i)
        at = tl.arange(0, 2048)
        x_from = tl.multiple_of((x_src + src * 14336).to(tl.pointer_type(tl.int64)), 16)
        x = tl.load(x_from + at, mask=at < 1792, other=0)
        x_peer = tl.load(x_dst + peer)
        x_to = tl.multiple_of((x_peer + dst * 14336).to(tl.pointer_type(tl.int64)), 16)
        tl.store(x_to + at, x, mask=at < 1792)
    # The stores of every thread come first.
    tl.debug_barrier()
    for peer in range(num_peers):
        window = tl.load(signals + peer)
        word = (window + (signal_slot * num_peers + my_peer) * 4).to(tl.pointer_type(tl.int32))
        tl.atomic_add(word, 1, sem="release", scope="sys")


# moe.fsc:18: dispatch by_token[t] -> by_expert[r(t, k), *] dedup(node, rank)
@triton.jit(do_not_specialize=range(11))
def moe_duplicate(
    num_descriptors: tl.int64,
    src_slot: tl.int64,
    dst_slot: tl.int64,
    x_src: tl.int64,
    x_dst: tl.int64,
    wait_base: tl.int64,
    num_peers: tl.int64,
    expected_0: tl.int64,
    expected_1: tl.int64,
    abort: tl.int64,
    late: tl.int64,
):
    num_descriptors = num_descriptors.to(tl.int64)
    src_slot = src_slot.to(tl.int64).to(tl.pointer_type(tl.int64))
    dst_slot = dst_slot.to(tl.int64).to(tl.pointer_type(tl.int64))
    x_src = x_src.to(tl.int64)
    x_dst = x_dst.to(tl.int64)
    wait_base = wait_base.to(tl.int64)
    num_peers = num_peers.to(tl.int64)
    expected_0 = expected_0.to(tl.int64)
    expected_1 = expected_1.to(tl.int64)
    abort = abort.to(tl.int64).to(tl.pointer_type(tl.int32))
    late = late.to(tl.int64).to(tl.pointer_type(tl.int32))
    # Wait until every peer has signalled slot 0, or the host says: in vain.
    count = num_descriptors
    polls = 0
    in_vain = 0
    for peer in range(num_peers):
        index = 0 * num_peers + peer
        word = (wait_base + index * 4).to(tl.pointer_type(tl.int32))
        behind = expected_0.to(tl.int32) - tl.atomic_add(word, 0, sem="acquire", scope="sys")
        while (behind > 0) & (in_vain == 0):
            polls += 1
            if polls % 64 == 0:
                stop = tl.load(abort, volatile=True)
                in_vain = tl.atomic_cas(late, 0, (index + 1).to(tl.int32) * stop, sem="relaxed")
            behind = expected_0.to(tl.int32) - tl.atomic_add(word, 0, sem="acquire", scope="sys")
        if behind > 0:
            count *= 0
    # Wait until every peer has signalled slot 1, or the host says: in vain.
    for peer in range(num_peers):
        index = 1 * num_peers + peer
        word = (wait_base + index * 4).to(tl.pointer_type(tl.int32))
        behind = expected_1.to(tl.int32) - tl.atomic_add(word, 0, sem="acquire", scope="sys")
        while (behind > 0) & (in_vain == 0):
            polls += 1
            if polls % 64 == 0:
                stop = tl.load(abort, volatile=True)
                in_vain = tl.atomic_cas(late, 0, (index + 1).to(tl.int32) * stop, sem="relaxed")
            behind = expected_1.to(tl.int32) - tl.atomic_add(word, 0, sem="acquire", scope="sys")
        if behind > 0:
            count *= 0
    for i in range(tl.program_id(0), count, tl.num_programs(0)):
        src = tl.load(src_slot + i)
        dst = tl.load(dst_slot + i)
        at = tl.arange(0, 2048)
        x_from = tl.multiple_of((x_src + src * 14336).to(tl.pointer_type(tl.int64)), 16)
        x = tl.load(x_from + at, mask=at < 1792, other=0)
        x_to = tl.multiple_of((x_dst + dst * 14336).to(tl.pointer_type(tl.int64)), 16)
        tl.store(x_to + at, x, mask=at < 1792)


# moe.fsc:19: combine by_expert[r(t, k), *] -> by_token[t] reduce sum(w)
@triton.jit(do_not_specialize=range(14))
def moe_reduce_forward(
    num_descriptors: tl.int64,
    dst_peer: tl.int64,
    dst_row: tl.int64,
    term_begin: tl.int64,
    term_end: tl.int64,
    term_slot: tl.int64,
    term_point: tl.int64,
    weights: tl.int64,
    x_src: tl.int64,
    x_dst: tl.int64,
    signals: tl.int64,
    signal_slot: tl.int64,
    num_peers: tl.int64,
    my_peer: tl.int64,
):
    num_descriptors = num_descriptors.to(tl.int64)
    dst_peer = dst_peer.to(tl.int64).to(tl.pointer_type(tl.int64))
    dst_row = dst_row.to(tl.int64).to(tl.pointer_type(tl.int64))
    term_begin = term_begin.to(tl.int64).to(tl.pointer_type(tl.int64))
    term_end = term_end.to(tl.int64).to(tl.pointer_type(tl.int64))
    term_slot = term_slot.to(tl.int64).to(tl.pointer_type(tl.int64))
    term_point = term_point.to(tl.int64).to(tl.pointer_type(tl.int64))
    weights = weights.to(tl.int64).to(tl.pointer_type(tl.float32))
    x_src = x_src.to(tl.int64)
    x_dst = x_dst.to(tl.int64).to(tl.pointer_type(tl.int64))
    signals = signals.to(tl.int64).to(tl.pointer_type(tl.int64))
    signal_slot = signal_slot.to(tl.int64)
    num_peers = num_peers.to(tl.int64)
    my_peer = my_peer.to(tl.int64)
    for i in range(tl.program_id(0), num_descriptors, tl.num_programs(0)):
        peer = tl.load(dst_peer + i)
        dst = tl.load(dst_row + i)
        begin = tl.load(term_begin + i)
        end = tl.load(term_end + i)
        at = tl.arange(0, 8192)
        x_sum = tl.full((8192,), 0, tl.float32)
        for term in range(begin, end):
            src = tl.load(term_slot + term)
            x_from = tl.multiple_of((x_src + src * 14336).to(tl.pointer_type(tl.bfloat16)), 16)
            x = tl.load(x_from + at, mask=at < 7168, other=0)
            point = tl.load(term_point + term)
            weight = tl.load(weights + point)
            x_sum += weight * x.to(tl.float32)
        x_peer = tl.load(x_dst + peer)
        x_to = tl.multiple_of((x_peer + dst * 28672).to(tl.pointer_type(tl.float32)), 16)
        tl.store(x_to + at, x_sum, mask=at < 7168)
    # The stores of every thread come first.
    tl.debug_barrier()
    for peer in range(num_peers):
        window = tl.load(signals + peer)
        word = (window + (signal_slot * num_peers + my_peer) * 4).to(tl.pointer_type(tl.int32))
        tl.atomic_add(word, 1, sem="release", scope="sys")


# moe.fsc:19: combine by_expert[r(t, k), *] -> by_token[t] reduce sum(w)
@triton.jit(do_not_specialize=range(14))
def moe_reduce_direct(
    num_descriptors: tl.int64,
    dst_peer: tl.int64,
    dst_row: tl.int64,
    term_begin: tl.int64,
    term_end: tl.int64,
    term_slot: tl.int64,
    term_point: tl.int64,
    weights: tl.int64,
    x_src: tl.int64,
    x_dst: tl.int64,
    signals: tl.int64,
    signal_slot: tl.int64,
    num_peers: tl.int64,
    my_peer: tl.int64,
):
    num_descriptors = num_descriptors.to(tl.int64)
    dst_peer = dst_peer.to(tl.int64).to(tl.pointer_type(tl.int64))
    dst_row = dst_row.to(tl.int64).to(tl.pointer_type(tl.int64))
    term_begin = term_begin.to(tl.int64).to(tl.pointer_type(tl.int64))
    term_end = term_end.to(tl.int64).to(tl.pointer_type(tl.int64))
    term_slot = term_slot.to(tl.int64).to(tl.pointer_type(tl.int64))
    term_point = term_point.to(tl.int64).to(tl.pointer_type(tl.int64))
    weights = weights.to(tl.int64).to(tl.pointer_type(tl.float32))
    x_src = x_src.to(tl.int64)
    x_dst = x_dst.to(tl.int64).to(tl.pointer_type(tl.int64))
    signals = signals.to(tl.int64).to(tl.pointer_type(tl.int64))
    signal_slot = signal_slot.to(tl.int64)
    num_peers = num_peers.to(tl.int64)
    my_peer = my_peer.to(tl.int64)
    for i in range(tl.program_id(0), num_descriptors, tl.num_programs(0)):
        peer = tl.load(dst_peer + i)
        dst = tl.load(dst_row + i)
        begin = tl.load(term_begin + i)
        end = tl.load(term_end + i)
        at = tl.arange(0, 8192)
        x_sum = tl.full((8192,), 0, tl.float32)
        for term in range(begin, end):
            src = tl.load(term_slot + term)
            x_from = tl.multiple_of((x_src + src * 14336).to(tl.pointer_type(tl.bfloat16)), 16)
            x = tl.load(x_from + at, mask=at < 7168, other=0)
            point = tl.load(term_point + term)
            weight = tl.load(weights + point)
            x_sum += weight * x.to(tl.float32)
        x_peer = tl.load(x_dst + peer)
        x_to = tl.multiple_of((x_peer + dst * 14336).to(tl.pointer_type(tl.bfloat16)), 16)
        tl.store(x_to + at, x_sum.to(tl.bfloat16), mask=at < 7168)
    # The stores of every thread come first.
    tl.debug_barrier()
    for peer in range(num_peers):
        window = tl.load(signals + peer)
        word = (window + (signal_slot * num_peers + my_peer) * 4).to(tl.pointer_type(tl.int32))
        tl.atomic_add(word, 1, sem="release", scope="sys")


# moe.fsc:19: combine by_expert[r(t, k), *] -> by_token[t] reduce sum(w)
@triton.jit(do_not_specialize=range(11))
def moe_reduce_node(
    num_descriptors: tl.int64,
    term_begin: tl.int64,
    term_end: tl.int64,
    dst_row: tl.int64,
    x_src: tl.int64,
    x_dst: tl.int64,
    wait_base: tl.int64,
    num_peers: tl.int64,
    expected_3: tl.int64,
    abort: tl.int64,
    late: tl.int64,
):
    num_descriptors = num_descriptors.to(tl.int64)
    term_begin = term_begin.to(tl.int64).to(tl.pointer_type(tl.int64))
    term_end = term_end.to(tl.int64).to(tl.pointer_type(tl.int64))
    dst_row = dst_row.to(tl.int64).to(tl.pointer_type(tl.int64))
    x_src = x_src.to(tl.int64)
    x_dst = x_dst.to(tl.int64)
    wait_base = wait_base.to(tl.int64)
    num_peers = num_peers.to(tl.int64)
    expected_3 = expected_3.to(tl.int64)
    abort = abort.to(tl.int64).to(tl.pointer_type(tl.int32))
    late = late.to(tl.int64).to(tl.pointer_type(tl.int32))
    # Wait until every peer has signalled slot 3, or the host says: in vain.
    count = num_descriptors
    polls = 0
    in_vain = 0
    for peer in range(num_peers):
        index = 3 * num_peers + peer
        word = (wait_base + index * 4).to(tl.pointer_type(tl.int32))
        behind = expected_3.to(tl.int32) - tl.atomic_add(word, 0, sem="acquire", scope="sys")
        while (behind > 0) & (in_vain == 0):
            polls += 1
            if polls % 64 == 0:
                stop = tl.load(abort, volatile=True)
                in_vain = tl.atomic_cas(late, 0, (index + 1).to(tl.int32) * stop, sem="relaxed")
            behind = expected_3.to(tl.int32) - tl.atomic_add(word, 0, sem="acquire", scope="sys")
        if behind > 0:
            count *= 0
    for i in range(tl.program_id(0), count, tl.num_programs(0)):
        begin = tl.load(term_begin + i)
        end = tl.load(term_end + i)
        dst = tl.load(dst_row + i)
        at = tl.arange(0, 8192)
        x_sum = tl.full((8192,), 0, tl.float32)
        for term in range(begin, end):
            x_from = tl.multiple_of((x_src + term * 28672).to(tl.pointer_type(tl.float32)), 16)
            x = tl.load(x_from + at, mask=at < 7168, other=0)
            x_sum += x
        x_to = tl.multiple_of((x_dst + dst * 14336).to(tl.pointer_type(tl.bfloat16)), 16)
        tl.store(x_to + at, x_sum.to(tl.bfloat16), mask=at < 7168)


# moe.fsc:19: combine by_expert[r(t, k), *] -> by_token[t] reduce sum(w)
@triton.jit(do_not_specialize=range(10))
def moe_hand_back(
    num_descriptors: tl.int64,
    src_row: tl.int64,
    dst_peer: tl.int64,
    dst_row: tl.int64,
    x_src: tl.int64,
    x_dst: tl.int64,
    signals: tl.int64,
    signal_slot: tl.int64,
    num_peers: tl.int64,
    my_peer: tl.int64,
):
    num_descriptors = num_descriptors.to(tl.int64)
    src_row = src_row.to(tl.int64).to(tl.pointer_type(tl.int64))
    dst_peer = dst_peer.to(tl.int64).to(tl.pointer_type(tl.int64))
    dst_row = dst_row.to(tl.int64).to(tl.pointer_type(tl.int64))
    x_src = x_src.to(tl.int64)
    x_dst = x_dst.to(tl.int64).to(tl.pointer_type(tl.int64))
    signals = signals.to(tl.int64).to(tl.pointer_type(tl.int64))
    signal_slot = signal_slot.to(tl.int64)
    num_peers = num_peers.to(tl.int64)
    my_peer = my_peer.to(tl.int64)
    for i in range(tl.program_id(0), num_descriptors, tl.num_programs(0)):
        src = tl.load(src_row + i)
        peer = tl.load(dst_peer + i)
        dst = tl.load(dst_row + i)
        at = tl.arange(0, 2048)
        x_from = tl.multiple_of((x_src + src * 14336).to(tl.pointer_type(tl.int64)), 16)
        x = tl.load(x_from + at, mask=at < 1792, other=0)
        x_peer = tl.load(x_dst + peer)
        x_to = tl.multiple_of((x_peer + dst * 14336).to(tl.pointer_type(tl.int64)), 16)
        tl.store(x_to + at, x, mask=at < 1792)
    # The stores of every thread come first.
    tl.debug_barrier()
    for peer in range(num_peers):
        window = tl.load(signals + peer)
        word = (window + (signal_slot * num_peers + my_peer) * 4).to(tl.pointer_type(tl.int32))
        tl.atomic_add(word, 1, sem="release", scope="sys")


# moe.fsc:19: combine by_expert[r(t, k), *] -> by_token[t] reduce sum(w)
@triton.jit(do_not_specialize=range(13))
def moe_reduce_source(
    num_descriptors: tl.int64,
    dst_offset: tl.int64,
    term_begin: tl.int64,
    term_end: tl.int64,
    term_row: tl.int64,
    x_src: tl.int64,
    x_dst: tl.int64,
    wait_base: tl.int64,
    num_peers: tl.int64,
    expected_2: tl.int64,
    expected_5: tl.int64,
    abort: tl.int64,
    late: tl.int64,
):
    num_descriptors = num_descriptors.to(tl.int64)
    dst_offset = dst_offset.to(tl.int64).to(tl.pointer_type(tl.int64))
    term_begin = term_begin.to(tl.int64).to(tl.pointer_type(tl.int64))
    term_end = term_end.to(tl.int64).to(tl.pointer_type(tl.int64))
    term_row = term_row.to(tl.int64).to(tl.pointer_type(tl.int64))
    x_src = x_src.to(tl.int64)
    x_dst = x_dst.to(tl.int64)
    wait_base = wait_base.to(tl.int64)
    num_peers = num_peers.to(tl.int64)
    expected_2 = expected_2.to(tl.int64)
    expected_5 = expected_5.to(tl.int64)
    abort = abort.to(tl.int64).to(tl.pointer_type(tl.int32))
    late = late.to(tl.int64).to(tl.pointer_type(tl.int32))
    # Wait until every peer has signalled slot 2, or the host says: in vain.
    count = num_descriptors
    polls = 0
    in_vain = 0
    for peer in range(num_peers):
        index = 2 * num_peers + peer
        word = (wait_base + index * 4).to(tl.pointer_type(tl.int32))
        behind = expected_2.to(tl.int32) - tl.atomic_add(word, 0, sem="acquire", scope="sys")
        while (behind > 0) & (in_vain == 0):
            polls += 1
            if polls % 64 == 0:
                stop = tl.load(abort, volatile=True)
                in_vain = tl.atomic_cas(late, 0, (index + 1).to(tl.int32) * stop, sem="relaxed")
            behind = expected_2.to(tl.int32) - tl.atomic_add(word, 0, sem="acquire", scope="sys")
        if behind > 0:
            count *= 0
    # Wait until every peer has signalled slot 5, or the host says: in vain.
    for peer in range(num_peers):
        index = 5 * num_peers + peer
        word = (wait_base + index * 4).to(tl.pointer_type(tl.int32))
        behind = expected_5.to(tl.int32) - tl.atomic_add(word, 0, sem="acquire", scope="sys")
        while (behind > 0) & (in_vain == 0):
            polls += 1
            if polls % 64 == 0:
                stop = tl.load(abort, volatile=True)
                in_vain = tl.atomic_cas(late, 0, (index + 1).to(tl.int32) * stop, sem="relaxed")
            behind = expected_5.to(tl.int32) - tl.atomic_add(word, 0, sem="acquire", scope="sys")
        if behind > 0:
            count *= 0
    for i in range(tl.program_id(0), count, tl.num_programs(0)):
        dst = tl.load(dst_offset + i)
        begin = tl.load(term_begin + i)
        end = tl.load(term_end + i)
        at = tl.arange(0, 8192)
        x_sum = tl.full((8192,), 0, tl.float32)
        for term in range(begin, end):
            src = tl.load(term_row + term)
            x_from = tl.multiple_of((x_src + src * 14336).to(tl.pointer_type(tl.bfloat16)), 16)
            x = tl.load(x_from + at, mask=at < 7168, other=0)
            x_sum += x.to(tl.float32)
        x_to = tl.multiple_of((x_dst + dst * 14336).to(tl.pointer_type(tl.bfloat16)), 16)
        tl.store(x_to + at, x_sum.to(tl.bfloat16), mask=at < 7168)
