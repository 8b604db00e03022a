"""Layout: in which order memory is walked, which dims are one loop, and by which stride each tensor moves."""

from __future__ import annotations

import pytest
from traces import TraceBuilder

from adaptive_eager.layout import LoopDim, Moves, can_follow, kept_dims, merge, reduction_order, walk_order


def geometries(*make):
    """Geometries of tensors; each of `make` takes a builder."""
    t = TraceBuilder()
    t.host("read", *(m(t) for m in make))
    trace = t.build()
    return [trace.geometries[o.geometry] for o in trace.nodes[0].inputs]


def geometry(make):
    return geometries(make)[0]


def dense(*shape, order=None):
    return lambda t: t.input("f32", shape, order)


CHANNELS_LAST = dense("B", "C", "H", "W", order=(0, 2, 3, 1))


@pytest.mark.parametrize(
    ("make", "order"),
    [
        (dense("B", "N"), [0, 1]),
        (dense("B", 1, "N"), [0, 2]),
        (dense(), []),
        (dense(1, 1), []),
        (lambda t: t.input("f32", ("B", "N")).t(), [1, 0]),
        (CHANNELS_LAST, [0, 2, 3, 1]),
        (lambda t: t.input("f32", ("B", "N")).expand("C", "B", "N"), [0, 1, 2]),
        (lambda t: t.input("f32", ("B", 1)).expand("B", "N"), [1, 0]),  # does not move along dim 1: outermost
        (lambda t: t.input("f32", ("C", "N")).slice(0, 0, 4, 2), [0, 1]),
        (lambda t: t.input("f32", ("C", 1, "N")).permute(2, 1, 0), [2, 0]),
    ],
)
def test_walk_order(make, order):
    assert walk_order(geometry(make)) == order


class TestMerge:
    def loops(self, space, *others):
        every = geometries(space, *others)
        return [loop.dims for loop in merge(walk_order(every[0]), [Moves(g, every[0].rank) for g in every])]

    def test_contiguous_is_one_loop(self):
        assert self.loops(dense("A", "B", "C"), dense("A", "B", "C")) == [(0, 1, 2)]

    def test_size_one_is_no_loop(self):
        assert self.loops(dense("A", 1, "C"), dense("A", 1, "C")) == [(0, 2)]

    def test_channels_last_is_one_loop_in_its_own_order(self):
        assert self.loops(CHANNELS_LAST, CHANNELS_LAST) == [(0, 2, 3, 1)]

    def test_two_orders_split(self):
        assert self.loops(dense("A", "B"), lambda t: t.input("f32", ("B", "A")).t()) == [(0,), (1,)]
        # H and W follow each other in both, the rest does not.
        assert self.loops(CHANNELS_LAST, dense("B", "C", "H", "W")) == [(0,), (2, 3), (1,)]

    def test_broadcasts_split_where_they_begin(self):
        assert self.loops(dense("A", "B", "C"), dense("C")) == [(0, 1), (2,)]
        assert self.loops(dense("A", "B", "C"), dense("A", 1, 1)) == [(0,), (1, 2)]
        assert self.loops(dense("A", "B", "C"), dense("B", 1)) == [(0,), (1,), (2,)]
        assert self.loops(dense("A", "B", "C"), dense(1)) == [(0, 1, 2)]
        assert self.loops(dense("A", "B", "C"), dense()) == [(0, 1, 2)]

    def test_gaps_split(self):
        assert self.loops(dense(3, "B", "C"), lambda t: t.input("f32", (6, "B", "C")).slice(0, 0, 6, 2)) == [
            (0,),
            (1, 2),
        ]
        # A slice of the outermost dim has no gaps between its rows.
        assert self.loops(dense(3, "C"), lambda t: t.input("f32", (6, "C")).slice(0, 1, 4)) == [(0, 1)]

    def test_every_tensor_counts(self):
        assert self.loops(dense("A", "B", "C"), dense("C"), dense("A", 1, 1)) == [(0,), (1,), (2,)]


class TestMoves:
    def letters(self, space, other, loops):
        base, own = geometries(space, other)
        moves = Moves(own, base.rank)
        return [moves.move(LoopDim(dims), innermost=k == len(loops) - 1) for k, dims in enumerate(loops)]

    def test_unit_strided_broadcast(self):
        space = dense("A", "B")
        assert self.letters(space, dense("A", "B"), [(0, 1)]) == [("c", 1)]
        assert self.letters(space, dense("A", "B"), [(0,), (1,)]) == [("s", 0), ("c", 1)]
        assert self.letters(space, dense("B"), [(0,), (1,)]) == [("0", -1), ("c", 0)]
        assert self.letters(space, dense("A", 1), [(0,), (1,)]) == [("s", 0), ("0", -1)]
        assert self.letters(space, dense(), [(0, 1)]) == [("0", -1)]

    def test_unit_only_where_it_is_innermost(self):
        across = lambda t: t.input("f32", ("B", "A")).t()  # noqa: E731
        assert self.letters(dense("A", "B"), across, [(0,), (1,)]) == [("s", 0), ("s", 1)]
        assert self.letters(across, across, [(1,), (0,)]) == [("s", 1), ("c", 0)]

    def test_gaps_in_the_innermost_dim(self):
        gaps = lambda t: t.input("f32", ("A", 6)).slice(1, 0, 6, 2)  # noqa: E731
        assert self.letters(dense("A", 3), gaps, [(0,), (1,)]) == [("s", 0), ("s", 1)]

    def test_last_dim_of_size_one(self):
        """A contiguous tensor's innermost dim that moves has stride one."""
        assert self.letters(dense("A", "B", 1), dense("A", "B", 1), [(0, 1)]) == [("c", 1)]

    def test_expanded_dims_do_not_move(self):
        wide = lambda t: t.input("f32", ("A", 1)).expand("A", "B")  # noqa: E731
        assert self.letters(dense("A", "B"), wide, [(0,), (1,)]) == [("s", 0), ("0", -1)]

    def test_single_point(self):
        assert self.letters(dense(), dense(), [()]) == [("c", -1)]
        assert self.letters(dense("A"), dense("A"), [(0,), ()]) == [("s", 0), ("c", -1)]


