"""What launches of kernels, and the paths that they stand in, refuse."""

from __future__ import annotations

import pytest

from tests.codegen.kernel_texts import ARGS, BLOCK, SIGNAL, in_loop, kernel_of
from tests.dialect.support import PRELUDE, edited, error_of

LISTS = """
"fsc.descriptors"() {builder = "source", columns = ["c"], per = "node",
  sym_name = "net_send"} : () -> ()
"fsc.descriptors"() {builder = "source", columns = ["c", "dst_peer"], per = "rank",
  sym_name = "direct"} : () -> ()
"fsc.descriptors"() {builder = "forwarder", columns = ["c", "dst_peer"], per = "rank",
  sym_name = "forward"} : () -> ()
"fsc.descriptors"() {builder = "target", columns = ["c"], per = "point",
  sym_name = "local"} : () -> ()
"""
LISTS_BACK = """
"fsc.descriptors"() {builder = "target", columns = ["c", "dst_peer"],
  sym_name = "reduce_direct"} : () -> ()
"fsc.descriptors"() {builder = "target", columns = ["c", "dst_peer"],
  sym_name = "reduce_forward"} : () -> ()
"fsc.descriptors"() {builder = "forwarder", columns = ["c"], sym_name = "reduce_node"} : () -> ()
"fsc.descriptors"() {builder = "source", columns = ["c"], sym_name = "reduce_source"} : () -> ()
"""
BOUND = '{arg = "m", buffer = "source.x", dtype = f32}'


def kernel_for(held: str, *, signals: bool = False, waits: tuple[int, ...] = ()) -> str:
    """The kernel that ``launch`` launches over the list ``held``."""
    body = [
        f'%num{slot} = "fsc.wait"(%m, %n, %n, %a, %a, %n) {{slot = {slot} : i64}} : '
        "(i64, i64, i64, i64, i64, i64) -> i64"
        for slot in waits
    ]
    if signals:
        body.append(SIGNAL)
    args = ARGS.removesuffix("]") + ', {element = i32, kind = "address", name = "a", value = "a"}]'
    return kernel_of(f"k_{held}", "\n  ".join(body), args, f"{BLOCK}, %a: i64")


def launch(
    held: str,
    src: str,
    dst: str,
    after: str = "",
    *,
    signal: int | None = None,
    waits: tuple[int, ...] = (),
) -> str:
    """A launch over the list ``held``; see ``BOUND`` for what it may bind."""
    tokens = ", ".join(["!fsc.token"] * after.count("%"))
    sends = "" if signal is None else f", signal = {signal} : i64"
    awaits = f", wait = [{', '.join(map(str, waits))}]" if waits else ""
    return (
        f'%{held} = "fsc.launch"({after}) {{bind = [{BOUND.replace("source", src)}], '
        f'dst = "{dst}", kernel = @k_{held}, list = @{held}, src = "{src}"{sends}{awaits}}} : '
        f"({tokens}) -> !fsc.token\n"
    )


def launched(
    *,
    sent: tuple[int, ...] = (),
    local: str = "%direct, %forward",
    waits: tuple[int, ...] = (0, 1),
) -> str:
    """The path of a dispatch after specialise-kernels, behind its kernels."""
    return (
        kernel_for("net_send", waits=sent)
        + kernel_for("direct", signals=True)
        + kernel_for("forward", signals=True)
        + kernel_for("local", waits=waits)
        + '"fsc.path"() ({'
        + LISTS
        + launch("net_send", "source", "slices", waits=sent)
        + '%landed = "fsc.exchange"(%net_send) {forwarder = "static", schedule = "pairwise", '
        "slice_bytes = 1 : i64} : (!fsc.token) -> !fsc.token\n"
        + launch("direct", "source", "target", signal=0)
        + launch("forward", "landing", "target", "%landed", signal=1)
        + launch("local", "target", "target", local, waits=waits)
        + '}) {direction = "dispatch"} : () -> ()'
    )


def launched_back() -> str:
    """The same of a combine."""
    return (
        kernel_for("reduce_forward", signals=True)
        + kernel_for("reduce_direct", signals=True)
        + kernel_for("reduce_node", waits=(3,))
        + kernel_for("reduce_source", waits=(2,))
        + '"fsc.path"() ({'
        + LISTS_BACK
        + launch("reduce_forward", "rows", "forward_staging", signal=3)
        + launch("reduce_direct", "rows", "staging", signal=2)
        + launch("reduce_node", "forward_staging", "return_slices", "%reduce_forward", waits=(3,))
        + '%back = "fsc.exchange"(%reduce_node) : (!fsc.token) -> !fsc.token\n'
        + launch("reduce_source", "staging", "result", "%reduce_direct, %back", waits=(2,))
        + '}) {direction = "combine"} : () -> ()'
    )


