"""Opening artifacts: what is refused, and that the message names the file."""

from __future__ import annotations

import copy
import errno
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuscoc_runtime import load_artifact
from fuscoc_runtime.errors import ArtifactError
from fuscoc_runtime.manifest.artifact import SUMS
from fuscoc_runtime.manifest.declared import PackedTarget
from fuscoc_runtime.manifest.program import ExchangeStep, LaunchStep
from fuscoc_runtime.scalar import Extent, Index, Load
from tests.altered import digest_anew

ROOT = Path(__file__).parents[2]
KERNELS = "kernels/rows.py"
FIELD = {"name": "x", "dtype": "bf16", "shape": [16]}

MANIFEST: dict[str, Any] = {
    "schema": 18,
    "compiler": "0.1.0",
    "spec": {"file": "rows.fsc", "sha256": "00"},
    "shuffles": [
        {
            "name": "rows",
            "declared": {
                "constants": {"hidden": 16},
                "extents": ["tokens"],
                "inputs": [
                    {
                        "name": "idx",
                        "dtype": "i64",
                        "shape": [{"extent": "tokens"}, 2],
                        "role": "route",
                    }
                ],
                "domain": [
                    {"name": "t", "extent": {"extent": "tokens"}},
                    {"name": "k", "extent": 2},
                    {"name": "l", "extent": 3},
                ],
                "num_source_dims": 1,
                "segment": "row",
                "fields": [FIELD],
                "source": {
                    "layout": "by_token",
                    "fields": [FIELD],
                    "dims": [{"extent": "tokens"}],
                    "subscripts": [{"start": {"index": "t"}, "length": None}],
                },
                "target": {
                    "kind": "packed",
                    "layout": "by_key",
                    "key": {"load": "idx", "at": [{"index": "t"}, {"index": "k"}]},
                    "placed": {"load": "idx", "at": [{"index": "t"}, {"index": "k"}]},
                    "num_keys": 8,
                    "group": 1,
                    "padding": "fewest",
                    "most_padding": 0,
                    "align": 1,
                    "capacity": None,
                    "placement": {"kind": "block", "table": None},
                },
                "combine": {"kind": "sum", "weight": None},
            },
            "program": {
                "inputs": ["idx"],
                "numbers": [],
                "extents": ["tokens"],
                "fanout": 6,
                "every_rank": False,
                "relation": {
                    "kernel": "rows_relation",
                    "extents_kernel": None,
                    "block": 256,
                    "outputs": ["source", "src_offset", "rank", "key"],
                    "addresses": ["src_offset"],
                    "apart": False,
                },
                "target": {
                    "kind": "packed",
                    "num_keys": 8,
                    "group": 1,
                    "padding": "fewest",
                    "most_padding": 0,
                    "align": 1,
                    "capacity": None,
                    "compact": False,
                    "distinct": False,
                    "placement": {"kind": "block", "table": None},
                },
                "runs": [
                    {
                        "name": "x",
                        "dtype": "bf16",
                        "run_elems": 16,
                        "run_dims": [{"count": 2, "src_stride": "src_stride0", "dst_stride": 8}],
                        "seg_elems": 16,
                        "cell_elems": 16,
                        "unit_bytes": 16,
                        "copy_dtype": "i64",
                    }
                ],
                "buffers": {"source": [FIELD]},
                "dispatch": {
                    "lists": [
                        {
                            "name": "direct",
                            "builder": "source",
                            "per": "rank",
                            "columns": ["src_offset", "dst_peer", "dst_slot"],
                            "terms": [],
                        }
                    ],
                    "steps": [
                        {
                            "op": "launch",
                            "after": [],
                            "kernel": "rows_send",
                            "list": "direct",
                            "src": "source",
                            "dst": "target",
                            "bind": {"x_src": "source.x"},
                            "signal": 0,
                            "wait": [],
                        },
                        {
                            "op": "exchange",
                            "after": [],
                            "forwarder": "static",
                            "schedule": "pairwise",
                            "slice_bytes": 1024,
                        },
                    ],
                },
                "combine": None,
            },
            "baked": {},
        }
    ],
    "kernels": [
        {
            "name": name,
            "file": KERNELS,
            "function": name,
            "args": [{"name": "n", "kind": "scalar", "value": "num_points"}],
            "num_warps": 4,
            "emits": emits,
        }
        for name, emits in (("rows_relation", []), ("rows_send", ["signal"]))
    ],
    "cubins": [],
}


