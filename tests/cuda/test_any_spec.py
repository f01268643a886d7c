"""Any spec of the language through the CUDA kernels, thread by thread on the host."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fuscoc
from fuscoc.capabilities import CUDA, find_fault
from fuscoc.diagnostics import CompileError
from fuscoc.lang.check import check
from fuscoc.source import as_source
from fuscoc.testing import Spec, routings
from fuscoc.testing.routing import with_sources
from fuscoc.testing.texts import texts
from fuscoc_runtime.engine.node.state import Trouble
from fuscoc_runtime.manifest.artifact import load_artifact
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.topology import Topology
from tests.cuda import dense_node
from tests.cuda.emulation.ranks import emulated_ranks, synchronize

TOPOLOGIES = [Topology(1, num_ranks) for num_ranks in (1, 2, 3)]
HOST = torch.device("cpu")


def insisting(text: str) -> str:
    """On CUDA's kernels."""
    return re.sub("(  dispatch .*)", r"\1 backend cuda", text)


def has_kernels(text: str) -> bool:
    try:
        [shuffle] = check(as_source(text))
    except CompileError:
        return False  # one that insists, and cannot
    return find_fault(shuffle, CUDA) is None


def check_call(path: Path, ranks: list[RankData]) -> list[str]:
    """A dispatch and a combine of one rank."""
    dense, wrong = dense_node.Dense(path, [ranks], HOST, spare=1), list[str]()
    batch = dense.batch(ranks)
    dense.wipe()
    dense_node.dist.barrier()
    handle = dense.dispatch(batch)
    synchronize()
    if count := int(dense.wrong_rows(batch, handle)):
        wrong.append(f"{count} rows")
    if batch.worked is not None and (
        count := int(dense.wrong_result(batch, dense.combine(batch, handle)))
    ):
        wrong.append(f"{count} elements of the result")
    return wrong + ([str(dense.troubles())] if dense.troubles() != Trouble() else [])


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("arch", [80, 90])
@given(data=st.data())
@settings(max_examples=100, deadline=None, print_blob=True)
def test_any_spec(arch: int, data: st.DataObject) -> None:
    topology = data.draw(st.sampled_from(TOPOLOGIES))
    insists = data.draw(st.booleans())  # as of what computes `auto` takes Triton's
    text = data.draw(texts(topology).map(insisting if insists else str).filter(has_kernels))
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setenv("FUSCOC_CUDA_ARCH", f"sm_{arch}")
        path = fuscoc.compile(text, Path(folder) / "artifact")
        spec = Spec(text, load_artifact(path).shuffle())
        ranks = with_sources(spec.shuffle, data.draw(routings(spec, topology)))
        with emulated_ranks(topology.num_ranks, arch) as world:
            assert world.run(lambda: check_call(path, ranks)) == []