def test_accepts_launches() -> None:
    assert not error_of(PRELUDE + launched())
    assert not error_of(PRELUDE + launched_back())
    assert not error_of(PRELUDE + launched() + launched_back())


@pytest.mark.parametrize(
    ("buffer", "taken"),
    [
        ("source.x", True),
        ("slices.x", True),
        ("peers.slices.x", True),
        ("weights.factors", True),
        ("target.x", False),
        ("peers.target.x", False),
        ("peers.source", False),
    ],
)
def test_launches_bind_the_buffers_that_they_take_rows_from_and_to(
    buffer: str, *, taken: bool
) -> None:
    error = error_of(PRELUDE + launched().replace("source.x", buffer, 1))
    assert (f"binds '{buffer}', to which it brings no rows" in error) != taken
    assert bool(error) != taken


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (('arg = "m"', 'arg = "elsewhere"'), "binds 'elsewhere', which its kernel does not take"),
        (('["c"]', '["d"]'), "passes a list without the column 'c'"),
        (
            ('builder = "forwarder"', 'builder = "source"'),
            "'fsc.launch' op reads landing, which the source does not have",
        ),
        (('dst = "slices"', 'dst = "lost"'), "attribute 'dst' must be one of source, carried, "),
        (
            ("@k_net_send", "@direct"),
            "names @direct, a fsc.descriptors where fsc.kernel is needed",
        ),
        (("signal = 1", "signal = 0"), "'fsc.path' op sends signal 0 twice"),
        (
            ('per = "rank",\n  sym_name = "forward"', 'per = "point",\n  sym_name = "forward"'),
            "'fsc.path' op has copies that do not fit together",
        ),
        (
            ("list = @direct", "list = @net_send"),
            "'fsc.launch' op goes from source to target by the list direct, not net_send",
        ),
        (
            ('dst = "slices"', 'dst = "result"'),
            "'fsc.launch' op must not go from source to result",
        ),
        (
            ('["c", "dst_peer"]', '["c"]'),
            "'fsc.launch' op needs the column dst_peer exactly where rows go to peers",
        ),
        (
            ('["c"]', '["c", "dst_peer"]'),
            "'fsc.launch' op needs the column dst_peer exactly where rows go to peers",
        ),
        (
            (", signal = 0 : i64", ""),
            "'fsc.launch' op needs a signal exactly where rows go to peers",
        ),
        (
            ('list = @net_send, src = "source"', 'list = @net_send, src = "source", signal = 7'),
            "'fsc.launch' op needs a signal exactly where rows go to peers",
        ),
        (
            ('list = @local, src = "target"', 'list = @local, src = "target", signal = 7'),
            "'fsc.launch' op needs a signal exactly where rows go to peers",
        ),
        (
            ("@k_net_send", "@k_direct"),
            "'fsc.launch' op needs a signal exactly where its kernel sends one",
        ),
        (
            (SIGNAL, f"{SIGNAL}\n  {SIGNAL}"),
            "'fsc.launch' op needs a signal exactly where its kernel sends one",
        ),
        (
            (SIGNAL, f"{in_loop(SIGNAL)}\n  {SIGNAL}"),
            "'fsc.signal' op must stand directly inside fsc.kernel",
        ),
        (
            ("@k_direct", "@k_net_send"),
            "'fsc.launch' op needs a signal exactly where its kernel sends one",
        ),
        ((", wait = [0, 1]", ""), "waits for [], and its kernel for [0, 1]"),
        (("wait = [0, 1]", "wait = [0]"), "waits for [0], and its kernel for [0, 1]"),
        (("{slot = 1 : i64}", "{slot = 2 : i64}"), "for [0, 1], and its kernel for [0, 2]"),
        (("@k_net_send", "@k_local"), "waits for [], and its kernel for [0, 1]"),
        (('"static"', '"rebalance"'), "'fsc.path' op does not fit the forwarder rule rebalance"),
    ],
)
def test_refuses_launches(edit: tuple[str, str], message: str) -> None:
    assert message in error_of(PRELUDE + edited(launched(), edit))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (launched(local="%direct"), "has an fsc.launch that reads target too early"),
        (launched(local="%forward"), "has an fsc.launch that reads target too early"),
        (launched(sent=(0,)), "has an fsc.launch that waits for signal 0 too early"),
        (launched(waits=(0, 1, 9)), "waits for signal 9, which nothing sends"),
        (launched(waits=(0,)), "has an fsc.launch that reads target unsignalled"),
        (launched(waits=(1,)), "has an fsc.launch that reads target unsignalled"),
        (launched(waits=()), "has an fsc.launch that reads target unsignalled"),
    ],
)
def test_launches_are_in_order(path: str, message: str) -> None:
    assert message in error_of(PRELUDE + path)