def order_of(make, dims, op="sum"):
    t = TraceBuilder()
    t.reduce(op, make(t), dims)
    trace = t.build()
    return reduction_order(trace.nodes[0], trace.geometries[trace.nodes[0].inputs[0].geometry])


class TestReductionOrder:
    @pytest.mark.parametrize(
        ("make", "dims", "inner", "kept", "reduced"),
        [
            (dense("A", "B", "C"), [2], True, (0, 1), [(2,)]),
            (dense("A", "B", "C"), [1, 2], True, (0,), [(1, 2)]),
            (dense("A", "B", "C"), [0, 2], True, (1,), [(0,), (2,)]),
            (dense("A", "B", "C"), None, True, (), [(0, 1, 2)]),
            (dense("A", "B", "C"), [0], False, (1, 2), [(0,)]),
            (dense("A", "B", "C"), [0, 1], False, (2,), [(0, 1)]),
            (dense("A", "B", "C"), [1], False, (0, 2), [(1,)]),
            (lambda t: t.input("f32", ("A", "B")).t(), [1], False, (0,), [(1,)]),
            (lambda t: t.input("f32", ("A", "B")).t(), [0], True, (1,), [(0,)]),
            (lambda t: t.input("f32", ("A", "B")).t(), None, True, (), [(1, 0)]),
            (CHANNELS_LAST, [0, 2, 3], False, (1,), [(0, 2, 3)]),
            (CHANNELS_LAST, [1], True, (0, 2, 3), [(1,)]),
            (dense("A", 1, "C"), [1], True, (0, 2), [()]),  # nothing to reduce: one point
            (dense("A", 1, "C"), [1, 2], True, (0,), [(2,)]),
            (dense("A", "B", 1), [1], True, (0,), [(1,)]),
            (dense(), None, True, (), [()]),
            (lambda t: t.input("f32", ("N",)).expand("B", "N"), [0], False, (1,), [(0,)]),
            (lambda t: t.input("f32", ("B", 1)).expand("B", "N"), [1], False, (0,), [(1,)]),
        ],
    )
    def test_forms(self, make, dims, inner, kept, reduced):
        order = order_of(make, dims)
        assert (order.inner, order.kept, [loop.dims for loop in order.reduced]) == (inner, kept, reduced)

    @pytest.mark.parametrize("op", ["argmax", "argmin"])
    def test_positions_are_counted_as_the_user_sees_the_dims(self, op):
        across = lambda t: t.input("f32", ("A", "B")).t()  # noqa: E731
        assert [loop.dims for loop in order_of(across, None, op).reduced] == [(0,), (1,)]
        assert [loop.dims for loop in order_of(CHANNELS_LAST, None, op).reduced] == [(0,), (1,), (2, 3)]
        assert [loop.dims for loop in order_of(dense("A", "B"), None, op).reduced] == [(0, 1)]


@pytest.mark.parametrize(
    ("dims", "keepdim", "expected"),
    [
        ([1], False, [0, -1, 1]),
        ([1], True, [0, -1, 2]),
        ([0, 2], False, [-1, 0, -1]),
        ([0, 2], True, [-1, 1, -1]),
        (None, False, [-1, -1, -1]),
    ],
)
def test_kept_dims(dims, keepdim, expected):
    t = TraceBuilder()
    t.reduce("sum", t.input("f32", ("A", "B", "C")), dims, keepdim)
    trace = t.build()
    order = reduction_order(trace.nodes[0], trace.geometries[0])
    assert kept_dims(order, 3, trace.geometries[trace.nodes[0].outputs[0].geometry]) == expected


def test_can_follow():
    """A tensor follows if it walks every merged reduced loop as one."""
    space, column, row, across, number = geometries(
        dense("A", "B"), dense("A", 1), dense("B"), lambda t: t.input("f32", ("B", "A")).t(), dense()
    )
    whole, rows = order_of(dense("A", "B"), None), order_of(dense("A", "B"), [1])
    assert [can_follow(whole, space, g) for g in (space, column, row, across, number)] == [
        True,
        False,
        False,
        False,
        True,
    ]
    assert [can_follow(rows, space, g) for g in (space, column, row, across, number)] == [True] * 5
