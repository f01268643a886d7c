"""Sets of ranks of a node. In memory each rank has a bit, in words of 32. A set that one word holds
is that word; a larger one is a vector, which is 1 at its ranks.
"""

# ruff: noqa: SIM108 - the branch that a constant rules out is not compiled

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync = load("words"), load("vectors"), load("sync")

IS_WORD = tl.constexpr(words.RANK_WORDS.value == 1)


@triton.jit
def one(peer, is_in):
    """The set of a rank that ``is_in``, 1, or of none, 0."""
    if IS_WORD:
        made = (is_in << peer).to(tl.int32)
    else:
        made = tl.where(tl.arange(0, words.MAX_RANKS) == peer, is_in, 0).to(tl.int32)
    return made


@triton.jit
def none():
    """The set without ranks."""
    if IS_WORD:
        made = tl.full((), 0, tl.int32)
    else:
        made = tl.full((words.MAX_RANKS,), 0, tl.int32)
    return made


@triton.jit
def everyone():
    """The set of all that there is room for."""
    if IS_WORD:
        made = tl.full((), -1, tl.int32)
    else:
        made = tl.full((words.MAX_RANKS,), 1, tl.int32)
    return made


@triton.jit
def of(peers, are_in):
    """The set of those ranks of a vector that ``are_in``."""
    if IS_WORD:
        made = vectors.total(are_in.to(tl.int32) << peers.to(tl.int32), 0)
    else:
        is_it = peers[:, None] == tl.arange(0, words.MAX_RANKS)[None, :]
        made = vectors.total((is_it & are_in[:, None]).to(tl.int32), 0)
    return made


@triton.jit
def has(found, peer):
    """1 if a rank is in a set, else 0."""
    if IS_WORD:
        made = (found >> peer) & 1
    else:
        made = vectors.pick(found, peer, words.MAX_RANKS)
    return made


@triton.jit
def have(found, peers):
    """The same of each rank of a vector; numbers that are none are in no set."""
    if IS_WORD:
        made = (found >> peers) & 1
    else:
        rank = tl.arange(0, words.MAX_RANKS)
        made = tl.full(peers.shape, 0, tl.int32)
        for word in tl.static_range(words.RANK_WORDS):  # a matrix of both needs too many registers
            bits = vectors.total(tl.where((rank >> 5) == word, found << (rank & 31), 0), 0)
            made = tl.where((peers >> 5) == word, (bits >> (peers & 31)) & 1, made)
    return made


@triton.jit
def each(found):
    """A vector that is 1 at the ranks of a set."""
    if IS_WORD:
        made = (found >> tl.arange(0, words.MAX_RANKS)) & 1
    else:
        made = found
    return made


@triton.jit
def is_any(found):
    """Whether a set has ranks."""
    if IS_WORD:
        made = found != 0
    else:
        made = vectors.largest(found, 0) != 0
    return made


@triton.jit
def load_set(at):
    """A set from memory."""
    if IS_WORD:
        made = tl.load(at)
    else:
        rank = tl.arange(0, words.MAX_RANKS)
        made = (tl.load(at + (rank >> 5)) >> (rank & 31)) & 1
    return made


@triton.jit
def store_set(at, found):
    if IS_WORD:
        tl.store(at, found)
    else:
        rank = tl.arange(0, words.MAX_RANKS)
        bits = tl.reshape(found << (rank & 31), [words.RANK_WORDS, 32])
        tl.store(at + tl.arange(0, words.RANK_WORDS), vectors.total(bits, 1))


@triton.jit
def add(at, are_in):
    """Add the ranks at which a vector is 1 to a set in memory."""
    rank = tl.arange(0, words.MAX_RANKS)
    if IS_WORD:
        tl.atomic_or(at, vectors.total(are_in << rank, 0), sem="relaxed")
    else:
        bits = are_in << (rank & 31)
        tl.atomic_or(at + (rank >> 5), bits, mask=are_in != 0, sem="relaxed")


@triton.jit
def add_one(at, peer):
    """Add a rank to a set in memory."""
    if IS_WORD:
        tl.atomic_or(at, tl.full((), 1, tl.int32) << peer.to(tl.int32), sem="relaxed")
    else:
        bit = tl.full((), 1, tl.int32) << (peer & 31).to(tl.int32)
        tl.atomic_or(at + (peer >> 5), bit, sem="relaxed")


@triton.jit
def refusing(call):
    """Those that have refused the running dispatch, or that of a combine."""
    return load_set(sync.array(call, words.ROUTING, tl.int32) + words.REFUSING)


@triton.jit
def refuses(call, peer):
    """1 if a rank is one of them, else 0."""
    at = sync.array(call, words.ROUTING, tl.int32) + words.REFUSING
    if IS_WORD:
        made = (tl.load(at) >> peer) & 1
    else:
        made = (tl.load(at + (peer >> 5)) >> (peer & 31)) & 1
    return made
