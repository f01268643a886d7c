"""``fuscoc compile --cubin``: machine code of an artifact's kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

if TYPE_CHECKING:
    from fuscoc.ahead import Made
    from fuscoc.manifest import Assembler
    from fuscoc_runtime.kernels.binaries import Binary


def assembler(archs: Sequence[str]) -> Assembler | None:
    """Makes what ``--cubin`` asks for; None if it asks for nothing."""
    if not archs:
        return None
    from fuscoc.manifest import Assembler
    from fuscoc_runtime.kernels import cuda

    for arch in archs:
        number = arch.removeprefix("sm_")
        is_number = number != arch and number.isascii() and number.isdecimal()
        if not is_number or int(number) < 80:
            raise click.BadParameter(f"`{arch}` is not sm_80 or later", param_hint="--cubin")
    wanted = tuple(dict.fromkeys(archs))

    def add_triton(manifest: dict[str, Any], texts: Mapping[str, str]) -> dict[str, bytes]:
        return _add_triton(wanted, manifest, texts)

    return Assembler(wanted, cuda.headers_digest(), _assemble, add_triton)


def _assemble(text: str, arch: str) -> bytes:
    from fuscoc_runtime.kernels import cuda

    try:
        cuda.find_compiler()
    except cuda.CudaError as error:
        raise click.BadParameter(str(error), param_hint="--cubin") from None
    try:
        return cuda.cubin(text, arch)
    except cuda.CudaError as error:  # such as of an architecture that the compiler lacks
        click.echo(f"error: {arch}: {error}", err=True)
        raise Exit(1) from None


def _add_triton(
    archs: Sequence[str], manifest: dict[str, Any], texts: Mapping[str, str]
) -> dict[str, bytes]:
    """Enter machine code of the Triton kernels into a manifest; its files. Those of the runtime,
    too, if a shuffle has kernels of one node, beside which they are launched."""
    from fuscoc.ahead import AheadError, compile_ahead
    from fuscoc_runtime.kernels.stored import device_digest
    from fuscoc_runtime.manifest.decode import decode
    from fuscoc_runtime.manifest.schema import KernelSpec

    specs = [decode(KernelSpec, entry) for entry in manifest["kernels"]]
    kernels = {spec.name: (spec, texts[spec.file].encode()) for spec in specs}
    shuffles = [part for each in manifest["shuffles"] for part in (each, each["reply"]) if part]
    with_own = any(shuffle["node"] is not None for shuffle in shuffles)
    try:
        made = compile_ahead(archs, kernels, with_own)
    except AheadError as error:
        click.echo(f"error: {error}", err=True)
        raise Exit(1) from None
    files: dict[str, bytes] = {}
    for arch, each in made.items():
        folders = {spec.name: f"kernels/{_stem(spec.file)}.{arch}" for spec in specs}
        own = dict.fromkeys(each.own, f"kernels/{arch}")
        manifest["cubins"].append(
            {
                "arch": arch,
                "device": device_digest(),
                "kernels": _entries(each.kernels, folders, files),
                "own": _entries(each.own, own, files),
            }
        )
        _tell(arch, each)
    return files


def _stem(file: str) -> str:
    """The shuffle whose kernels a file has."""
    return PurePosixPath(file).name.split(".")[0]


def _entries(
    binaries: Mapping[str, Binary], folders: Mapping[str, str], files: dict[str, bytes]
) -> dict[str, Any]:
    """What a manifest says of machine code, which is added to ``files``."""
    entries = {}
    for name, binary in binaries.items():
        file = f"{folders[name]}/{name}.cubin"
        files[file] = binary.code
        entries[name] = {
            "file": file,
            "symbol": binary.symbol,
            "threads": binary.threads,
            "shared_bytes": binary.shared_bytes,
            "follows": binary.can_follow,
        }
    return entries


def _tell(arch: str, made: Made) -> None:
    """Say which kernels have no machine code, and are compiled where they are loaded."""
    if made.of_ranks:
        names = ", ".join(sorted(made.of_ranks))
        click.echo(f"no {arch} code of what is compiled for a number of ranks: {names}", err=True)
    for name, why in made.refused.items():
        click.echo(f"no {arch} code of `{name}`: {why}", err=True)


def tell_missing(artifact: Path) -> None:
    """Say why shuffles of an artifact have no CUDA machine code."""
    from fuscoc_runtime import load_artifact

    for shuffle in load_artifact(artifact).manifest.shuffles:
        if shuffle.cuda is None:
            click.echo(f"no CUDA kernels for `{shuffle.name}`: {shuffle.cuda_note}", err=True)
