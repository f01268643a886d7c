"""Calls between nodes on real GPUs; each case is a torchrun."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuscoc_runtime.topology import Topology
from tests.gpus import need_gpus, torchrun
from tests.node_exact import models as exact
from tests.rails import exact_gpu_run, exact_pieces_gpu_run, given_gpu_run
from tests.rails.models import compile_all

HOSTS = {"one host": ["--one-host"], "hosts": []}
every_topology = pytest.mark.parametrize("topology", ["2x1", "2x2", "4x1"])
on_hosts = pytest.mark.parametrize("hosts", HOSTS)


def run(script: str, topology: str, hosts: str, *artifacts: str | Path) -> None:
    options = ["--topology", topology, *HOSTS[hosts]]
    torchrun(Topology.parse(topology).num_ranks, script, *options, *artifacts)


@pytest.mark.gpu
@every_topology
@on_hosts
def test_models(topology: str, hosts: str, tmp_path: Path) -> None:
    need_gpus(Topology.parse(topology).num_ranks)
    run("tests/rails/gpu_run.py", topology, hosts, *compile_all(tmp_path))


@pytest.mark.gpu
@every_topology
@on_hosts
def test_given_slots(topology: str, hosts: str, tmp_path: Path) -> None:
    need_gpus(Topology.parse(topology).num_ranks)
    given_gpu_run.compile_all(tmp_path)
    run("tests/rails/given_gpu_run.py", topology, hosts, tmp_path)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("topology", "policy"), [("2x2", "balance rebalance"), ("4x1", "balance none schedule fast")]
)
def test_policies(topology: str, policy: str, tmp_path: Path) -> None:
    """Of exact sizes, by rows that travel as flows."""
    need_gpus(4)
    exact.compile_all(tmp_path, policy)
    options = [str(tmp_path), "--topology", topology]
    torchrun(4, "tests/node_exact/exact_gpu_run.py", *options)


@pytest.mark.gpu
@every_topology
@on_hosts
def test_exact_sizes(topology: str, hosts: str, tmp_path: Path) -> None:
    """Where one node may refuse a call for all, and replies."""
    need_gpus(Topology.parse(topology).num_ranks)
    exact_gpu_run.compile_all(tmp_path)
    run("tests/rails/exact_gpu_run.py", topology, hosts, tmp_path)


@pytest.mark.gpu
@every_topology
@on_hosts
def test_exact_sizes_of_pieces(topology: str, hosts: str, tmp_path: Path) -> None:
    """And of static shuffles, and of ragged sources."""
    need_gpus(Topology.parse(topology).num_ranks)
    exact_pieces_gpu_run.compile_all(tmp_path)
    run("tests/rails/exact_pieces_gpu_run.py", topology, hosts, tmp_path)
