import pytest, torch
from benchmarks.moe_cases import Model
from tests.cuda import edges
from tests.cuda.emulation.ranks import emulated_ranks
HOST = torch.device("cpu")
@pytest.mark.parametrize("n",[1,2,4])
def test_copies(n):
    with emulated_ranks(n) as world:
        assert world.run(lambda: ["copies"] * edges.copies(HOST)) == []
