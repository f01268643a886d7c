"""Machine code of Triton kernels in an artifact: made for a GPU that is not here, listed, and
loaded where it fits."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from triton.runtime.jit import JITFunction

import fuscoc
from fuscoc import ahead
from fuscoc.ahead import AheadError, Made, compile_ahead, compile_one
from fuscoc.artifact import MANIFEST
from fuscoc.cli import app
from fuscoc_runtime.engine.node.triton_program import TritonProgram
from fuscoc_runtime.errors import ArtifactError
from fuscoc_runtime.kernels import cuda, driver, machine_code, stored
from fuscoc_runtime.kernels.binaries import Binary, binary_of
from fuscoc_runtime.kernels.loader import Kernel, launching
from fuscoc_runtime.kernels.own import OWN
from fuscoc_runtime.kernels.stored import device_digest, kernel_of, own_kernel
from fuscoc_runtime.kernels.trace import Tracer
from fuscoc_runtime.kernels.traced import traced
from fuscoc_runtime.manifest.artifact import Artifact, load_artifact
from fuscoc_runtime.topology import Topology
from tests.altered import digest_anew
from tests.engine.test_without_c import KERNEL, Gpu
from tests.gpus import torchrun
from tests.specs import EXAMPLES, repeating

RUNTIME = Path(stored.__file__).parents[1]
ALL = {"of_ranks": ["moe_node_pack"], "refused": {"moe_send": "no such cast"}}


def named(name: str, arch: str) -> Binary:
    """Made-up machine code."""
    return Binary(f"{name} for {arch}".encode(), f"fn_{name}", 96, 16, name.startswith("moe"))


def compiled_as(
    monkeypatch: pytest.MonkeyPatch, out: Path, spec: str, *options: str, **beside: Any
) -> Result:
    """The command line, with compilers that make such code of all but what is ``beside`` it."""

    def make(archs: tuple[str, ...], kernels: Mapping[str, Any], with_own: bool) -> dict[str, Made]:
        own = [f"{module}.{name}" for module, name in OWN] if with_own else []
        left_out = [name for names in beside.values() for name in names]
        return {
            arch: Made(
                {name: named(name, arch) for name in kernels if name not in left_out},
                {name: named(name, arch) for name in own},
                **beside,
            )
            for arch in archs
        }

    monkeypatch.setattr(ahead, "compile_ahead", make)
    monkeypatch.setattr(cuda, "find_compiler", lambda: cuda.Compiler("nvcc", "13"))
    monkeypatch.setattr(cuda, "cubin", lambda text, arch: arch.encode())
    given = [str(EXAMPLES / f"{spec}.fsc"), "-o", str(out), *options]
    return CliRunner().invoke(app, ["compile", *given])


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """An H100 and its driver, on which Triton compiles and launches nothing."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(driver, "call", (pretended := Gpu()).call)
    monkeypatch.setattr(JITFunction, "run", forbidden)
    return pretended


def forbidden(*_: Any, **__: Any) -> None:
    raise AssertionError("Triton is asked")


def loaded(gpu: Gpu) -> list[bytes]:
    return [call[1] for call in gpu.calls if call[0] == "cuModuleLoadData"]


def altered(path: Path, **changes: Any) -> Artifact:
    """An artifact whose machine code is said to be another."""
    manifest = json.loads((path / MANIFEST).read_text())
    for each in manifest["cubins"]:
        each.update(changes)
    (path / MANIFEST).write_text(json.dumps(manifest))
    digest_anew(path)
    return load_artifact(path)


def test_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = "--cubin", "sm_90", "--cubin", "sm_100"
    done = compiled_as(monkeypatch, tmp_path / "moe", "moe", *options, **ALL)
    assert done.exit_code == 0, done.output
    for arch in ("sm_90", "sm_100"):
        assert f"no {arch} code of what is compiled for a number of ranks: moe_node_pack\n" in (
            done.output
        )
        assert f"no {arch} code of `moe_send`: no such cast\n" in done.output
    artifact = load_artifact(tmp_path / "moe")
    assert [each.arch for each in artifact.manifest.cubins] == ["sm_90", "sm_100"]
    for each in artifact.manifest.cubins:
        assert each.device == device_digest()
        assert each.kernels.keys() == artifact.kernels.keys() - {"moe_node_pack", "moe_send"}
        assert each.own.keys() == {f"{module}.{name}" for module, name in OWN}
        for name, cubin in {**each.kernels, **each.own}.items():
            binary = named(name, each.arch)
            assert artifact.code[cubin.file] == binary.code
            assert (cubin.symbol, cubin.threads) == (binary.symbol, 96)
            assert (cubin.shared_bytes, cubin.follows) == (16, name.startswith("moe"))
    assert (tmp_path / "moe/kernels/moe.sm_90/moe_node_count.cubin").is_file()
    assert (tmp_path / "moe/kernels/sm_100/hop.tell.cubin").is_file()


