"""Generated CUDA text compiles for every supported GPU, without a GPU, to the code we mean."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.moe_cases import Model, program
from fuscoc.codegen.cuda_tiles import PIECE_STATIC_SHARED, STATIC_SHARED, TURN_STATIC_SHARED
from fuscoc.lang.check import check
from fuscoc.source import SourceFile
from fuscoc_runtime.engine.node.call import Call
from fuscoc_runtime.errors import OptionError
from fuscoc_runtime.files import cache_folder
from fuscoc_runtime.kernels import cuda
from tests.cuda.dense_cases import CASES, GIVEN
from tests.cuda.edges import COPIED, LARGEST, SORTED, taking_back
from tests.cuda.models import MODELS
from tests.specs import checked_example, cuda_of, moe

RESERVED_SHARED = {"sm_80": 0, "sm_90": 1024, "sm_100": 1024}
"""Bytes of every CTA that are the system's, beside those that a kernel may have."""


DENSE = ("fft_transpose", "kv_pages", "redistribute", "ulysses", "vit_patches")


def disassembler() -> str:
    """cuobjdump of the system, or the one that Triton's package carries."""
    if found := shutil.which("cuobjdump"):
        return found
    triton = find_spec("triton")
    if triton is not None and triton.origin is not None:
        carried = Path(triton.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        if carried.exists():
            return str(carried)
    pytest.skip("no cuobjdump: install the CUDA toolkit or triton")


@pytest.fixture(scope="module")
def cache() -> Path:
    """That of the whole run: every text is compiled once."""
    try:
        cuda.find_compiler()
    except cuda.CudaError as error:
        pytest.skip(str(error))
    return cache_folder()


def dump(code: bytes, folder: Path, flag: str) -> str:
    path = folder / "kernels.cubin"
    path.write_bytes(code)
    command = [disassembler(), flag, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def usage(code: bytes, arch: str, folder: Path) -> tuple[dict[str, str], dict[str, int]]:
    """Bytes of the stack, and static ones of shared memory, of every kernel."""
    text = dump(code, folder, "--dump-resource-usage")
    found = re.findall(r"Function (\w+):\s+REG:\d+ STACK:(\d+) SHARED:(\d+)", text)
    shared = {kernel: int(size) - RESERVED_SHARED[arch] for kernel, _, size in found}
    return {kernel: stack for kernel, stack, _ in found}, shared


@pytest.mark.parametrize(
    ("model", "arch"),
    [
        # By day every fourth model is compiled, for one of the two in turn: each takes seconds.
        pytest.param(model, arch, marks=[] if number % 8 == 4 * turn else [pytest.mark.nightly])
        for number, model in enumerate(MODELS)
        for turn, arch in enumerate(("sm_80", "sm_90"))
    ],
    ids=str,
)
def test_compiles_without_spills(model: Model, arch: str, cache: Path, tmp_path: Path) -> None:
    printed = program(model)
    stacks, shared = usage(cuda.cubin(printed.text, arch, cache), arch, tmp_path)
    kernels = {"dispatch", "refuse"}
    kernels |= set() if printed.sorts else {"plan", "staged"}
    kernels |= {"combine"} if model.sums else set()
    assert set(stacks) == {f"moe_{kernel}" for kernel in kernels}
    assert set(stacks.values()) == {"0"}
    shared.pop("moe_combine", None)
    assert max(shared.values()) <= STATIC_SHARED, "tiles fill the rest"


COMPILED = ("ulysses", "sm_90")
"""By day: the other ones take the compiler long."""


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        pytest.param(name, arch, marks=marks)
        for name in DENSE
        for arch in ("sm_80", "sm_90", "sm_100")
        for marks in [[] if (name, arch) == COMPILED else [pytest.mark.nightly]]
    ],
)
def test_given_slots_compile(name: str, arch: str, cache: Path, tmp_path: Path) -> None:
    variant = cuda_of(checked_example(name)).variant(arch)
    assert variant is not None
    stacks, shared = usage(cuda.cubin(variant.source.text, arch, cache), arch, tmp_path)
    assert set(stacks) == set(variant.source.launches)
    stacks.pop(f"{name}_plan")  # which sorts loops, in memory of its own
    assert max(map(int, stacks.values())) <= 128, "a warp keeps its place, and few numbers more"
    turned = name == "vit_patches"
    assert max(shared.values()) <= (TURN_STATIC_SHARED if turned else PIECE_STATIC_SHARED)


BULK = {("ld", "bulk"): 1, ("st", "bulk"): 2}
"""Items through shared memory: their runs by one copy each, and those of items that lie in one run
or in several."""
TURNED = {("ld", "bulk"): 2, ("st", "bulk"): 1, ("st", 2): 1}
"""Runs of patches begin at any even address: whole lines around them come by bulk copies, and the
ends of patches that cut a line are stored by two bytes."""


