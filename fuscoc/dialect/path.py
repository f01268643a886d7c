"""One direction of a shuffle, at every level, and what its operations have to agree on."""

from fuscoc.dialect.attrs import Integer, Text, VerifyError, attributes
from fuscoc.dialect.base import Op, entry_block, ops_of
from fuscoc.dialect.into import Into
from fuscoc.dialect.l0 import shuffle_of
from fuscoc.dialect.l1 import Collect, Hop
from fuscoc.dialect.l2 import Exchange, GatherSend, Put, Reduce, ScatterRecv
from fuscoc.dialect.l3 import Launch
from fuscoc.dialect.mlir import ext, ir
from fuscoc.lang.policy import CHOICES

# Buffers that are one memory before and behind the network hop.
SAME = {"slices": "landing", "return_slices": "staging", "returned": "staging"}
# Buffers whose rows the user gives.
GIVEN = ("source", "rows")
# Rules by which a rank may send rows of another of its node.
BALANCES_SENDERS = ("rebalance", "auto")
WORK = (GatherSend, ScatterRecv, Reduce, Exchange, Launch, Put)
"""What a rank does on a path, ordered by tokens."""


class Path(Op, name="path", traits=[ir.NoTerminatorTrait]):
    """The hops of a direction at L1; lists and the work on them at L2; launches at L3.

    Policies wait on that of a dispatch for the pass that they are for: ``balance`` for
    choose-forwarders, ``schedule`` and ``slice_bytes`` for form-slices.

    ``"fsc.path"() ({ ... }) {balance = "none", direction = "dispatch", schedule = "pairwise",
    slice_bytes = 8388608 : i64} : () -> ()``
    """

    attrs = attributes(
        direction=Text("dispatch", "combine"),
        balance=Text(*CHOICES["balance"], optional=True),
        schedule=Text(*CHOICES["schedule"], optional=True),
        slice_bytes=Integer(1, optional=True),
    )
    body: ext.Region

    @classmethod
    def check(cls, op):
        ours = op.read("direction")
        if [each.read("direction") for each in ops_of(op.operation.parent, Path)].count(ours) > 1:
            raise VerifyError(f"must be the only path for {ours}")

    @classmethod
    def check_regions(cls, op):
        entry_block(op, 0)
        hops = ops_of(op, Hop)
        for policy in ("schedule", "slice_bytes"):
            if (policy in op.attributes) != bool(hops):
                raise VerifyError(f"needs the attribute '{policy}' exactly while it has hops")
        picked = any("forwarder" in hop.attributes for hop in hops)
        if ("balance" in op.attributes) != (bool(hops) and not picked):
            raise VerifyError("needs the attribute 'balance' exactly until forwarders are chosen")
        if op.read("direction") == "dispatch":
            _check_tiers(op)
        else:
            _check_turned(op)
        if len({each.read("kind") for each in ops_of(op, Collect, Reduce)}) > 1:
            raise VerifyError("must not reduce in several ways")
        first = [each for each in ops_of(op, Reduce) if each.reads == "rows"]
        if len({each.read("weight") for each in first}) > 1:
            raise VerifyError("must weigh all rows alike")
        work = ops_of(op, *WORK)
        if work and len(ops_of(op, Exchange)) != 1:
            raise VerifyError("needs exactly one fsc.exchange")
        puts, has_memory = ops_of(op, Put), bool(ops_of(op.operation.parent, Into))
        if work and len(puts) != (has_memory and op.read("direction") == "dispatch"):
            raise VerifyError("needs fsc.put exactly where its module has fsc.into")
        _check_rule(op)
        _check_order(op)
        _check_dtypes(op)
        _check_moves(op)


def _check_turned(path):
    """A combine collects what its dispatch has spread, leg by leg."""
    hops = [
        hop
        for each in ops_of(path.operation.parent, Path)
        if each.read("direction") == "dispatch"
        for hop in ops_of(each, Hop)
    ]
    forth = [(hop.read("scope"), hop.read("dst"), hop.read("src")) for hop in reversed(hops)]
    collects = ops_of(path, Collect)
    back = [(each.read("scope"), each.read("src"), each.read("dst")) for each in collects]
    if hops and back != forth:
        raise VerifyError("must go back the way of its dispatch, leg by leg")


def _check_rule(path):
    """Rows are handed over to carriers exactly where the rule of the network hop may do so."""
    for exchange in ops_of(path, Exchange):
        copies = ops_of(path, GatherSend, Launch)
        hands_over = any("carried" in (op.reads, *op.writes) for op in copies)
        if exchange.is_forth and hands_over != (exchange.read("forwarder") in BALANCES_SENDERS):
            raise VerifyError(f"does not fit the forwarder rule {exchange.read('forwarder')}")


