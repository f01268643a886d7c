"""Cases of `layouts.py` whose parts are uneven, overlap, or vary: those of examples that no row of
the first cases stands for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.layout_case import Case, bucketed, exchanged, moved, random_bytes

PICTURES = 64  # of a rank
TEXTS = 512  # of a rank
LENGTHS = 1, 256  # tokens of a text


def part_of(whole: int, parts: int, number: int) -> range:
    """Parts that are rounded up, as the specs have them."""
    size = -(-whole // parts)
    return range(min(size * number, whole), min(size * (number + 1), whole))


def gathered(sizes: Mapping[str, int], rank: int, ranks: int, device: torch.device) -> Case:
    """All tokens everywhere, and a sum over the ranks back; ``sizes`` are those of all_gather.fsc,
    and the ranks divide them. Rows come back from every rank as they are, which is exact."""
    own, width = sizes["total"] // ranks, sizes["width"]
    x = torch.randint(-8, 8, (own, width), device=device).bfloat16()

    def there(x: Tensor) -> Tensor:
        every = x.new_empty(own * ranks, width)
        dist.all_gather_into_tensor(every, x)
        return every

    def back(y: Tensor) -> Tensor:
        mine = y.new_empty(own, width)
        dist.reduce_scatter_tensor(mine, y)
        return mine

    remote = x.nbytes * (ranks - 1)
    return Case(x, {}, own, own * ranks, remote, there, back, returned=x * ranks)


def haloed(sizes: Mapping[str, int], rank: int, ranks: int, device: torch.device) -> Case:
    """Lines and those of both neighbours, by torch with sends and receives; back they are added to
    the lines that they are of."""
    own, reach, width = sizes["rows"] // ranks, sizes["reach"], sizes["width"]
    x = torch.randn(own, width, device=device)
    before, behind = rank > 0, rank < ranks - 1

    def swapped(first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """What the ranks before and behind this one have for it."""
        came = torch.zeros_like(first), torch.zeros_like(last)
        calls = []
        for there, peer, sent, place in (
            (before, rank - 1, first, came[0]),
            (behind, rank + 1, last, came[1]),
        ):
            if there:
                calls += [dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, place, peer)]
        for work in dist.batch_isend_irecv(calls) if calls else ():
            work.wait()
        return came

    def there(x: Tensor) -> Tensor:
        some = swapped(x[:reach], x[-reach:])
        parts = [some[0]] * before + [x] + [some[1]] * behind
        return torch.cat(parts)

    def back(y: Tensor) -> Tensor:
        begin = reach * before
        sums = y[begin : begin + own].clone()
        first, last = swapped(y[:reach].contiguous(), y[-reach:].contiguous())
        sums[:reach] += first * before
        sums[-reach:] += last * behind
        return sums

    times = torch.ones(own, 1, device=device)
    times[:reach] += before
    times[-reach:] += behind
    line = width * 4
    return Case(
        x,
        {},
        own,
        own + 2 * reach,
        reach * line * (before + behind),
        there,
        back,
        returned=x * times,
        begin=0 if before else reach * line,
        stays=True,
    )


def dealt_in_blocks(sizes: Mapping[str, int], rank: int, ranks: int, device: torch.device) -> Case:
    """A matrix of quads in blocks of rows, to blocks that are dealt out over a grid of ranks."""
    rows, columns, high, wide = (sizes[name] for name in ("rows", "columns", "high", "wide"))
    across = min(2, ranks)
    down = ranks // across
    column = torch.arange(columns, device=device)
    of_grid = [(column // wide % across == x).nonzero()[:, 0] for x in range(across)]
    parts = [torch.tensor(part_of(rows, ranks, each), device=device) for each in range(ranks)]
    mine = parts[rank]
    own_rows = [(mine // high % down == y).nonzero()[:, 0] for y in range(down)]
    x = random_bytes(len(mine), columns, 16, device=device).view(torch.float32)
    shapes = [(len(own_rows[to // across]), len(of_grid[to % across])) for to in range(ranks)]
    place_y, place_x = divmod(rank, across)
    wide_of_mine = len(of_grid[place_x])
    heights = [int((part // high % down == place_y).sum()) for part in parts]
    outgoing = [a * b for a, b in shapes]
    incoming = [height * wide_of_mine for height in heights]
    all_rows = down == 1

    def there(x: Tensor) -> Tensor:
        some = [
            (x if all_rows else x[own_rows[to // across]])[:, of_grid[to % across]]
            for to in range(ranks)
        ]
        return moved(torch.cat([each.flatten(0, 1) for each in some]), outgoing, incoming)

    def back(y: Tensor) -> Tensor:
        came = moved(y.view(-1, 4), incoming, outgoing).split(outgoing)
        whole = torch.empty_like(x)
        for to, (each, shape) in enumerate(zip(came, shapes, strict=True)):
            whole[own_rows[to // across][:, None], of_grid[to % across]] = each.view(*shape, 4)
        return whole

    remote = x.nbytes - outgoing[rank] * 16
    most_rows = max(int((torch.arange(rows) // high % down == y).sum()) for y in range(down))
    capacity = most_rows * max(map(len, of_grid))
    return Case(x, {}, len(parts[0]) * columns, capacity, remote, there, back)


def pencils(sizes: Mapping[str, int], rank: int, ranks: int, device: torch.device) -> Case:
    """The first transpose of fft_pencil.fsc: two ranks in a column of the grid exchange."""
    nx, ny, nz = sizes["nx"], sizes["ny"], sizes["nz"]
    across = ranks // 2
    row, column = divmod(rank, across)
    heights = [len(part_of(ny, 2, each)) for each in range(2)]
    own, deep, line = heights[row], len(part_of(nz, across, column)), nx // 2
    x = torch.view_as_complex(torch.randn(deep, own, nx, 2, device=device))
    peers = [each % across == column for each in range(ranks)]
    outgoing = [deep * own * peer for peer in peers]
    incoming = [deep * heights[each // across] * peer for each, peer in enumerate(peers)]

    def there(x: Tensor) -> Tensor:
        sent = torch.view_as_real(x).view(deep, own, 2, line * 2).permute(2, 0, 1, 3).contiguous()
        came = moved(sent.view(-1, line * 2), outgoing, incoming)
        parts = came.split([deep * height for height in heights])
        parts = [part.view(deep, height, -1) for part, height in zip(parts, heights, strict=True)]
        return torch.cat(parts, 1)

    def back(y: Tensor) -> Tensor:
        parts = y.view(deep, ny, -1).split(heights, 1)
        sent = torch.cat([part.reshape(-1, line * 2) for part in parts])
        came = moved(sent, incoming, outgoing)
        return came.view(2, deep, own, line * 2).permute(1, 2, 0, 3).contiguous()

    deepest = len(part_of(nz, across, 0))
    return Case(x, {}, deepest * heights[0] * 2, deepest * ny, x.nbytes // 2, there, back)


def cut_anew(
    whole: Sequence[int],
    cuts: tuple[int, int],
    order: Sequence[int],
    line: int,
    rank: int,
    ranks: int,
    device: torch.device,
) -> Case:
    """An array of lines of bytes, ``whole`` of all ranks, that is cut into parts along dimension
    ``cuts[0]`` there and along ``cuts[1]`` then, and has its dimensions in another order then."""
    first, second = cuts
    had, gets = ([len(part_of(whole[cut], ranks, each)) for each in range(ranks)] for cut in cuts)
    mine = [had[rank] if at == first else size for at, size in enumerate(whole)]
    theirs = [gets[rank] if at == second else size for at, size in enumerate(whole)]
    came_as = [
        [had[each] if at == first else n for at, n in enumerate(theirs)] for each in range(ranks)
    ]
    x = random_bytes(*mine, line, device=device)
    outgoing = [math.prod(mine) // whole[second] * each for each in gets]
    incoming = [math.prod(each) for each in came_as]
    turned = [*order, len(whole)]
    turned_back = [turned.index(at) for at in range(len(turned))]

    def there(x: Tensor) -> Tensor:
        sent = torch.cat([part.reshape(-1, line // 4) for part in x.split(gets, second)])
        came = moved(sent, outgoing, incoming).split(incoming)
        y = x.new_empty([*(theirs[at] for at in order), line // 4])
        for to, part, size in zip(y.split(had, order.index(first)), came, came_as, strict=True):
            to.copy_(part.view(*size, -1).permute(turned))
        return y

    def back(y: Tensor) -> Tensor:
        parts = y.view(*(theirs[at] for at in order), -1).split(had, order.index(first))
        sent = torch.cat([part.permute(turned_back).reshape(-1, line // 4) for part in parts])
        came = moved(sent, incoming, outgoing).split(outgoing)
        returned = torch.empty_like(x)
        for to, part in zip(returned.split(gets, second), came, strict=True):
            to.copy_(part.view(to.shape))
        return returned

    most = math.prod(whole) // whole[first] * had[0], math.prod(whole) // whole[second] * gets[0]
    return Case(x, {}, *most, x.nbytes - outgoing[rank] * line, there, back)


def heads_of_sequences(sizes: Mapping[str, int], *where: Any) -> Case:
    """attention_heads.fsc: [batch, tokens, heads] by tokens, [heads, batch, tokens] by heads."""
    whole = [sizes[name] for name in ("batch", "tokens", "heads")]
    return cut_anew(whole, (1, 2), (2, 0, 1), sizes["width"] * 2, *where)


def sites_of_lattice(sizes: Mapping[str, int], *where: Any) -> Case:
    """lattice.fsc: [t, x, y, z] by t, and [x, z, t, y] by x, of 96 bytes each."""
    whole = [sizes[name] for name in ("nt", "nx", "ny", "nz")]
    return cut_anew(whole, (0, 1), (1, 3, 0, 2), 96, *where)


def unpacked(sizes: Mapping[str, int], rank: int, ranks: int, device: torch.device) -> Case:
    """Patches of whole pictures to their places in those of the ranks, which each get as many."""
    p, c, rows, columns = (sizes[name] for name in ("p", "c", "rows", "columns"))
    count, each = PICTURES, PICTURES // ranks
    x = torch.randint(256, (count * rows * columns, p, p, c), device=device).to(torch.uint8)
    number = torch.arange(len(x), device=device)
    picture = number // (rows * columns)
    places = [picture // each, rank * each + picture % each]
    places += [number // columns % rows, number % columns]

    def there(x: Tensor) -> Tensor:
        y = x.view(count, rows, columns, p, p * c).transpose(2, 3).contiguous()
        return exchanged(y.view(ranks, -1), ranks)

    def back(y: Tensor) -> Tensor:
        came = exchanged(y.view(ranks, -1), ranks)
        return came.view(count, rows, p, columns, p * c).transpose(2, 3).contiguous()

    inputs = {"places": torch.stack(places, 1), "images": count}
    remote = x.nbytes // ranks * (ranks - 1)
    lines = len(x) * p  # runs, which are what moves
    return Case(x, inputs, lines, lines, remote, there, back)


def texts(
    sizes: Mapping[str, int], rank: int, ranks: int, device: torch.device, count: int = TEXTS
) -> Case:
    """So many texts of random lengths to random buckets, token by token."""
    length = torch.randint(*LENGTHS, (count,), device=device)
    bucket = torch.randint(sizes["buckets"], (count,), device=device)
    tokens = int(length.sum())
    x = torch.randn(tokens, sizes["width"], device=device).bfloat16()

    def of_tokens() -> Tensor:
        return bucket.to(torch.uint8).repeat_interleave(length, output_size=tokens)

    room = count * LENGTHS[1]
    return bucketed(x, of_tokens, {"length": length, "bucket": bucket}, room, room, ranks)


PARTS = {
    "all_gather": gathered,
    "halo": haloed,
    "reshard": dealt_in_blocks,
    "fft_pencil": pencils,
    "attention_heads": heads_of_sequences,
    "lattice": sites_of_lattice,
    "vit_unpack": unpacked,
    "ragged_text": texts,
}