def lines(count: int) -> dict[tuple[str, str | int], int]:
    """So many lines of 16 bytes that a thread reads, and then writes."""
    return {("ld", 16): count, ("st", 16): count}


MOVES: dict[str, dict[str, dict[tuple[str, str | int], int]]] = {
    "ulysses": {"dispatch": lines(16), "dispatch_few": BULK | lines(16), "combine": lines(8)},
    "fft_transpose": {
        "dispatch": BULK,
        "dispatch_few": BULK | lines(32),
        "combine": BULK | lines(8),
    },
    "redistribute": {
        "dispatch": BULK,
        "dispatch_few": BULK | lines(32),
        "combine": BULK | lines(8),
    },
    "kv_pages": {"dispatch": BULK, "combine": BULK | lines(8)},
    "vit_patches": {"dispatch": TURNED, "combine": TURNED},
}
"""What moves rows in kernels of pieces: instructions by what they do, and by the bytes of one."""


def moves(ptx: str) -> Counter[tuple[str, str | int]]:
    """The bulk copies, and accesses to memory that any thread may see, of a kernel. Those of four
    and eight bytes are left out where they are no plain stores: so boxes, tables and flags are
    read, and flags are set."""
    found: Counter[tuple[str, str | int]] = Counter()
    for to in re.findall(r"\bcp\.async\.bulk\.(global|shared)", ptx):
        found["st" if to == "global" else "ld", "bulk"] += 1
    access = r"\b(ld|st)((?:\.[a-zA-Z]\w*(?:::\w+)?)*?)(?:\.v(\d))?\.[bsuf](\d+)\s"
    for kind, how, count, bits in re.findall(access, ptx):
        width = int(count or 1) * int(bits) // 8
        plain = kind == "st" and not re.search(r"volatile|relaxed|release", how)
        if not re.search(r"param|shared|local", how) and (width not in (4, 8) or plain):
            found[kind, width] += 1
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("name", DENSE)
def test_pieces_move_sixteen_bytes_or_more_at_once(name: str, cache: Path) -> None:
    """Counted in PTX. A dispatch ends with words of its state, one more if inputs decide, and how
    many boxes it has told; nothing else is stored by less than a line."""
    variant = cuda_of(checked_example(name)).variant("sm_90")
    assert variant is not None
    looks_up = "looks_up = true" in variant.source.text
    text = cuda.cubin(variant.source.text, "compute_90", cache).decode()
    kernels = dict(re.findall(r"(?s)\.entry (\w+)\((.*?)\n}", text))
    for role, expected in MOVES[name].items():
        words = {("st", 4): 3 + looks_up, ("st", 8): 1} if role.startswith("dispatch") else {}
        assert moves(kernels[f"{name}_{role}"]) == expected | words, role


@pytest.mark.nightly
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", sorted(CASES.keys() - set(GIVEN)))
def test_any_segments_compile_without_spills(
    name: str, arch: str, cache: Path, tmp_path: Path
) -> None:
    source = CASES[name].source
    assert isinstance(source, str)
    (checked,) = check(SourceFile("case.fsc", source))
    variant = cuda_of(checked).variant(arch)
    assert variant is not None
    stacks, _ = usage(cuda.cubin(variant.source.text, arch, cache), arch, tmp_path)
    assert set(stacks) == set(variant.source.launches)
    assert set(stacks.values()) == {"0"}


@pytest.mark.parametrize(
    ("model", "arch"),
    [
        pytest.param(model, arch, marks=marks)
        for model in (*COPIED, *SORTED[1:])
        for arch in ("sm_80", "sm_90", "sm_100")
        for marks in [[] if model in COPIED[::4] and arch == "sm_90" else [pytest.mark.nightly]]
    ],
    ids=str,
)
def test_copies_compile_without_spills(
    model: Model, arch: str, cache: Path, tmp_path: Path
) -> None:
    stacks, _ = usage(cuda.cubin(taking_back(model, "copy").text, arch, cache), arch, tmp_path)
    assert set(stacks.values()) == {"0"}


def test_maxima_compile(cache: Path) -> None:
    assert cuda.cubin(taking_back(LARGEST, "max").text, "sm_90", cache)


def moe_text() -> str:
    """The code of ``Model()``, under a head that `tests/artifact/test_cuda.py` compiles, too."""
    variant = cuda_of(moe()).variant("sm_90")
    assert variant is not None
    return variant.source.text


