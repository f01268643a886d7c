"""Calls between nodes on real GPUs; each case is a torchrun."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fuscoc_runtime.topology import Topology
from tests.gpus import need_gpus, torchrun
from tests.node_exact import models as exact
from tests.rails import exact_gpu_run, exact_pieces_gpu_run, flow_gpu_run, given_gpu_run
from tests.rails.models import compile_all

HOSTS = {"one host": ["--one-host"], "hosts": []}
every_topology = pytest.mark.parametrize("topology", ["2x1", "2x2", "4x1"])
on_hosts = pytest.mark.parametrize("hosts", HOSTS)


def need(topology: str, hosts: str) -> None:
    """Ranks of one host that shared a GPU would be several hosts to NCCL."""
    need_gpus(Topology.parse(topology).num_ranks, can_share=hosts != "one host")


def run(script: str, topology: str, hosts: str, *artifacts: str | Path) -> None:
    options = ["--topology", topology, *HOSTS[hosts]]
    torchrun(Topology.parse(topology).num_ranks, script, *options, *artifacts)


@pytest.mark.gpu
@every_topology
@on_hosts
def test_models(topology: str, hosts: str, tmp_path: Path) -> None:
    need(topology, hosts)
    run("tests/rails/gpu_run.py", topology, hosts, *compile_all(tmp_path))


@pytest.mark.gpu
@every_topology
@on_hosts
@pytest.mark.parametrize("suite", [given_gpu_run, exact_gpu_run, exact_pieces_gpu_run])
def test_suites(suite: Any, topology: str, hosts: str, tmp_path: Path) -> None:
    """Slots that are given; exact sizes where one node may refuse a call for all, and replies;
    exact sizes of pieces, static shuffles and ragged sources."""
    need(topology, hosts)
    suite.compile_all(tmp_path)
    run(suite.__file__, topology, hosts, tmp_path)


@pytest.mark.gpu
@every_topology
@on_hosts
def test_flows(topology: str, hosts: str, tmp_path: Path) -> None:
    """By policies and without one; and where one node may refuse a call for all."""
    need(topology, hosts)
    flow_gpu_run.compile_all(tmp_path)
    run(flow_gpu_run.__file__, topology, hosts, tmp_path, "--verify", topology)
    exact_gpu_run.compile_all(tmp_path, "balance rebalance")
    run(exact_gpu_run.__file__, topology, hosts, tmp_path, "--most-sent", "1")


@pytest.mark.gpu(num_ranks=4, can_share=True)
@pytest.mark.parametrize(
    ("topology", "policy"), [("2x2", "balance rebalance"), ("4x1", "balance none schedule fast")]
)
def test_policies(topology: str, policy: str, tmp_path: Path) -> None:
    """Of exact sizes, by rows that travel as flows."""
    exact.compile_all(tmp_path, policy)
    options = [str(tmp_path), "--topology", topology]
    torchrun(4, "tests/node_exact/exact_gpu_run.py", *options)
