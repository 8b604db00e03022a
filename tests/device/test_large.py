"""Tensors of more than 2**31 elements: sizes, strides and offsets are 64 bits wide everywhere."""

import psutil
import pytest
import torch

ROWS, COLUMNS = (1 << 16) + 1, 1 << 15  # 2**31 + 2**15 elements, a byte each
NUMEL = ROWS * COLUMNS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(psutil.virtual_memory().available < 3 * NUMEL, reason="needs 6 GiB of free memory"),
]


@pytest.fixture(scope="module")
def large():
    x = torch.ones(NUMEL, dtype=torch.int8, device="neuron")
    x[-1] = 5
    x[(1 << 31) + 1] = 7
    yield x
    del x
    torch.neuron.empty_cache()


def test_a_map_reaches_the_last_element(large):
    y = (large + 1).mul_(3)
    assert [y[i].item() for i in (0, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, NUMEL - 1)] == [6, 6, 6, 24, 18]


def test_sums_count_all_elements(large):
    assert large.sum().item() == NUMEL + 4 + 6
    rows = large.view(ROWS, COLUMNS)
    assert rows.sum(1)[-2:].tolist() == [COLUMNS, COLUMNS + 4 + 6]
    assert rows.sum(0)[[0, 1, -1]].tolist() == [ROWS, ROWS + 6, ROWS + 4]


def test_the_position_of_the_largest(large):
    assert large.argmax().item() == (1 << 31) + 1


def test_strides_and_offsets_beyond_two_to_the_31(large):
    step = large[:: (1 << 31) + 1]
    assert (step * 2).tolist() == [2, 14]
    tail = large[1 << 31 :]
    assert (tail + tail).amax().item() == 14
    across = large.view(ROWS, COLUMNS).t()[:2, -1]
    assert (across + 1).tolist() == [2, 8]


def test_rows_are_taken_from_beyond(large):
    rows = large.view(ROWS, COLUMNS)
    picked = rows.index_select(0, torch.tensor([0, ROWS - 1], device="neuron")) + 1
    assert picked[:, 1].tolist() == [2, 8]


def test_an_expanded_input_is_walked_whole(large):
    del large
    x = torch.tensor([2], dtype=torch.int32, device="neuron").expand(NUMEL)
    assert (x * x).sum().item() == 4 * NUMEL