def test_rows_of_16_byte_units_move_by_bulk_copies(cache: Path, tmp_path: Path) -> None:
    hopper = dump(cuda.cubin(moe_text(), "sm_90", cache), tmp_path, "--dump-sass")
    ampere = dump(cuda.cubin(program(Model()).text, "sm_80", cache), tmp_path, "--dump-sass")
    assert "UBLKCP.S.G" in hopper, "no bulk load into shared memory"
    assert "UBLKCP.G.S" in hopper, "no bulk store from shared memory"
    assert "UBLKCP" not in ampere
    odd = program(next(model for model in MODELS if model.hidden % 2)).text
    assert "UBLKCP" not in dump(cuda.cubin(odd, "sm_90", cache), tmp_path, "--dump-sass")


@pytest.mark.parametrize(
    ("named", "arch"), [("", "sm_90"), ("sm_90", "sm_90"), ("sm_80", "compute_80")]
)
def test_the_gpu_whose_kernels_run(named: str, arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cuda.ARCH_VARIABLE, named)
    assert cuda.kernels_arch((9, 0)) == arch


@pytest.mark.parametrize("named", ["sm_100", "sm_75", "80", "sm_9a", "sm_090", "hopper"])
def test_no_such_gpu(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cuda.ARCH_VARIABLE, named)
    message = f"`FUSCOC_CUDA_ARCH` is `{named}`; it must be from sm_80 to sm_90"
    with pytest.raises(OptionError, match=re.escape(message)):
        cuda.kernels_arch((9, 0))


def test_an_older_gpus_kernels_are_ptx(cache: Path) -> None:
    code = cuda.cubin(program(Model(hidden=512, experts=8, topk=2)).text, "compute_80", cache)
    assert b".target sm_80" in code
    assert b"cp.async.bulk" not in code
    assert code.endswith(b"\0"), "what the driver reads as text ends so"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(moe_text, id="expanded"),
        pytest.param(
            lambda: program(Model(compact=True)).text, id="compact", marks=pytest.mark.nightly
        ),
    ],
)
def test_a_flag_is_stored_after_a_system_fence(
    text: Callable[[], str], cache: Path, tmp_path: Path
) -> None:
    sass = dump(cuda.cubin(text(), "sm_90", cache), tmp_path, "--dump-sass")
    dispatch = sass.split("Function : moe_dispatch")[1].split("Function :")[0]
    fences = [m.start() for m in re.finditer(r"MEMBAR\.(ALL|SC)\.SYS", dispatch)]
    flags = [m.start() for m in re.finditer(r"ST(G)?\.E\.STRONG\.SYS ", dispatch)]
    assert flags
    assert all(any(fence < flag for fence in fences) for flag in flags)


def test_call_structure_matches_the_header(cache: Path) -> None:
    if cuda.find_compiler().kind == "nvrtc":
        pytest.skip("NVRTC has no offsetof: put an nvcc on the PATH, and leave out cuda-bindings")
    lines = [f"static_assert(sizeof(fuscoc::Call) == {ctypes.sizeof(Call)});"]
    for name, *_ in Call._fields_:
        offset = getattr(Call, name).offset
        lines.append(f"static_assert(__builtin_offsetof(fuscoc::Call, {name}) == {offset});")
    text = '#include "call.cuh"\n' + "\n".join(lines) + '\nextern "C" __global__ void none() {}\n'
    cuda.cubin(text, "sm_90", cache)


def test_no_lambda_takes_anything() -> None:
    """NVRTC takes a generic lambda for a function of the host, and nvcc does not."""
    for header in cuda.INCLUDE.glob("*.cuh"):
        assert not re.search(r"\]\s*\([^()]*\bauto\b", header.read_text()), header.name


@pytest.mark.usefixtures("cache")
def test_rejected_text_carries_the_compilers_words(tmp_path: Path) -> None:
    with pytest.raises(cuda.CudaError, match="nonsense"):
        cuda.cubin("nonsense", "sm_90", tmp_path)
    assert not list(tmp_path.glob("cubin/*"))


@pytest.mark.usefixtures("cache")
def test_cache_is_shared_and_keyed_by_content(tmp_path: Path) -> None:
    text = 'extern "C" __global__ void none(int* at) { *at = %d; }'
    with ThreadPoolExecutor(4) as pool:
        codes = list(pool.map(lambda _: cuda.cubin(text % 1, "sm_90", tmp_path), range(4)))
    assert len(set(codes)) == 1
    assert len(list((tmp_path / "cubin").iterdir())) == 1
    assert cuda.cubin(text % 2, "sm_90", tmp_path) != codes[0]
    assert len(list((tmp_path / "cubin").iterdir())) == 2
    stored = next(iter((tmp_path / "cubin").iterdir()))
    assert stored.suffix == ".cubin"


def test_text_is_deterministic() -> None:
    assert program(Model()).text == program(Model()).text