def _check_dtypes(path):
    """What is stored in a buffer is what is loaded from it, in both paths; the user's tensors have
    the types that are declared."""
    shuffle = shuffle_of(path)
    cells, fields = shuffle.follow("source").read("cells"), shuffle.follow("segment").read("fields")
    ends = {"source": cells, "result": cells, "rows": cells, "target": fields}
    dtypes = {(end, each["name"]): each["type"][0] for end, held in ends.items() for each in held}
    for each in ops_of(path.operation.parent, Path):
        for op in ops_of(each, Launch):
            for bound in op.read("bind"):
                buffer, _, name = bound["buffer"].removeprefix("peers.").partition(".")
                field = SAME.get(buffer, buffer), name
                if dtypes.setdefault(field, bound["dtype"]) != bound["dtype"]:
                    raise VerifyError(f"has rows of several dtypes in {'.'.join(field)}")


def _check_moves(path):
    """A row is the source's in every buffer before the copy that casts it, and the target's in all
    behind it: it is cast once."""
    kinds = {"source": "source", "target": "target"}
    for copy in ops_of(path, GatherSend, ScatterRecv):
        moves = copy.read("moves")
        if moves is None:  # nothing is cast, or not yet
            continue
        ends = ("source", "target") if moves == "cast" else (moves, moves)
        for buffer, kind in zip((copy.reads, *copy.writes), ends, strict=True):
            if kinds.setdefault(SAME.get(buffer, buffer), kind) != kind:
                raise VerifyError(f"has rows of source and of target in {buffer}")


def _check_tiers(path):
    """What is deduplicated for a tier is so on every copy through it, and on those behind it."""
    found = {"network": set(), "rank": set(), "local": set()}
    for op in ops_of(path, Hop, GatherSend, ScatterRecv, Launch):
        if isinstance(op, Hop):
            src, dst, held = op.read("src"), op.read("dst"), op
        else:
            src, (dst,), held = op.reads, op.writes, op.follow("list")
        tier = "local" if src == dst else "rank" if dst == "target" else "network"
        found[tier].add(held.read("per"))
    network, rank, local = found.values()
    fits = rank in ({"rank"}, {"point"}) and network in ({"node"}, rank) and local == {"point"}
    if any(found.values()) and not fits:
        pers = ", ".join(
            f"{tier} per {'/'.join(sorted(map(str, of)))}" for tier, of in found.items()
        )
        raise VerifyError(f"has copies that do not fit together: {pers}")


def _check_order(path):
    """Work comes after what writes the buffer that it reads, and what sends the signals that it
    waits for; it waits for all who store into that buffer of a peer; a signal is sent by one step
    alone, and some step waits for it."""
    work = ops_of(path, *WORK)
    written = {buffer for op in work for buffer in op.writes}
    awaited = {None, *(slot for op in work for slot in op.waits)}
    known, writers, senders = {}, {}, _senders(path)  # whether operands dominate, MLIR checks
    for op in work:
        first = set(op.preceding)
        before = known[op.operation] = first.union(*(known.get(each, ()) for each in first))
        if op.reads not in GIVEN and op.reads not in written:
            raise VerifyError(
                f"has an {op.operation.name} that reads {op.reads}, which nothing writes"
            )
        needed = [(f"reads {op.reads}", writers.get(op.reads, []))]
        remote = [each.opview for each in writers.get(op.reads, []) if _stores_at_peers(each)]
        heard = {slot for each in (op, *(first.opview for first in before)) for slot in each.waits}
        if unseen := [each for each in remote if each.signals not in heard]:
            raise VerifyError(
                f"has an {op.operation.name} that reads {unseen[0].writes[0]} unsignalled"
            )
        for slot in op.waits:
            if slot not in senders:
                raise VerifyError(f"waits for signal {slot}, which nothing sends")
            needed.append((f"waits for signal {slot}", [senders[slot]]))
        for reason, others in needed:
            if not before.issuperset(others):
                raise VerifyError(f"has an {op.operation.name} that {reason} too early")
        for buffer in op.writes:
            writers.setdefault(buffer, []).append(op.operation)
    if lost := [op.signals for op in work if op.signals not in awaited]:
        raise VerifyError(f"sends signal {lost[0]}, for which nothing waits")


def _stores_at_peers(op):
    held = op.opview.follow("list") if "list" in op.opview.attrs else None
    return held is not None and "dst_peer" in held.read("columns")


def _senders(path):
    """The operation that sends each signal of a path."""
    senders = {}
    for each in ops_of(path.operation.parent, Path):
        for op in ops_of(each, *WORK):
            slot = op.signals
            if slot is not None and senders.setdefault(slot, op.operation) != op.operation:
                raise VerifyError(f"sends signal {slot} twice")
    return senders