def test_without_it_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = fuscoc.compile(EXAMPLES / "moe.fsc", tmp_path / "plain")
    compiled_as(monkeypatch, tmp_path / "more", "moe", "--cubin", "sm_90")
    assert load_artifact(plain).manifest.cubins == ()
    files = {each.relative_to(plain) for each in plain.rglob("*") if each.is_file()}
    for name in files - {Path(MANIFEST), Path("SHA256SUMS")}:
        assert (plain / name).read_bytes() == (tmp_path / "more" / name).read_bytes()
    more = json.loads((tmp_path / "more" / MANIFEST).read_text())
    assert more.pop("cubins")
    for variant in more["shuffles"][0]["cuda"]["variants"]:
        variant["cubins"] = []
    assert json.loads((plain / MANIFEST).read_text()) == {**more, "cubins": []}


def test_damage_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_as(monkeypatch, tmp_path / "moe", "moe", "--cubin", "sm_90")
    for name in ("moe.sm_90/moe_node_count", "sm_90/refuse.refuse"):
        file = tmp_path / f"moe/kernels/{name}.cubin"
        whole = file.read_bytes()
        file.write_bytes(whole[:-1])
        with pytest.raises(ArtifactError, match=rf"{name}\.cubin: was altered"):
            load_artifact(tmp_path / "moe")
        file.write_bytes(whole)
    file.unlink()
    digest_anew(tmp_path / "moe")
    with pytest.raises(ArtifactError, match=r"names `kernels/sm_90/refuse\.refuse\.cubin`, which"):
        load_artifact(tmp_path / "moe")


