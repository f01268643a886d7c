"""Clusters: those of the package, and what is said of mistakes in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuscoc.diagnostics import CompileError
from fuscoc.simulate.clusters import load_cluster, names

WHOLE = """title = "mine"
nodes = 2
ranks_per_node = 4

[rank]
nvlink = 450
hbm = 3350
memory = 80

[nic]
bandwidth = 50
efficiency = 0.5
"""


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", names())
def test_every_cluster_of_the_package_loads(name: str) -> None:
    cluster = load_cluster(name)
    links = cluster.links()
    assert len(links.kind) == len(links.owner) == len(links.bandwidth) == len(links.direction)
    assert (links.bandwidth > 0).all()
    assert cluster.title


def test_rates_are_of_the_file(tmp_path: Path) -> None:
    cluster = load_cluster(write(tmp_path, WHOLE))
    assert (cluster.name, cluster.num_ranks, cluster.nic) == ("mine", 8, 25e9)
    assert cluster.latency == pytest.approx(1e-5)


def test_a_file_extends_another(tmp_path: Path) -> None:
    write(tmp_path, WHOLE)
    (tmp_path / "larger.toml").write_text(
        'title = "larger"\nextends = "mine.toml"\nnodes = 4\n[costs]\nlaunch = 7\npermute = 0.5\n'
    )
    cluster = load_cluster(str(tmp_path / "larger.toml"))
    assert (cluster.nodes, cluster.ranks_per_node, cluster.nic) == (4, 4, 25e9)
    assert (cluster.costs.launch, cluster.costs.permute) == (pytest.approx(7e-6), 0.5)


def test_switches(tmp_path: Path) -> None:
    text = WHOLE.replace("nodes = 2", "nodes = 8")
    fabric = "[fabric]\nnodes_per_leaf = 4\noversubscription = 2\n"
    tree = load_cluster(write(tmp_path, text + fabric))
    kinds = tree.links().kind
    assert (kinds.count("leaf"), kinds.count("spine"), kinds.count("rail")) == (4, 1, 0)
    up = tree.links().bandwidth[kinds.index("leaf")]
    assert up == 4 * 4 * 25e9 / 2
    rails = load_cluster(write(tmp_path, text + fabric + "rails = true\n"))
    kinds = rails.links().kind
    assert (kinds.count("leaf"), kinds.count("rail")) == (0, 2 * 2 * 4)
    assert rails.links().bandwidth[kinds.index("rail")] == 4 * 25e9 / 2


@pytest.mark.parametrize(
    ("text", "code", "place", "words"),
    [
        (WHOLE.replace("nvlink", "nvlnk"), "FSC011", "6:1", "did you mean `nvlink`?"),
        (WHOLE.replace("[nic]", "[nics]"), "FSC011", "10:2", "did you mean `nic`?"),
        (WHOLE.replace("450", '"fast"'), "FSC021", "6:10", "a number from"),
        (WHOLE.replace("= 4\n", "= 4.5\n"), "FSC021", "3:18", "a whole number"),
        (WHOLE.replace("= 4\n", "= true\n"), "FSC021", "3:18", "a whole number"),
        (WHOLE.replace("80", "-80"), "FSC023", "8:10", "`memory` must be"),
        (WHOLE.replace("450", "nan"), "FSC023", "6:10", "`nvlink` must be"),
        (WHOLE.replace('"mine"', "3"), "FSC012", "1:9", "text in quotes"),
        (WHOLE.replace("hbm = 3350\n", ""), "FSC001", "5:2", "`hbm` is missing"),
        (WHOLE.replace("nodes = 2\n", ""), "FSC001", "1:1", "`nodes` is missing"),
        (WHOLE.replace("[rank]", "[rank"), "FSC001", "5:6", "expected"),
        (WHOLE + "nic.x.y = 3\n", "FSC001", "10:2", "no setting"),
        ('extends = "h100-8x8-roce"\nnodes = {}\n', "FSC001", "2:1", "`nodes` is no setting"),
        ('extends = "h100-8x8-roc"\n' + WHOLE, "FSC011", "1:11", "h100-8x8-roce"),
        ('extends = "mine.toml"\n' + WHOLE, "FSC011", "1:11", "extends itself"),
        (WHOLE.replace("[rank]", "[rank]\nnodes = 3"), "FSC011", "6:1", "[before all]"),
    ],
)  # fmt: skip
def test_mistakes_are_shown_where_they_are(
    tmp_path: Path, text: str, code: str, place: str, words: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(CompileError) as caught:
        load_cluster(path)
    assert {each.code for each in caught.value.diagnostics} == {code}
    assert f"{Path(path).name}:{place}" in str(caught.value)
    assert words in str(caught.value)


def test_an_unknown_name_is_answered_with_one_that_is_like_it() -> None:
    with pytest.raises(LookupError, match="did you mean `gb200-nvl72`"):
        load_cluster("gb200-nv72")
