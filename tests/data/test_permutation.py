import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainrule.data.permutation import draw, permute


@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
def test_a_permutation_is_a_bijection(size, key):
    assert sorted(permute(np.arange(size), size, key)) == list(range(size))


@given(st.integers(1, 2**62), st.integers(0, 2**64 - 1), st.data())
def test_each_index_is_computed_independently(size, key, data):
    indices = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=5, unique=True))
    together = permute(indices, size, key)
    assert [int(permute([index], size, key)[0]) for index in indices] == together.tolist()
    assert len(set(together.tolist())) == len(indices)
    assert all(0 <= value < size for value in together.tolist())


def test_another_key_gives_another_order():
    orders = {tuple(permute(np.arange(50), 50, key)) for key in range(100)}
    assert len(orders) == 100


@pytest.mark.parametrize("size", [2, 5, 100])
def test_every_position_is_equally_likely(size):
    keys = 1000
    first = np.array([permute([0], size, draw(0, key, "test"))[0] for key in range(keys)])
    counts = np.bincount(first, minlength=size)
    chi_squared = ((counts - keys / size) ** 2 / (keys / size)).sum()
    assert chi_squared < size + 5 * (2 * size) ** 0.5


def test_neighbours_are_separated():
    order = permute(np.arange(10_000), 10_000, 7)
    assert np.count_nonzero(np.abs(np.diff(order)) == 1) < 20


def test_the_order_is_fixed_across_versions():
    assert permute(np.arange(10), 10, draw(1, 2, "test")).tolist() == [5, 2, 9, 8, 3, 7, 4, 6, 0, 1]