def test_somebody_waits_for_every_signal() -> None:
    """Rows that come back, and that nothing adds up."""
    text = launched_back()
    result = text[text.index("%reduce_source = ") : text.index("}) {direction")]
    error = error_of(PRELUDE + text.replace(result, ""))
    assert "'fsc.path' op sends signal 2, for which nothing waits" in error


def test_a_launch_stands_inside_a_path() -> None:
    text = kernel_for("net_send") + launch("net_send", "source", "slices")
    assert "'fsc.launch' op must stand inside fsc.path" in error_of(PRELUDE + text)


BOTH = launched() + launched_back()


def bound(held: str, src: str, *fields: tuple[str, str]) -> tuple[str, str]:
    """The edit after which the launch over ``held`` binds these buffers, of these dtypes."""
    binds = ", ".join(
        f'{{arg = "m", buffer = "{buffer}", dtype = {dtype}}}' for buffer, dtype in fields
    )
    old = f"[{BOUND.replace('source', src)}]"
    start = BOTH.index(f"%{held} = ")
    end = BOTH.index(old, start) + len(old)
    return BOTH[start:end], BOTH[start:end].replace(old, f"[{binds}]")


@pytest.mark.parametrize(
    ("edits", "field"),
    [
        # One buffer by two launches; peers' or one's own.
        (
            [
                bound("direct", "source", ("peers.target.x", "bf16")),
                bound("local", "target", ("target.x", "f32")),
            ],
            "target.x",
        ),
        # What leaves as slices lands.
        (
            [
                bound("net_send", "source", ("slices.x", "bf16")),
                bound("forward", "landing", ("landing.x", "f32")),
            ],
            "landing.x",
        ),
        (
            [
                bound("reduce_node", "forward_staging", ("return_slices.x", "bf16")),
                bound("reduce_source", "staging", ("staging.x", "f32")),
            ],
            "staging.x",
        ),
        # What the user gives and gets.
        ([bound("local", "target", ("target.x", "bf16"))], "target.x"),
        ([bound("reduce_source", "staging", ("result.x", "bf16"))], "result.x"),
        # Both paths.
        (
            [
                bound("direct", "source", ("weights.factors", "f32")),
                bound("reduce_direct", "rows", ("weights.factors", "bf16")),
            ],
            "weights.factors",
        ),
    ],
)
def test_rows_of_a_buffer_have_one_dtype(edits: list[tuple[str, str]], field: str) -> None:
    alike = [(old, new.replace("bf16", "f32")) for old, new in edits]
    assert not error_of(PRELUDE + edited(BOTH, *alike))
    error = error_of(PRELUDE + edited(BOTH, *edits))
    assert f"'fsc.path' op has rows of several dtypes in {field}" in error


@pytest.mark.parametrize(
    "edit",
    [
        ('buffer = "staging.x"', 'buffer = "staging"'),
        ('buffer = "staging.x"', 'buffer = "staging.x.y"'),
        ('buffer = "staging.x", ', ""),
        ('buffer = "staging.x"', "buffer = 1 : i64"),
        (f"[{BOUND.replace('source', 'staging')}]", "[1 : i64]"),
        (f"[{BOUND.replace('source', 'staging')}]", "1 : i64"),
        ("wait = [2]", "wait = 2 : i64"),
        ("signal = 2 : i64", 'signal = "2"'),
    ],
)
def test_what_is_wrong_with_another_path(
    edit: tuple[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    """The first path reads what is verified after it; that must not raise."""
    error = error_of(PRELUDE + edited(BOTH, edit))
    assert "'fsc." in error
    assert "Traceback" not in error + "".join(capfd.readouterr())
