import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from aprune.tasks.draw import shuffled


@given(st.integers(0, 300), st.integers(-(2**70), 2**70))
def test_an_order_is_a_permutation_for_any_seed(count: int, seed: int) -> None:
    assert sorted(shuffled(count, seed, "x").tolist()) == list(range(count))


def test_the_order_never_changes_between_machines_and_versions() -> None:
    assert shuffled(8, 0, "classes").tolist() == FROZEN


def test_every_part_of_the_key_counts() -> None:
    keys = [(0, "a"), (1, "a"), (0, "b"), (0, "a", 1), (0, "a", 2), ("0", "a")]
    orders = {tuple(shuffled(50, *key).tolist()) for key in keys}
    assert len(orders) == len(keys)


def test_numbers_of_numpy_count_as_numbers() -> None:
    assert torch.equal(shuffled(9, int(np.int64(4)), "a"), shuffled(9, np.int64(4), "a"))


def test_all_places_are_equally_likely() -> None:
    first = torch.tensor([int(shuffled(4, seed, "fair")[0]) for seed in range(2000)])
    # 500 expected each with a standard deviation of 19: five of those are never passed by chance.
    assert (first.bincount(minlength=4) - 500).abs().max() < 97


FROZEN = [7, 2, 6, 1, 3, 0, 4, 5]
