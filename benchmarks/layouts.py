"""Layouts that are no rows of experts: fuscoc beside torch, on the GPUs of one node.

    python -m benchmarks.layouts --compile
    torchrun --nproc-per-node 2 -m benchmarks.layouts

``--compile`` writes artifacts into ``build/layouts`` and needs no GPU; ``--backend`` says whose
kernels. A case is moved there and back by fuscoc and by torch (permute, all-to-all, permute; for
buckets it sorts), in turn, and every result is compared bit by bit, in memory that was poisoned
before. Time is that of the GPU between events behind a barrier, the largest over the ranks, the
median of the turns. It holds the checks of slots, and both barriers of fuscoc. The bound is that of
the bytes which leave the rank that most leave, at 355 GB/s; on one GPU, where none do, and where
next to none do, a copy of all bytes by the driver, measured in the same run.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.layout_case import Case, bucketed, exchanged, moved, random_bytes
from benchmarks.layout_parts import PARTS
from benchmarks.nvlink_timing import Barrier
from fuscoc_runtime import Shuffle

FOLDER = Path("build/layouts")
FOLDERS = Path(__file__).parents[1] / "examples", Path(__file__).parent  # that have specs
NVLINK = 355e9  # bytes a second out of a GPU
HIDE_LAUNCH_CYCLES = 6_000_000  # the host takes 2 ms where sizes are evaluated by many launches
ULYSSES = {"tokens": 65536, "heads": 32, "width": 128, "block": 64}
SPECS: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "ulysses": ("ulysses", ULYSSES),
    "ulysses_64MB": ("ulysses", {**ULYSSES, "tokens": 16384}),
    "ulysses_4MB": ("ulysses", {**ULYSSES, "tokens": 1024}),
    "ulysses_1MB": ("ulysses", {**ULYSSES, "tokens": 256}),
    "fft": ("fft_transpose", {"nx": 256, "ny": 512, "nz": 512}),
    "redistribute": ("redistribute", {"rows": 262144, "columns": 512}),
    "redistribute_odd": ("redistribute", {"rows": 262140, "columns": 509}),
    "vit": ("vit_patches", {}),
    "vit_nchw": ("vit_patches_nchw", {}),
    "vit_normalised": ("vit_patches_normalised", {}),
    "kv": ("kv_pages", {}),
    "kv_whole": ("kv_pages", {}),
    "kv_cache": ("kv_cache", {}),
    "all_gather": ("all_gather", {"total": 65536, "width": 1024}),
    "halo": ("halo", {"rows": 65536, "reach": 2, "width": 1024}),
    "reshard": ("reshard", {"rows": 5001, "columns": 1667, "high": 32, "wide": 8}),
    "fft_pencil": ("fft_pencil", {"nx": 512, "ny": 511, "nz": 256}),
    "attention_heads": (
        "attention_heads",
        {"batch": 3, "tokens": 28001, "heads": 33, "width": 96},
    ),
    "lattice": ("lattice", {"nt": 129, "nx": 33, "ny": 31, "nz": 41}),
    "vit_unpack": ("vit_unpack", {"p": 14, "c": 3, "rows": 74, "columns": 74}),
    "ragged_text": ("ragged_text", {"width": 1024, "buckets": 64}),
    "buckets_512": ("hash_buckets", {"width": 128}),
    "buckets_64": ("hash_buckets", {"width": 16}),
    "buckets_16": ("hash_buckets", {"width": 4}),
}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # as in that example
LOOKUPS = {"buckets_512": 1 << 18, "buckets_64": 1 << 22, "buckets_16": 1 << 22}  # of a rank
BUCKETS = 64
PAGES, MOVES = 160, 128  # of a rank's cache, and of those that it gives away


def compile_all(names: Sequence[str], backends: Sequence[str]) -> None:
    import fuscoc

    for name, backend in product(names, backends):
        example, constants = SPECS[name]
        (path,) = (path for at in FOLDERS if (path := at / f"{example}.fsc").exists())
        text = path.read_text(encoding="utf-8")
        text = text[: text.index("\n}\n") + 3]  # its first shuffle
        last = "  combine" if "  combine" in text else "}"
        before, _, after = text.rpartition(last)
        text = f"{before}    backend {backend}\n{last}{after}"
        fuscoc.compile(text, artifact(name, backend), **constants)


def artifact(name: str, backend: str) -> Path:
    return FOLDER / f"{name}-{backend}"


def of_case(name: str, rank: int, ranks: int, device: torch.device) -> Case:
    torch.manual_seed(17 + rank)
    make = {
        "vit": pictures,
        "vit_nchw": planes,
        "vit_normalised": normalised,
        "kv": pages,
        "kv_whole": whole_cache,
        "kv_cache": kept_pages,
    }
    if name in make:
        return make[name](rank, ranks, device)
    constants = SPECS[name][1]
    if name in PARTS:
        return PARTS[name](constants, rank, ranks, device)
    if name in LOOKUPS:
        return hashed(LOOKUPS[name], constants["width"] * 4, rank, ranks, device)
    if SPECS[name][0] == "redistribute":
        return dealt(constants["rows"], constants["columns"], ranks, device)
    if name == "fft":
        line = constants["nx"] * 8
        return transposed(constants["nz"], constants["ny"], line, 1, ranks, device)
    line = constants["width"] * 2
    return transposed(
        constants["tokens"], constants["heads"], line, constants["block"], ranks, device
    )


def transposed(
    outer: int, inner: int, line: int, block: int, ranks: int, device: torch.device
) -> Case:
    """[outer / ranks, inner] lines of bytes, of which all of some of the inner index are wanted."""
    own, part = outer // ranks, inner // ranks
    x = random_bytes(own, inner, line, device=device)

    def there(x: Tensor) -> Tensor:
        sent = x.view(own, ranks, part, -1).permute(1, 2, 0, 3).contiguous()
        came = exchanged(sent, ranks)
        return came if ranks == 1 else came.permute(1, 0, 2, 3).contiguous()

    def back(y: Tensor) -> Tensor:
        y = y.view(part, ranks, own, -1)
        sent = y if ranks == 1 else y.permute(1, 0, 2, 3).contiguous()
        came = exchanged(sent.view(ranks, part, own, -1), ranks)
        return came.permute(2, 0, 1, 3).contiguous()

    remote = x.nbytes // ranks * (ranks - 1)
    return Case(x, {}, own // block * inner, part * (outer // block), remote, there, back)


def dealt(rows: int, columns: int, ranks: int, device: torch.device) -> Case:
    own = rows // ranks
    x = random_bytes(own, columns * 4, device=device)

    def there(x: Tensor) -> Tensor:
        return exchanged(x.view(own // ranks, ranks, -1).transpose(0, 1).contiguous(), ranks)

    def back(y: Tensor) -> Tensor:
        return exchanged(y.view(ranks, own // ranks, -1), ranks).transpose(0, 1).contiguous()

    return Case(x, {}, own, own, x.nbytes // ranks * (ranks - 1), there, back)


def pictures(rank: int, ranks: int, device: torch.device, count: int = 64) -> Case:
    """Pictures of one size, whole to ranks of their own; slots in the order of ranks, pictures."""
    side, patch = 1036, 14
    grid = side // patch
    x = torch.randint(256, (count * side * side, 3), dtype=torch.uint8, device=device)
    generator = torch.Generator().manual_seed(5)
    owners = torch.randint(ranks, (ranks, count), generator=generator)
    place = torch.empty(ranks, count, dtype=torch.int64)
    for owner in range(ranks):
        here = (owners == owner).flatten()
        place.view(-1)[here] = torch.arange(int(here.sum())) * grid * grid
    packing = torch.stack([owners[rank], place[rank]], 1).to(device)
    lengths = [int((owners == owner).sum()) * grid * grid for owner in range(ranks)]
    order = owners[rank].argsort(stable=True).to(device)
    sent = [int((owners[rank] == owner).sum()) for owner in range(ranks)]
    received = [int((owners[source] == rank).sum()) for source in range(ranks)]
    bytes_of = 3 * side * side

    def there(x: Tensor) -> Tensor:
        y = x.view(count, grid, patch, grid, patch * 3)[order].transpose(2, 3).contiguous()
        return moved(y.view(-1, bytes_of), sent, received)

    def back(y: Tensor) -> Tensor:
        came = moved(y.view(-1, bytes_of), received, sent)
        came = came.view(count, grid, grid, patch, patch * 3)
        return torch.empty_like(came).index_copy_(0, order, came).transpose(2, 3).contiguous()

    inputs = {
        "height": torch.full((count,), side, device=device),
        "width": torch.full((count,), side, device=device),
        "packing": packing,
        "length": lengths[rank],
    }
    remote = (count - sent[rank]) * bytes_of
    return Case(x, inputs, count * grid * grid, max(lengths), remote, there, back)


def planes(rank: int, ranks: int, device: torch.device) -> Case:
    """The same pictures channel by channel; patches are pixel by pixel."""
    case = pictures(rank, ranks, device)
    count, side, patch, grid = 64, 1036, 14, 74

    def there(x: Tensor) -> Tensor:
        return case.there(x.view(count, 3, side, side).permute(0, 2, 3, 1).contiguous())

    def back(y: Tensor) -> Tensor:
        assert case.back is not None
        x = case.back(y).view(count, grid, patch, grid, patch, 3)
        return x.permute(0, 5, 1, 2, 3, 4).contiguous()

    return replace(case, source=case.source.view(-1), there=there, back=back)


def normalised(rank: int, ranks: int, device: torch.device) -> Case:
    """The same planes, as normalised bf16. torch sends bytes and normalises what has come; fuscoc
    sends what arrives, twice as many bytes."""
    case = planes(rank, ranks, device)
    shift = torch.tensor([255 * mean for mean in MEAN], device=device)
    factor = torch.tensor([1 / (255 * std) for std in STD], device=device)

    def there(x: Tensor) -> Tensor:
        return case.there(x).view(-1, 3).sub(shift).mul_(factor).bfloat16()

    return replace(case, num_remote=2 * case.num_remote, there=there, back=None)


def whole_cache(rank: int, ranks: int, device: torch.device) -> Case:
    """All pages of a cache, so that what comes back is a whole one."""
    return pages(rank, ranks, device, MOVES)


def pages(
    rank: int, ranks: int, device: torch.device, num_pages: int = PAGES, moves: int = MOVES
) -> Case:
    """Pages of a cache, each in all layers, dealt out to the ranks; others come back as 0."""
    layers, line = 32, 65536
    cache = random_bytes(layers, num_pages, line, device=device)
    source = torch.randperm(num_pages, device=device)[:moves]
    to = torch.arange(moves, device=device) * ranks // moves
    slot = torch.arange(moves, device=device) - to * (moves // ranks) + rank * (moves // ranks)

    def there(cache: Tensor) -> Tensor:
        return exchanged(cache[:, source].transpose(0, 1).contiguous(), ranks)

    def back(rows: Tensor) -> Tensor:
        came = exchanged(rows, ranks).view(moves, layers, -1)
        made = torch.zeros_like(cache) if num_pages > moves else torch.empty_like(cache)
        made[:, source] = came.transpose(0, 1)
        return made

    inputs = {
        "source_page": source,
        "destination": torch.stack([to, slot], 1),
        "slots": moves,
    }
    remote = moves * layers * line // ranks * (ranks - 1)
    returned = torch.zeros_like(cache)
    returned[:, source] = cache[:, source]
    return Case(cache, inputs, num_pages, moves, remote, there, back, returned)


def kept_pages(rank: int, ranks: int, device: torch.device) -> Case:
    """The same pages, into those of another cache that a block table names; torch scatters them."""
    case = pages(rank, ranks, device)
    layers, moves = len(case.source), MOVES
    ours, theirs = (torch.zeros_like(case.source[:, :moves]) for _ in range(2))
    table = torch.randperm(moves, device=device)

    def there(cache: Tensor) -> Tensor:
        theirs[:, table] = case.there(cache).view(moves, layers, -1).transpose(0, 1)
        return theirs

    inputs = {name: each for name, each in case.inputs.items() if name != "slots"}
    inputs |= {
        "block_table": table,
        "cache": ours.view(torch.bfloat16).view(layers, moves, 16, 2, 8, 128),
    }
    return replace(case, inputs=inputs, there=there, back=None)


def hashed(lookups: int, row: int, rank: int, ranks: int, device: torch.device) -> Case:
    """Rows of ``row`` bytes to the buckets of random ids."""
    x = random_bytes(lookups, row, device=device)
    ids = torch.randint(1 << 40, (lookups,), device=device)

    def bucket() -> Tensor:
        return ((ids * 31 + 7) % BUCKETS).to(torch.uint8)

    return bucketed(x, bucket, {"ids": ids}, lookups, lookups + lookups // 8, ranks)


def shaped(tensor: Tensor, shuffle: Shuffle, source: bool) -> Tensor:
    """Bytes as a field of a shuffle: its dtype, and any first dimensions."""
    from fuscoc_runtime.dtypes import TORCH_DTYPES

    (field,) = shuffle.spec.program.buffers["source" if source else "target"]
    shape = shuffle.spec.declared.source.fields[0].shape if source else field.shape
    return flat(tensor).view(TORCH_DTYPES[field.dtype]).view(-1, *shape)


def flat(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def given(name: str, case: Case, shuffle: Shuffle) -> Tensor:
    """The source of a case, as a dispatch takes it."""
    of_lines = "fft", "kv", "kv_whole", "kv_cache", "attention_heads", "lattice"
    if name in (*PARTS, "vit", "vit_nchw", "vit_normalised") and name not in of_lines:
        return case.source
    x = shaped(case.source, shuffle, True)
    if name in of_lines:
        return x.view(*case.source.shape[:-1], *x.shape[1:])
    return x.view(*case.source.shape[:2], -1) if name.startswith("ulysses") else x


def measure(
    name: str,
    backend: str,
    num_sms: int | None,
    turns: int,
    barrier: Barrier,
    keeps: int = 0,
) -> list[str]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", torch.cuda.current_device())
    case = of_case(name, rank, ranks, device)
    options = {} if num_sms is None else {"num_sms": num_sms}
    with Shuffle(
        artifact(name, backend),
        group=dist.group.WORLD,
        max_sources=case.max_sources,
        capacity=case.capacity,
        **options,
    ) as shuffle:
        x = given(name, case, shuffle)
        state = {}

        def dispatch() -> None:
            state["rows"], state["handle"] = shuffle.dispatch(x, **case.inputs)

        def combine() -> None:
            state["back"] = shuffle.combine(state["work"], state["handle"])

        def torch_there() -> None:
            state["torch rows"] = case.there(case.source)

        def torch_back() -> None:
            state["torch back"] = case.back(state["torch rows"])

        calls = {"there": dispatch, "torch there": torch_there}
        torch_there()
        wanted, wrong = flat(state["torch rows"]), list[str]()
        for _ in range(3):  # the last one has the memory of the first, and what that has left there
            for window in shuffle.engine.node.rows:  # poisoned
                window.view(torch.uint8).fill_(0xA5)
            dispatch()
            shuffle.check()
            rows = flat(state["rows"])
            if not torch.equal(rows[case.begin : case.begin + len(wanted)], wanted):
                wrong.append(f"{name}: rows differ")
        if case.back is not None:
            calls |= {"back": combine, "torch back": torch_back}
            state["work"] = state["rows"].clone()
            combine()
            shuffle.check()
            returned = flat(x if case.returned is None else case.returned)
            if not torch.equal(flat(state["back"]), returned):
                wrong.append(f"{name}: what came back differs")
            torch_back()
            if not torch.equal(flat(state["torch back"]), returned):
                wrong.append(f"{name}: what came back by torch differs")
        if ranks == 1 or case.stays:
            copied = torch.empty_like(rows)
            calls["bound"] = lambda: copied.copy_(rows)
        kept = [combine() or state["back"] for _ in range(keeps)]  # as a program may hold on to
        times = gpu_times(calls, turns, barrier)
        bound = times.pop("bound", most_of_ranks(case.num_remote) / NVLINK * 1e6)
        assert shuffle.backend == backend
        sms = "all" if num_sms is None else str(num_sms)
        sms += f", {keeps} kept" if keeps else ""
        cells = [name, backend, sms, f"{bound:.1f}"]
        for key in ("there", "back"):
            if key in times:
                cells += [
                    f"{times[key]:.1f}",
                    f"{times[key] / bound:.2f}",
                    f"{times['torch ' + key]:.1f}",
                ]
            else:
                cells += ["", "", ""]
        if rank == 0:
            print("| " + " | ".join(cells) + " |", *wrong, flush=True)
        state.clear()
        kept.clear()
        return wrong


def most_of_ranks(number: int) -> int:
    most = torch.tensor(number, device="cuda")
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return int(most)


def gpu_times(
    calls: Mapping[str, Callable[[], object]],
    turns: int,
    barrier: Barrier,
    hidden: int = HIDE_LAUNCH_CYCLES,
) -> dict[str, float]:
    """Medians in us; a call is enqueued within so many cycles, or its host is not ``hidden``."""
    marks = {name: [] for name in calls}
    for _ in range(turns + 3):
        for name, call in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(hidden)
            barrier()
            begin.record()
            call()
            end.record()
            marks[name].append((begin, end))
    torch.cuda.synchronize()
    own = torch.tensor(
        [[b.elapsed_time(e) * 1e3 for b, e in pairs[3:]] for pairs in marks.values()], device="cuda"
    )
    dist.all_reduce(own, op=dist.ReduceOp.MAX)
    return {name: statistics.median(row) for name, row in zip(marks, own.tolist(), strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--cases", nargs="+", default=list(SPECS), choices=list(SPECS))
    parser.add_argument("--sms", nargs="+", type=int, default=[0, 32, 16], help="0: all")
    parser.add_argument("--backend", nargs="+", default=["cuda"], choices=["cuda", "triton"])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--keeps", type=int, default=0, help="results that are kept meanwhile")
    options = parser.parse_args()
    if options.compile:
        compile_all(options.cases, options.backend)
        return
    import os

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    barrier = Barrier(torch.device("cuda"))
    if dist.get_rank() == 0:
        print("| case | kernels | SMs | bound, µs | there | × | torch | back | × | torch |")
        print("|---|---|---|---|---|---|---|---|---|---|")
    wrong = []
    for name, backend in product(options.cases, options.backend):
        for sms in options.sms:
            wrong += measure(name, backend, sms or None, options.turns, barrier, options.keeps)
            torch.cuda.empty_cache()
    dist.destroy_process_group()
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