@pytest.mark.parametrize("topology", [Topology(1, 2), Topology(2, 2)])
def test_opening_loads_it_and_compiles_nothing(
    topology: Topology, gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled_as(monkeypatch, tmp_path / "ulysses", "ulysses", "--cubin", "sm_90")
    artifact = load_artifact(tmp_path / "ulysses")
    shuffle = artifact.shuffle()
    assert shuffle.node is not None
    node = shuffle.node if topology.num_nodes == 1 else shuffle.node.between
    assert node is not None
    members: Any = SimpleNamespace(
        topology=topology, rank=1, device=torch.device("cuda", 1), tracer=None
    )
    program = TritonProgram(artifact, shuffle, node, members)
    names = [kernel.spec.name for kernel in program.kernels.values()]
    names += [] if program.relation is None else [program.relation.spec.name]
    wanted = {named(name, "sm_90").code for name in (*names, "refuse.refuse")}
    assert {*loaded(gpu)} == wanted
    code = program.kernels["dispatch" if topology.num_nodes == 1 else "forward"].machine_code()
    assert (code.function, code.threads, code.shared_bytes) == (KERNEL, 96, 16)
    assert len(loaded(gpu)) == len(wanted)


def test_it_is_taken_where_it_fits(
    gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled_as(monkeypatch, tmp_path / "moe", "moe", "--cubin", "sm_90")
    artifact, name = load_artifact(tmp_path / "moe"), "moe_node_exchange"
    found = kernel_of(artifact, name, interpreted=False)
    follows = found.machine_code().can_follow
    assert (loaded(gpu), follows) == ([named(name, "sm_90").code], True)
    tracer = Tracer(0, torch.device("cpu"), enabled=False)
    assert traced(found, tracer).binaries == found.binaries
    assert not own_kernel(artifact, "hop", "tell", ("a", "b"), interpreted=False).machine_code(
    ).can_follow  # fmt: skip
    assert loaded(gpu)[-1] == b"hop.tell for sm_90"
    for other in (
        kernel_of(artifact, name, interpreted=True),
        kernel_of(artifact, name, interpreted=False, room=16),
        own_kernel(artifact, "hop", "tell", ("a", "b"), interpreted=False, room=16),
        kernel_of(altered(tmp_path / "moe", device="other"), name, interpreted=False),
        own_kernel(load_artifact(tmp_path / "moe"), "hop", "tell", ("a", "b"), interpreted=False),
    ):
        assert not other.binaries
    for capability in ((9, 1), (8, 0), (10, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda each=capability: each)
        with pytest.raises(AssertionError, match="Triton is asked"):
            kernel_of(artifact, name, interpreted=False).machine_code()


def test_what_the_driver_refuses_is_compiled(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(name: str, *arguments: Any) -> None:
        if name == "cuModuleLoadData" and arguments[1] == b"newer":
            raise RuntimeError("cuModuleLoadData failed with CUDA error 222")
        gpu.call(name, *arguments)

    monkeypatch.setattr(driver, "call", refuse)
    made: Any = object()
    monkeypatch.setattr(Kernel, "compiled", lambda self: made)
    monkeypatch.setattr(
        machine_code.MachineCode, "compiled", lambda compiled, num_arguments: compiled
    )
    kernel = ahead.own_kernel("hop", "tell")
    newer = replace(kernel, binaries={"sm_90": Binary(b"newer", "tell", 32, 0, False)})
    assert newer.machine_code() is made
    assert "tell is compiled anew for sm_90: cuModuleLoadData failed" in caplog.text


def instructions(ptx: str) -> list[str]:
    """Without what tells where they come from."""
    code = re.split(r"^\s*\.section", ptx, maxsplit=1, flags=re.MULTILINE)[0]
    lines = [re.sub(r"//.*", "", line).strip() for line in code.splitlines()]
    return [
        each for each in lines if each and not re.match(r"\.(loc|file)\b|\$L__(tmp|func)", each)
    ]


def check_as_in_place(
    kernel: Kernel, work: ahead._Work, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is made for a GPU that is not here is what Triton compiles where there is one, byte by
    byte if that has no line numbers, and else of the same instructions of PTX."""

    def in_place(device: int) -> Any:
        """By a device whose number Triton has not met, and nothing from its cache."""
        monkeypatch.setenv("TRITON_CACHE_DIR", str(folder / f"cache{device}"))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: device)
        return kernel.compiled()

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder / "cache0"))
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    found, without_lines = compile_one(work), in_place(1)
    monkeypatch.delenv("TRITON_DISABLE_LINE_INFO")
    assert found == binary_of(without_lines, len(kernel.spec.args))
    plain = in_place(2)
    assert b".debug_line" in plain.asm["cubin"]
    assert instructions(plain.asm["ptx"]) == instructions(without_lines.asm["ptx"])
    as_usual = binary_of(plain, len(kernel.spec.args))
    assert replace(found, code=b"") == replace(as_usual, code=b"")


OTHERS = "relation", "send", "reduce_node", "node_count", "node_assign", "node_combine", "node_pack"
NIGHTLY = [pytest.param(f"moe_{each}", marks=pytest.mark.nightly) for each in OTHERS]


@pytest.mark.parametrize("name", ["moe_node_exchange", *NIGHTLY])
def test_it_is_what_triton_compiles_in_place(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = load_artifact(fuscoc.compile(EXAMPLES / "moe.fsc", tmp_path / "moe"))
    spec = artifact.kernels[name]
    work = ahead._Work(90, name, spec, artifact.code[spec.file])
    kernel = kernel_of(artifact, name, interpreted=False)
    check_as_in_place(kernel, work, tmp_path, monkeypatch)


def test_and_so_is_what_the_runtime_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = ahead.own_kernel("hop", "acknowledge")
    check_as_in_place(kernel, ahead._Work(90, "hop.acknowledge"), tmp_path, monkeypatch)


def test_no_code_of_a_number_of_ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever Triton's key of a kernel says of two numbers."""
    monkeypatch.setattr(Kernel, "compiled", forbidden)
    artifact = load_artifact(fuscoc.compile(EXAMPLES / "all_gather.fsc", tmp_path / "all_gather"))
    for name, spec in artifact.kernels.items():
        with launching(interpreted=False):
            keys = {
                kernel_of(artifact, name, interpreted=False, num_ranks=each).function.cache_key
                for each in (1, 2, 3, 5, 8, 64, 1000)
            }
        found = compile_one(ahead._Work(90, name, spec, artifact.code[spec.file]))
        assert found == (None if len(keys) > 1 else "Triton is asked"), name


def test_workers_compile_without_lines_and_die_loudly() -> None:
    """In processes of their own, for a GPU that Triton knows."""
    probe = {"one": (ahead.PROBE, ahead.PROBE_TEXT)}
    made = compile_ahead(("sm_90",), probe, with_own=False)["sm_90"]
    assert made.kernels.keys() == {"one"}
    assert made.kernels["one"].code.startswith(b"\x7fELF")
    assert b"debug_line" not in made.kernels["one"].code
    missing = {"one": (replace(ahead.PROBE, function="another"), ahead.PROBE_TEXT)}
    refused = compile_ahead(("sm_90",), missing, with_own=False)["sm_90"].refused
    assert refused["one"].endswith("nothing.py has no kernel another")
    with pytest.raises(AheadError, match=r"^sm_95: Triton cannot compile for it: .*sm_95"):
        compile_ahead(("sm_90", "sm_95"), probe, with_own=False)
    dying = b"import os\nprint('no memory', flush=True)\nos._exit(3)\n"
    with pytest.raises(AheadError, match="a process that ran Triton died: no memory"):
        compile_ahead(("sm_90",), {"one": (ahead.PROBE, dying)}, with_own=False)


def test_nothing_is_written_for_an_unknown_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: Any) -> None:
        raise AheadError("sm_95: Triton cannot compile for it: no such GPU")

    monkeypatch.setattr(ahead, "compile_ahead", refuse)
    monkeypatch.setattr(cuda, "cubin", lambda text, arch: arch.encode())
    monkeypatch.setattr(cuda, "find_compiler", lambda: cuda.Compiler("nvcc", "13"))
    given = [str(EXAMPLES / "moe.fsc"), "-o", str(tmp_path / "moe"), "--cubin", "sm_95"]
    done = CliRunner().invoke(app, ["compile", *given])
    assert (done.exit_code, list(tmp_path.iterdir())) == (1, [])
    assert done.output == "error: sm_95: Triton cannot compile for it: no such GPU\n"


def test_only_cuda_kernels_need_a_cuda_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def none() -> cuda.Compiler:
        raise cuda.CudaError(cuda.COMPILER_HINT)

    (tmp_path / "moe.fsc").write_text(repeating().source_file.text, encoding="utf-8")
    monkeypatch.setattr(ahead, "compile_ahead", lambda archs, *_: dict.fromkeys(archs, Made()))
    monkeypatch.setattr(cuda, "find_compiler", none)
    given = [str(tmp_path / "moe.fsc"), "-o", str(tmp_path / "moe"), "--cubin", "sm_90"]
    done = CliRunner().invoke(app, ["compile", *given])
    assert done.exit_code == 0, done.output
    assert load_artifact(tmp_path / "moe").manifest.cubins[0].kernels == {}


def test_the_digest_is_of_all_that_kernels_are_made_of() -> None:
    """Device functions take from the runtime what the digest has, and these files nothing more."""
    for file in [*(RUNTIME / "kernels/device").glob("*.py"), *map(RUNTIME.joinpath, stored.BESIDE)]:
        found = {
            node.module
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and "fuscoc" in (node.module or "")
        }
        of_runtime = {f"fuscoc_runtime.{each.removesuffix('.py')}" for each in stored.BESIDE}
        assert found <= {"fuscoc_runtime.kernels.device", *of_runtime}, file


def test_another_device_function_is_another_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/device").mkdir()
    texts = [*(RUNTIME / "kernels/device").glob("*.py"), *map(RUNTIME.joinpath, stored.BESIDE)]
    for text in texts:
        (tmp_path / text.relative_to(RUNTIME)).write_bytes(text.read_bytes())
    monkeypatch.setattr(stored, "__file__", str(tmp_path / "kernels/stored.py"))
    digests = {device_digest(), device_digest.__wrapped__()}
    assert len(digests) == 1
    for text in texts:
        file = tmp_path / text.relative_to(RUNTIME)
        file.write_bytes(whole := file.read_bytes()) and file.write_bytes(whole + b"#")
        digests.add(device_digest.__wrapped__())
        file.write_bytes(whole)
    assert len(digests) == len(texts) + 1


@pytest.mark.gpu(can_share=True)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_on_gpus_that_compile_nothing(num_ranks: int, tmp_path: Path) -> None:
    from tests.node_triton.stored_gpu_run import compile_all

    artifacts = compile_all(tmp_path)
    environment = {"TRITON_CACHE_DIR": str(tmp_path / "cache")}
    torchrun(num_ranks, "tests/node_triton/stored_gpu_run.py", *artifacts, environment=environment)
    assert not [each for each in tmp_path.rglob("*.cubin") if "cache" in each.parts]