def write_artifact(root: Path, manifest: dict[str, Any]) -> Path:
    (root / "kernels").mkdir(parents=True)
    (root / KERNELS).write_text("# kernels\n")
    (root / "manifest.json").write_text(json.dumps(manifest))
    digest_anew(root)
    return root


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    return write_artifact(tmp_path / "rows", MANIFEST)


def test_loads(artifact: Path) -> None:
    loaded = load_artifact(artifact)
    shuffle = loaded.shuffle()
    assert shuffle is loaded.shuffle("rows")
    assert shuffle.program.fanout == 6
    assert shuffle.declared.domain[0].extent == Extent("tokens")
    assert isinstance(shuffle.declared.target, PackedTarget)
    assert shuffle.declared.target.key == Load("idx", (Index("t"), Index("k")))
    assert shuffle.program.dispatch.steps == (
        LaunchStep(
            "launch", (), "rows_send", "direct", "source", "target", {"x_src": "source.x"}, 0, ()
        ),
        ExchangeStep("exchange", (), "static", "pairwise", 1024),
    )
    assert shuffle.program.combine is None
    kernel = loaded.kernels["rows_send"]
    assert loaded.kernel_file(kernel) == artifact / KERNELS


def test_another_shuffle_is_named(artifact: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no shuffle `columns`; it holds rows"):
        load_artifact(artifact).shuffle("columns")


def test_no_artifact(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ArtifactError, match=r"has no manifest\.json") as caught:
            load_artifact(path)
        assert str(path) in str(caught.value)


def test_a_file_is_no_artifact(artifact: Path) -> None:
    with pytest.raises(ArtifactError, match="not an artifact"):
        load_artifact(artifact / "manifest.json")


def test_a_file_that_cannot_be_read(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path == artifact / KERNELS:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ArtifactError, match=r"kernels/rows\.py: cannot be read: Permission denied"):
        load_artifact(artifact)


def test_missing_file(artifact: Path) -> None:
    (artifact / KERNELS).unlink()
    with pytest.raises(ArtifactError, match=r"kernels/rows\.py: is missing"):
        load_artifact(artifact)


def test_no_digests(artifact: Path) -> None:
    (artifact / SUMS).unlink()
    with pytest.raises(ArtifactError, match="SHA256SUMS: is missing"):
        load_artifact(artifact)


@pytest.mark.parametrize("name", ["manifest.json", SUMS, KERNELS])
@given(st.data())
def test_any_other_byte(name: str, data: st.DataObject) -> None:
    """Also where the manifest still follows the schema, or says the same in another way."""
    with TemporaryDirectory() as folder:
        root = write_artifact(Path(folder) / "rows", MANIFEST)
        content = bytearray((root / name).read_bytes())
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= data.draw(st.integers(1, 255))
        (root / name).write_bytes(content)
        with pytest.raises(ArtifactError, match=r"was altered|is missing|outside the artifact"):
            load_artifact(root)


def test_digests_are_those_of_sha256sum(artifact: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", SUMS], cwd=artifact, check=True)


@pytest.mark.parametrize("text", ["", "{", '{"schema": 18', "[" * 100_000])
def test_a_manifest_that_is_none(artifact: Path, text: str) -> None:
    (artifact / "manifest.json").write_text(text)
    digest_anew(artifact)
    with pytest.raises(ArtifactError, match=r"manifest\.json: is not JSON"):
        load_artifact(artifact)


@pytest.mark.parametrize("schema", [0, 1, 2, 3, "1", None])
def test_other_schema(tmp_path: Path, schema: Any) -> None:
    root = write_artifact(tmp_path / "other", {**MANIFEST, "schema": schema})
    told = rf"has schema {schema}; this runtime reads schema 18"
    with pytest.raises(ArtifactError, match=told):
        load_artifact(root)
    (root / SUMS).unlink()  # which earlier ones did not have
    with pytest.raises(ArtifactError, match=told):
        load_artifact(root)


@pytest.mark.parametrize("name", ["../secret", "/etc/hosts"])
def test_files_outside_the_artifact(artifact: Path, name: str) -> None:
    with (artifact / SUMS).open("a") as file:
        file.write(f"{64 * '0'}  {name}\n")
    with pytest.raises(ArtifactError, match=f"lists `{name}`, which is outside the artifact"):
        load_artifact(artifact)


@pytest.mark.parametrize("name", ["manifest.json", SUMS, "kernels", KERNELS])
def test_links_out_of_the_artifact(artifact: Path, name: str) -> None:
    """Even to what has the right content."""
    inside, outside = artifact / name, artifact.parent / "outside"
    inside.rename(outside)
    inside.symlink_to(outside)
    with pytest.raises(ArtifactError, match=rf"{name}: is a symbolic link"):
        load_artifact(artifact)


def test_a_link_to_the_artifact(artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(artifact)
    assert load_artifact(tmp_path / "current").shuffle().name == "rows"


def test_what_was_checked_is_kept(artifact: Path) -> None:
    """Its files are not read again: whoever changes them now comes too late."""
    sums = (artifact / SUMS).read_bytes()
    loaded = load_artifact(artifact)
    (artifact / KERNELS).write_text("# others\n")
    (artifact / "manifest.json").write_text("{}")
    assert loaded.code == {KERNELS: b"# kernels\n"}
    assert loaded.digest == hashlib.sha256(sums).hexdigest()


def change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Set (or with ``...`` delete) the value at a dotted path."""

    def apply(manifest: dict[str, Any]) -> None:
        *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
        node: Any = manifest
        for key in parents:
            node = node[key]
        if value is ...:
            del node[last]
        else:
            node[last] = value

    return apply


NODE = {
    "kernels": {"count": "rows_node_count"},
    "tile_sources": 8,
    "padded_keys": 8,
    "key_block": 8,
    "partial_bytes": 4,
    "places_results": False,
    "tile": {"row_parts": 1},
}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("shuffles.0.declared.segment", ..., r"\.declared: missing key `segment`"),
        ("shuffles.0.colour", 1, r"shuffles\[0\]: unknown key `colour`"),
        ("shuffles.0.declared.num_source_dims", "1", r"\.num_source_dims: expected int"),
        ("shuffles.0.declared.target.kind", "sparse", r"declared\.target: unexpected"),
        (
            "shuffles.0.declared.target.num_keys",
            True,
            r"target\.num_keys: expected int, found True",
        ),
        ("shuffles.0.declared.target.key", {"load": "idx"}, r"target\.key: .* is not a scalar"),
        ("shuffles.0.declared.target.capacity", "max", r"target\.capacity: unexpected 'max'"),
        ("shuffles.0.declared.combine.kind", "mean", r"'mean' is none of 'copy', 'sum', 'max'"),
        ("shuffles.0.declared.constants.hidden", None, r"hidden: expected int, found None"),
        ("shuffles.0.program.target.compact", 0, r"program\.target\.compact: expected bool"),
        ("shuffles.0.program.dispatch.lists.0.per", "rack", r"per: 'rack' is none of 'point', "),
        ("shuffles.0.program.dispatch.steps.1.forwarder", 1, r"forwarder: unexpected 1"),
        ("shuffles.0.program.dispatch.steps.1.op", "jump", r"dispatch\.steps\[1\]: unexpected"),
        ("shuffles.0.program.dispatch.steps.0.wait", 1, r"steps\[0\]\.wait: expected list"),
        ("shuffles.0.program.dispatch.steps.0.kernel", "gone", r"has no kernel `gone`"),
        ("shuffles.0.program.relation.kernel", "gone", r"has no kernel `gone`"),
        ("shuffles.0.program.relation.extents_kernel", "gone", r"has no kernel `gone`"),
        (
            "kernels.0.file",
            "kernels/other.py",
            r"names `kernels/other\.py`, which SHA256SUMS",
        ),
        ("kernels", [], r"has no kernel `rows_send`"),
        ("shuffles.0.node", NODE, r"has no kernel `rows_node_count`"),
    ],
)
def test_manifest_that_breaks_the_schema(
    tmp_path: Path, path: str, value: Any, message: str
) -> None:
    manifest = copy.deepcopy(MANIFEST)
    change(path, value)(manifest)
    root = write_artifact(tmp_path / "broken", manifest)
    with pytest.raises(ArtifactError, match=message) as caught:
        load_artifact(root)
    assert "manifest.json" in str(caught.value)


DISPATCH = "shuffles.0.program.dispatch"
STEPS = MANIFEST["shuffles"][0]["program"]["dispatch"]["steps"]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (f"{DISPATCH}.steps.1", ..., "a path without exactly one exchange"),
        (f"{DISPATCH}.steps", [*STEPS, STEPS[1]], "a path without exactly one exchange"),
        (f"{DISPATCH}.steps.0.after", [1], "a step 0 after a step that does not come before it"),
        (f"{DISPATCH}.steps.1.after", [0, 1], "a step 1 after a step that does not come before"),
        (f"{DISPATCH}.steps.1.after", [-1], "a step 1 after a step that does not come before it"),
        (f"{DISPATCH}.steps.0.list", "gone", "no list `gone`"),
        (f"{DISPATCH}.lists", [], "no list `direct`"),
        (f"{DISPATCH}.steps.0.wait", [3], "a step `direct` that waits for what nobody sends"),
        (f"{DISPATCH}.steps.0.signal", None, "a step `direct` whose kernel signals or waits other"),
        (f"{DISPATCH}.steps.0.wait", [0], "a step `direct` whose kernel signals or waits otherw"),
        ("kernels.1.emits", [], "a step `direct` whose kernel signals or waits otherwise"),
        ("kernels.1.emits", ["wait"], "a step `direct` whose kernel signals or waits otherwise"),
        (
            "kernels.1.emits",
            ["signal", "wait"],
            "a step `direct` whose kernel signals or waits otherwise",
        ),
        (
            "shuffles.0.program.combine",
            {"lists": [], "steps": []},
            "a path without exactly one exchange",
        ),
    ],
)
def test_paths_that_cannot_be_executed(tmp_path: Path, path: str, value: Any, message: str) -> None:
    manifest = copy.deepcopy(MANIFEST)
    change(path, value)(manifest)
    root = write_artifact(tmp_path / "broken", manifest)
    with pytest.raises(ArtifactError, match=rf"manifest\.json: has in `rows` {message}"):
        load_artifact(root)


def test_a_path_orders_its_steps(tmp_path: Path) -> None:
    manifest = copy.deepcopy(MANIFEST)
    change(f"{DISPATCH}.steps.1.after", [0])(manifest)
    root = write_artifact(tmp_path / "ordered", manifest)
    assert load_artifact(root).shuffle().program.dispatch.steps[1].after == (0,)


def test_opening_needs_no_torch(artifact: Path) -> None:
    code = (
        "import sys; from fuscoc_runtime import load_artifact; "
        f"load_artifact({str(artifact)!r}); "
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT / "runtime",
    ).stdout.split()
    assert "fuscoc_runtime" in loaded
    assert not {"torch", "triton", "numpy", "fuscoc", "lark", "torch_mlir"} & set(loaded)
