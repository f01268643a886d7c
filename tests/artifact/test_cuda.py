"""CUDA kernels in an artifact: their files, their manifest entry, and machine code on demand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from fuscoc import ahead
from fuscoc.ahead import Made
from fuscoc.artifact import MANIFEST, artifact_files, write_artifact
from fuscoc.cli import app
from fuscoc.lang.checked import CheckedShuffle
from fuscoc.manifest import Assembler, CompiledShuffle
from fuscoc.pipeline import compile_to_ir
from fuscoc_runtime.engine.node.cuda import node_program
from fuscoc_runtime.errors import ArtifactError
from fuscoc_runtime.kernels import cuda
from fuscoc_runtime.manifest.artifact import load_artifact
from fuscoc_runtime.manifest.decode import decode
from fuscoc_runtime.manifest.schema import CudaSpec, Manifest
from tests.altered import digest_anew
from tests.artifact.test_manifest import compiled
from tests.specs import EXAMPLES, moe, repeating


def with_cubins(checked: CheckedShuffle, assembler: Assembler) -> dict[str, bytes]:
    lowered = compile_to_ir(checked)
    item = CompiledShuffle(checked, lowered.module, lowered.dumps)
    return artifact_files(checked.source_file, [item], assembler=assembler)


def test_manifest_entry_reads_back() -> None:
    files = compiled(moe())
    (shuffle,) = decode(Manifest, json.loads(files[MANIFEST])).shuffles
    assert isinstance(shuffle.cuda, CudaSpec)
    assert shuffle.cuda_note is None
    assert shuffle.cuda.inputs == ("topk_idx",)
    assert shuffle.cuda.weighted
    assert shuffle.cuda.row_bytes == (14336,)
    assert [variant.arch for variant in shuffle.cuda.variants] == ["sm_90", "sm_80"]
    for variant in shuffle.cuda.variants:
        assert variant.launches["moe_dispatch"].shared_bytes <= variant.shared_bytes
        assert variant.launches["moe_dispatch"].threads == 32 * variant.tile["dispatch_warps"]
        assert variant.cubins == ()
        assert variant.file in files


def test_no_kernels_and_why() -> None:
    files = compiled(repeating())
    (shuffle,) = decode(Manifest, json.loads(files[MANIFEST])).shuffles
    assert shuffle.cuda is None
    assert shuffle.cuda_note == (
        "it says `dedup(none)`, and these kernels send a segment to a rank once"
    )
    assert not any(name.endswith(".cu") for name in files)


def test_cubins_are_listed_with_their_headers(tmp_path: Path) -> None:
    made = []

    def assemble(text: str, arch: str) -> bytes:
        made.append((arch, "dispatch_warps" in text))
        return f"{arch} machine code".encode()

    assembler = Assembler(("sm_80", "sm_90", "sm_100"), "digest", assemble)
    path = write_artifact(tmp_path / "moe", with_cubins(moe(), assembler))
    (shuffle,) = load_artifact(path).manifest.shuffles
    assert shuffle.cuda is not None
    listed = {
        variant.arch: [(cubin.arch, cubin.headers) for cubin in variant.cubins]
        for variant in shuffle.cuda.variants
    }
    assert listed == {
        "sm_90": [("sm_90", "digest"), ("sm_100", "digest")],
        "sm_80": [("sm_80", "digest")],
    }
    assert [arch for arch, _ in made] == ["sm_80", "sm_90", "sm_100"]
    (path / "kernels/moe.sm_90.cubin").write_bytes(b"altered")
    with pytest.raises(ArtifactError, match=r"sm_90\.cubin: was altered"):
        load_artifact(path)
    (path / "kernels/moe.sm_90.cubin").unlink()
    digest_anew(path)
    with pytest.raises(ArtifactError, match=r"names `kernels/moe\.sm_90\.cubin`, which SHA256SUMS"):
        load_artifact(path)


def test_a_program_takes_machine_code_of_its_own_headers_only(tmp_path: Path) -> None:
    for headers, used in ((cuda.headers_digest(), {"sm_90": b"code"}), ("other", {})):
        assembler = Assembler(("sm_90",), headers, lambda text, arch: b"code")
        path = write_artifact(tmp_path / "moe", with_cubins(moe(), assembler))
        artifact = load_artifact(path)
        for changed in (path / "kernels").iterdir():  # after it was checked
            changed.write_bytes(b"another")
        shuffle = artifact.shuffle()
        assert shuffle.cuda is not None
        program = node_program(artifact, shuffle, shuffle.cuda.variants[0])
        assert program.cubins == used
        assert program.text.startswith("// Shuffle `moe` in moe.fsc")
        assert (program.fanout, program.num_keys, program.weighted) == (8, 256, True)
        assert program.teams == shuffle.cuda.variants[0].tile["teams"]


@pytest.mark.parametrize("arch", [pytest.param("sm_80", marks=pytest.mark.nightly), "sm_90"])
def test_every_text_of_an_artifact_compiles(arch: str) -> None:
    try:
        cuda.find_compiler()
    except cuda.CudaError as error:
        pytest.skip(str(error))
    several = replace(moe(hidden=1001, num_topk=3, placement="cyclic"), combine=None)
    for checked in (moe(), several):
        files = compiled(checked)
        name = "kernels/moe.cu" if arch == "sm_90" else "kernels/moe.sm_80.cu"
        code = cuda.cubin(files[name].decode(), arch)
        assert code.startswith(b"\x7fELF")


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "find_compiler", lambda: cuda.Compiler("nvcc", "13"))
    monkeypatch.setattr(cuda, "cubin", lambda text, arch: arch.encode())
    monkeypatch.setattr(ahead, "compile_ahead", lambda archs, *_: dict.fromkeys(archs, Made()))
    out, runner = tmp_path / "moe", CliRunner()
    spec = str(EXAMPLES / "moe.fsc")
    done = runner.invoke(app, ["compile", spec, "-o", str(out), "--cubin", "sm_90"])
    assert done.exit_code == 0, done.output
    assert (out / "kernels/moe.sm_90.cubin").read_bytes() == b"sm_90"
    repeats = tmp_path / "repeating.fsc"
    repeats.write_text(repeating().source_file.text, encoding="utf-8")
    done = runner.invoke(app, ["compile", str(repeats), "-o", str(out), "--cubin", "sm_90"])
    assert "no CUDA kernels for `moe`: it says `dedup(none)`" in done.output
    done = runner.invoke(app, ["compile", spec, "-o", str(out), "--cubin", "sm_75"])
    assert done.exit_code == 2


def test_architecture_that_the_compiler_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reject(text: str, arch: str) -> bytes:
        raise cuda.CudaError("nvcc rejects the generated kernels")

    monkeypatch.setattr(cuda, "find_compiler", lambda: cuda.Compiler("nvcc", "13"))
    monkeypatch.setattr(cuda, "cubin", reject)
    spec, out = str(EXAMPLES / "moe.fsc"), tmp_path / "moe"
    done = CliRunner().invoke(app, ["compile", spec, "-o", str(out), "--cubin", "sm_999"])
    assert (done.exit_code, out.exists()) == (1, False)
    assert done.output.startswith("error: sm_999: nvcc rejects")


def test_command_line_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> cuda.Compiler:
        raise cuda.CudaError(cuda.COMPILER_HINT)

    monkeypatch.setattr(cuda, "find_compiler", none)
    spec = str(EXAMPLES / "moe.fsc")
    done = CliRunner().invoke(app, ["compile", spec, "-o", str(tmp_path / "a"), "--cubin", "sm_90"])
    assert done.exit_code == 2
    assert "need a compiler" in done.output
