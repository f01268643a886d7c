"""Opening an artifact: the directory that the compiler wrote, checked before it is trusted.

``SHA256SUMS`` lists every other file with its digest, so an artifact that was edited, cut short or
written by another schema is refused, never run. What is executed are the very bytes that were
checked: files are read once.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from fuscoc_runtime.errors import ArtifactError
from fuscoc_runtime.manifest.decode import DecodeError, decode
from fuscoc_runtime.manifest.program import PathSpec
from fuscoc_runtime.manifest.schema import KernelSpec, Manifest, ShuffleSpec

SCHEMA = 18
MANIFEST = "manifest.json"
SUMS = "SHA256SUMS"
MISSING = "is missing: compile it again"
ALTERED = "was altered after it was compiled: compile it again"
NO_ARTIFACT = f"not an artifact: it has no {MANIFEST} (write one with `fuscoc compile`)"


@dataclass(frozen=True)
class Artifact:
    """A checked artifact directory.

    Attributes:
        digest: of the list of digests, and so of everything.
        code: the content of every file that holds kernels, by its name in the manifest.
    """

    path: Path
    manifest: Manifest
    digest: str
    kernels: Mapping[str, KernelSpec]
    code: Mapping[str, bytes]

    def shuffle(self, name: str | None = None) -> ShuffleSpec:
        """The shuffle of that name; the name may be left out when there is only one.

        Raises:
            ArtifactError: there is none of that name, or several and no name.
        """
        shuffles = {shuffle.name: shuffle for shuffle in self.manifest.shuffles}
        if name is None and len(shuffles) == 1:
            return next(iter(shuffles.values()))
        if name not in shuffles:
            wanted = "no shuffle was named" if name is None else f"there is no shuffle `{name}`"
            raise ArtifactError(str(self.path), f"{wanted}; it holds {', '.join(shuffles)}")
        return shuffles[name]

    def kernel_file(self, kernel: KernelSpec) -> Path:
        """The module that defines ``kernel``."""
        return self.path / kernel.file


def load_artifact(path: str | Path) -> Artifact:
    """Read and check the artifact directory ``path``.

    Raises:
        ArtifactError: not an artifact, another schema version, or a file that is missing, altered
            or cannot be read; the message names it.
    """
    root = Path(path)
    try:
        sums = _read(root, SUMS)
        if sums is None:
            raise _without_sums(root)
        files = {
            name: _read_checked(root, name, digest)
            for name, digest in _digests(root / SUMS, sums).items()
        }
    except OSError as error:
        raise ArtifactError(str(error.filename), f"cannot be read: {error.strerror}") from error
    manifest = _decode_manifest(root / MANIFEST, files[MANIFEST])
    kernels = {kernel.name: kernel for kernel in manifest.kernels}
    _check_references(root, manifest, kernels, files)
    code = {name: files[name] for name in _files_of_kernels(manifest)}
    return Artifact(root, manifest, hashlib.sha256(sums).hexdigest(), kernels, code)


def _without_sums(root: Path) -> ArtifactError:
    """What is wrong with a directory that has no list of digests. Another schema is said first:
    earlier ones had none."""
    content = _read(root, MANIFEST)
    if content is None:
        return ArtifactError(str(root), NO_ARTIFACT)
    _decode_manifest(root / MANIFEST, content)
    return ArtifactError(str(root / SUMS), MISSING)


def _decode_manifest(file: Path, content: bytes) -> Manifest:
    try:
        value: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(str(file), f"is not JSON: {error}") from error
    schema = value.get("schema") if isinstance(value, dict) else None
    if schema != SCHEMA:
        raise ArtifactError(
            str(file), f"has schema {schema}; this runtime reads schema {SCHEMA}: compile it again"
        )
    try:
        return decode(Manifest, value)
    except DecodeError as error:
        raise ArtifactError(str(file), f"does not follow schema {SCHEMA}: {error}") from error


def _digests(file: Path, content: bytes) -> dict[str, str]:
    """The digests of files by their names, from what ``sha256sum`` writes."""
    lines = content.decode(errors="replace").removesuffix("\n").split("\n")
    found = [re.fullmatch(r"([0-9a-f]{64})  (.+)", line) for line in lines]
    digests = {each[2]: each[1] for each in found if each}
    if None in found or MANIFEST not in digests:
        raise ArtifactError(str(file), ALTERED)
    return digests


def _read_checked(root: Path, name: str, digest: str) -> bytes:
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise ArtifactError(str(root / SUMS), f"lists `{name}`, which is outside the artifact")
    content = _read(root, name)
    if content is None:
        raise ArtifactError(str(root / name), MISSING)
    if hashlib.sha256(content).hexdigest() != digest:
        raise ArtifactError(str(root / name), ALTERED)
    return content


def _read(root: Path, name: str) -> bytes | None:
    """The content of a file of the artifact; ``None`` if there is no such file."""
    file = root / name
    inside = [root.joinpath(*file.parts[: n + 1]) for n in range(len(root.parts), len(file.parts))]
    for path in inside:
        if path.is_symlink():
            raise ArtifactError(
                str(path), "is a symbolic link, which leads out of the artifact: copy by `cp -L`"
            )
    return file.read_bytes() if file.is_file() else None


def _files_of_kernels(manifest: Manifest) -> set[str]:
    names = {kernel.file for kernel in manifest.kernels}
    names |= {file for cubins in manifest.cubins for file in cubins.files}
    for shuffle in manifest.parts:
        for variant in shuffle.cuda.variants if shuffle.cuda is not None else ():
            names |= {variant.file, *(cubin.file for cubin in variant.cubins)}
    return names


def _check_references(
    root: Path, manifest: Manifest, kernels: Mapping[str, KernelSpec], files: Collection[str]
) -> None:
    """Every kernel that a shuffle names exists; every file that is named has a known sha256."""
    machine_code = (file for cubins in manifest.cubins for file in cubins.files)
    for file in (*(kernel.file for kernel in manifest.kernels), *machine_code):
        if file not in files:
            raise ArtifactError(str(root / MANIFEST), _undigested(file))
    for shuffle in manifest.parts:
        variants = shuffle.cuda.variants if shuffle.cuda is not None else ()
        cubins = (cubin.file for variant in variants for cubin in variant.cubins)
        for file in (*shuffle.baked.values(), *(v.file for v in variants), *cubins):
            if file not in files:
                raise ArtifactError(str(root / MANIFEST), _undigested(file))
        launched = [step.kernel for step in shuffle.program.launches]
        extents = shuffle.program.relation.extents_kernel
        optional = [] if extents is None else [extents]
        optional += [] if shuffle.into is None else [shuffle.into.kernel]
        node = shuffle.node.all_kernels if shuffle.node is not None else ()
        for name in (*launched, shuffle.program.relation.kernel, *optional, *node):
            if name not in kernels:
                raise ArtifactError(str(root / MANIFEST), f"has no kernel `{name}`")
        for path in (shuffle.program.dispatch, shuffle.program.combine):
            if path is not None and (problem := _problem_of_path(path, kernels)):
                raise ArtifactError(str(root / MANIFEST), f"has in `{shuffle.name}` {problem}")


def _undigested(file: str) -> str:
    return f"names `{file}`, which {SUMS} does not list"


def _problem_of_path(path: PathSpec, kernels: Mapping[str, KernelSpec]) -> str | None:
    """What keeps a path from being executed."""
    if [step.op for step in path.steps].count("exchange") != 1:
        return "a path without exactly one exchange"
    lists, signals = {each.name for each in path.lists}, {each.signal for each in path.launches}
    for number, step in enumerate(path.steps):
        if any(before not in range(number) for before in step.after):
            return f"a step {number} after a step that does not come before it"
    for step in path.launches:
        if step.list not in lists:
            return f"no list `{step.list}`"
        if not signals.issuperset(step.wait):
            return f"a step `{step.list}` that waits for what nobody sends"
        emits = [
            kind
            for kind, does in (("signal", step.signal is not None), ("wait", step.wait))
            if does
        ]
        if emits != [*kernels[step.kernel].emits]:
            return f"a step `{step.list}` whose kernel signals or waits otherwise"
    return None
