"""Seeds: one for each purpose, the same for ever."""

import numpy as np

from aprune.maths.seed import derive_seed


def test_purposes_and_seeds_do_not_meet() -> None:
    purposes = [(), ("a",), ("b",), ("a", "b"), ("ab",)]
    derived = {derive_seed(seed, *purpose) for seed in range(-100, 100) for purpose in purposes}
    assert len(derived) == 200 * len(purposes)
    assert all(0 <= seed < 2**32 for seed in derived)


def test_any_whole_number_is_a_seed() -> None:
    assert derive_seed(2**80) != derive_seed(2**80 + 1)
    assert derive_seed(np.int64(3), "a") == derive_seed(3, "a")


def test_a_seed_never_changes() -> None:
    assert derive_seed(0, "weights") == 1651365636
