"""Philox4x32-10: random bits from a counter, so that a point's bits depend on nothing but its place.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011. The key is a 64-bit seed;
the counter is a 64-bit block number and a 64-bit offset, one for each call of the program. A block is four words of 32
bits.

Words are kept in 64-bit lanes: a product of two is then one instruction (pmuludq) on every x86 and its high half a
shift, where 32-bit lanes would need shuffles. Where a vector of points is a run (builder.py: runs), as nearly always,
four neighbours share a block: a vector of half the lanes computes all blocks of a run, however it is aligned. Elsewhere
each point computes its block and takes its word of it.
"""

from __future__ import annotations

from adaptive_eager.compiler.builder import Builder, Val

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def block_words(b: Builder, block: Val, seed: Val, offset: Val) -> list[Val]:
    """The four words of each block, i64 vectors whose upper halves are not cleared. All operands are i64."""

    def low(x: Val) -> Val:
        return b.and_(x, b.const("i64", 0xFFFFFFFF))

    def high(x: Val) -> Val:
        return b.binary("lshr", x, b.const("i64", 32))

    c0, c1, c2, c3 = block, high(block), offset, high(offset)
    k0, k1 = seed, high(seed)
    for _ in range(_ROUNDS):
        # Cleared where they are multiplied, not before: only so LLVM sees products of 32-bit numbers, and that the
        # instruction clears by itself.
        first = b.mul(low(c0), b.const("i64", _MULTIPLIERS[0]))
        second = b.mul(low(c2), b.const("i64", _MULTIPLIERS[1]))
        c0, c1, c2, c3 = b.xor(b.xor(high(second), k0), c1), second, b.xor(b.xor(high(first), k1), c3), first
        k0, k1 = (b.add(k, b.const("i64", w)) for k, w in zip((k0, k1), _WEYL, strict=True))
    return [c0, c1, c2, c3]


def _pair(b: Builder, low: Val, high: Val) -> Val:
    """Two words as 64 bits."""
    return b.or_(b.and_(low, b.const("i64", 0xFFFFFFFF)), b.binary("shl", high, b.const("i64", 32)))


def bits32(b: Builder, index: Val, seed: Val, offset: Val) -> Val:
    """32 bits a point: word `index % 4` of block `index / 4`."""
    if index.ref in b.runs:
        return _bits_of_run(b, b.runs[index.ref], index.level, seed, offset)
    words = block_words(b, b.binary("lshr", index, b.const("i64", 2)), seed, offset)
    second = b.icmp("ne", b.and_(index, b.const("i64", 1)), b.const("i64", 0))
    third = b.icmp("ne", b.and_(index, b.const("i64", 2)), b.const("i64", 0))
    word = b.select(third, b.select(second, words[3], words[2]), b.select(second, words[1], words[0]))
    return b.convert("trunc", word, "i32")


def _bits_of_run(b: Builder, first: str, level: int, seed: Val, offset: Val) -> Val:
    """The same for a vector of neighbours from `first` on: the words of its blocks are written one after another, and
    read from the first point's on."""
    half, lanes = b.half(), b.lanes
    n = half.lanes

    def narrowed(x: Val) -> Val:
        order = ", ".join(f"i32 {k}" for k in range(n))
        text = f"shufflevector {b.vector(x.ty)} {x.ref}, {b.vector(x.ty)} poison, <{n} x i32> <{order}>"
        return Val(b.put(x.level, text), x.ty, x.level)

    block = half.splat(b.put(level, f"lshr i64 {first}, 2"), "i64", level)
    block = half.add(block, half.lane_numbers("i64"))
    words = block_words(half, block, narrowed(seed), narrowed(offset))
    left, right = _pair(half, words[0], words[1]), _pair(half, words[2], words[3])
    order = ", ".join(f"i32 {k // 2 + k % 2 * n}" for k in range(lanes))
    v = half.vector("i64")
    both = b.put(level, f"shufflevector {v} {left.ref}, {v} {right.ref}, <{lanes} x i32> <{order}>")
    buffer = b.local(f"<{lanes} x i64>")
    b.line(level, f"store <{lanes} x i64> {both}, ptr {buffer}, align 64")
    at = b.put(level, f"getelementptr i32, ptr {buffer}, i64 {b.put(level, f'and i64 {first}, 3')}")
    return Val(b.put(level, f"load {b.vector('i32')}, ptr {at}, align 4"), "i32", level)


def bits64(b: Builder, index: Val, seed: Val, offset: Val) -> tuple[Val, Val]:
    """Twice 64 bits a point: the block of the point's own number."""
    words = block_words(b, index, seed, offset)
    return _pair(b, words[0], words[1]), _pair(b, words[2], words[3])
