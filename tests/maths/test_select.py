import math
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aprune.errors import SettingError
from aprune.maths.select import (
    _bisect,
    check_sparsity,
    choose_random,
    keep_by_layer,
    keep_count,
    keep_largest,
    shrink,
    spread_erk,
    spread_evenly,
)

# Few distinct values, so that ties are the rule; both zeros and both infinities among them.
values = st.sampled_from([-math.inf, -2.5, -1e-40, -0.0, 0.0, 1e-40, 1.0, 3.0, math.inf])
score_lists = st.lists(st.lists(values, max_size=12), min_size=1, max_size=4).filter(any)
sparsities = st.one_of(
    st.integers(0, 999).map(lambda n: n / 1000), st.floats(0, 1, exclude_max=True)
)


def to_tensors(lists, dtype=torch.float32):
    return {f"t{i}": torch.tensor(row, dtype=dtype) for i, row in enumerate(lists)}


def select_by_sorting(lists, kept):
    """The definition: sort by score downwards, then by place; take the first."""
    places = [(i, j) for i, row in enumerate(lists) for j in range(len(row))]
    best = set(sorted(places, key=lambda p: -lists[p[0]][p[1]])[:kept])
    return {f"t{i}": [(i, j) in best for j in range(len(row))] for i, row in enumerate(lists)}


@pytest.mark.parametrize(
    ("total", "sparsity", "kept"),
    [
        (10, 0.9, 1),
        (15, 0.9, 2),  # 1.5, half to even
        (25, 0.9, 2),  # 2.5, half to even
        (35, 0.9, 4),
        (1000, 0.999, 1),
        (139_597_504, 0.95, 6_979_875),
        (139_597_504, 0.99, 1_395_975),
        (7, 0.0, 7),
        (3, 0.5, 2),
        (10**18 + 1, 0.0, 10**18 + 1),
    ],
)
def test_keep_count_of_known_cases(total, sparsity, kept):
    assert keep_count(total, sparsity) == kept


@given(st.integers(1, 10**12), sparsities)
def test_keep_count_is_the_nearest_whole_number(total, sparsity):
    exact = total * (1 - Fraction(repr(sparsity)))
    if exact <= Fraction(1, 2):
        with pytest.raises(SettingError, match="leaves nothing"):
            keep_count(total, sparsity)
    else:
        assert abs(keep_count(total, sparsity) - exact) <= Fraction(1, 2)


@pytest.mark.parametrize("sparsity", [1.2, 1.0, -1, -1e-9, math.nan, math.inf, "much", None])
def test_impossible_sparsity(sparsity):
    with pytest.raises(SettingError) as caught:
        check_sparsity(sparsity)
    assert str(caught.value) == (
        f"sparsity is the fraction removed: got {sparsity}, expected at least 0 and below 1"
    )
    with pytest.raises(SettingError):
        keep_count(100, sparsity)


@given(score_lists, st.data())
def test_keep_largest_is_what_sorting_gives(lists, data):
    kept = data.draw(st.integers(0, sum(map(len, lists))))
    masks = keep_largest(to_tensors(lists), kept)
    assert {name: mask.tolist() for name, mask in masks.items()} == select_by_sorting(lists, kept)


@given(st.lists(values, min_size=1), st.data())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_a_gpu_does_finds_the_same_threshold(dtype, row, data):
    kept = data.draw(st.integers(1, len(row)))
    flat = torch.tensor(row, dtype=dtype)
    assert _bisect(flat, kept) == float(torch.tensor(sorted(row)[-kept], dtype=dtype))
    assert flat.tolist() == torch.tensor(row, dtype=dtype).tolist()


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.data())
def test_what_a_gpu_does_with_whole_numbers(row, data):
    kept = data.draw(st.integers(1, len(row)))
    assert _bisect(torch.tensor(row), kept) == sorted(row)[-kept]


@given(st.integers(1, 5000), sparsities, st.integers(0, 10))
def test_exact_sparsity_for_any_size(total, sparsity, distinct):
    try:
        kept = keep_count(total, sparsity)
    except SettingError:
        return
    generator = torch.Generator().manual_seed(total)
    scores = torch.randint(distinct + 1, (total,), generator=generator).float()
    masks = keep_largest({"a": scores[: total // 3], "b": scores[total // 3 :]}, kept)
    assert sum(int(mask.sum()) for mask in masks.values()) == kept


@given(score_lists, st.data())
def test_fewer_are_among_more(lists, data):
    total = sum(map(len, lists))
    more = data.draw(st.integers(0, total))
    fewer = data.draw(st.integers(0, more))
    scores = to_tensors(lists)
    small, large = keep_largest(scores, fewer), keep_largest(scores, more)
    assert all(bool((large[name] | ~small[name]).all()) for name in scores)


@given(st.integers(0, 2 * 3 * 2 * 2), st.integers(0, 1000))
def test_memory_format_does_not_matter(kept, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(3, (2, 3, 2, 2), generator=generator).float()
    plain = keep_largest({"w": scores}, kept)["w"]
    for other in (scores.to(memory_format=torch.channels_last), scores.mT.contiguous().mT):
        mask = keep_largest({"w": other}, kept)["w"]
        assert mask.shape == scores.shape
        assert torch.equal(mask, plain)
        assert mask.view(-1).tolist() == plain.view(-1).tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int8])
def test_every_dtype(dtype):
    scores = {
        "a": torch.tensor([1, 7, 7, -3], dtype=dtype),
        "b": torch.tensor([[7, 2]], dtype=dtype),
    }
    masks = keep_largest(scores, 2)
    assert masks["a"].tolist() == [False, True, True, False]
    assert masks["b"].tolist() == [[False, False]]


def test_dtypes_are_compared_without_rounding():
    # In bfloat16 1.001 would be 1, and in float32 2²⁴ + 1 would be 2²⁴.
    low = torch.tensor([1.0], dtype=torch.bfloat16)
    assert keep_largest({"a": low, "b": torch.tensor([1.001])}, 1)["a"].tolist() == [False]
    big = torch.tensor([2.0**24])
    assert keep_largest({"a": big, "b": torch.tensor([2**24 + 1])}, 1)["a"].tolist() == [False]
    whole = {"a": torch.tensor([2**60]), "b": torch.tensor([2**60 + 1])}
    assert keep_largest(whole, 1)["a"].tolist() == [False]


def test_scores_are_left_alone():
    scores = torch.tensor([2.0, 1.0, 3.0], requires_grad=True)
    mask = keep_largest({"a": scores, "none": torch.empty(0, 4)}, 1)
    assert scores.tolist() == [2.0, 1.0, 3.0]
    assert mask["a"].tolist() == [False, False, True]
    assert not mask["a"].requires_grad
    assert mask["none"].shape == (0, 4)


def test_ties_beyond_one_piece():
    mask = keep_largest({"a": torch.zeros(2**22 + 10)}, 2**22 + 3)["a"]
    assert mask[: 2**22 + 3].all()
    assert not mask[2**22 + 3 :].any()


def test_minus_infinity_is_kept_last():
    scores = {"a": torch.tensor([-math.inf, -1e30, -math.inf])}
    assert keep_largest(scores, 1)["a"].tolist() == [False, True, False]
    assert keep_largest(scores, 2)["a"].tolist() == [True, True, False]


def test_nan_is_refused_by_name():
    with pytest.raises(SettingError, match=r"'head'.*NaN"):
        keep_largest({"a": torch.ones(2), "head": torch.tensor([1.0, math.nan])}, 1)


@pytest.mark.parametrize("kept", [-1, 5])
def test_more_than_there_are(kept):
    with pytest.raises(SettingError, match="expected a number from 0 to 4"):
        keep_largest({"a": torch.ones(4)}, kept)
    with pytest.raises(SettingError, match="expected a number from 0 to 4"):
        spread_evenly({"a": 4}, kept)
    with pytest.raises(SettingError, match="expected a number from 0 to 4"):
        spread_erk({"a": (2, 2)}, kept)
    with pytest.raises(SettingError, match="expected a number from 0 to 4"):
        choose_random({"a": (2, 2)}, {"a": kept}, torch.Generator())


def test_spread_evenly_by_hand():
    # 7 of 25: 2.8, 2.8 and 1.4, so the two largest remainders get one more.
    assert spread_evenly({"a": 10, "b": 10, "c": 5}, 7) == {"a": 3, "b": 3, "c": 1}
    # Equal remainders: the first in order.
    assert spread_evenly({"a": 3, "b": 3, "c": 3}, 4) == {"a": 2, "b": 1, "c": 1}
    assert spread_evenly({}, 0) == {}


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=8), st.fractions(0, 1))
def test_spread_evenly_is_exact_and_even(sizes, density):
    total = sum(sizes)
    kept = round(total * density)
    counts = spread_evenly({str(i): size for i, size in enumerate(sizes)}, kept)
    assert sum(counts.values()) == kept
    for size, count in zip(sizes, counts.values(), strict=True):
        assert 0 <= count <= size
        assert abs(count * total - size * kept) < total or total == 0


# Tensors of one to four dimensions, some of them empty.
shape_lists = st.lists(
    st.lists(st.integers(0, 9), min_size=1, max_size=4).map(tuple), min_size=1, max_size=6
)


def name_all(shapes):
    return {f"t{i}": shape for i, shape in enumerate(shapes)}


def test_spread_erk_by_hand():
    # 8 + 12 + 3 + 3 = 26 to 10 + 30 = 40: of 66 connections just as many, of 100 39.4 and 60.6.
    shapes = {"kernel": (8, 12, 3, 3), "linear": (10, 30)}
    assert spread_erk(shapes, 66) == {"kernel": 26, "linear": 40}
    assert spread_erk(shapes, 100) == {"kernel": 39, "linear": 61}
    # Of 495 linear could have 300 exactly; of more no more than that.
    assert spread_erk(shapes, 495) == {"kernel": 195, "linear": 300}
    assert spread_erk(shapes, 1000) == {"kernel": 700, "linear": 300}
    assert spread_erk(shapes, 1164) == {"kernel": 864, "linear": 300}
    assert spread_erk(shapes, 0) == {"kernel": 0, "linear": 0}
    assert spread_erk({}, 0) == {}


def test_what_full_tensors_cannot_take_may_fill_others():
    # 200 : 40 : 4 : 2, so 1000 would give 813, 163, 16 and 8, where the last two have 4 and 1.
    # What is left, 995, is 829.2 and 165.8; from 2400 + 5 on the second is full as well.
    shapes = {"large": (100, 100), "middle": (20, 20), "tiny": (2, 2), "one": (1, 1)}
    assert spread_erk(shapes, 1000) == {"large": 829, "middle": 166, "tiny": 4, "one": 1}
    assert spread_erk(shapes, 2405) == {"large": 2000, "middle": 400, "tiny": 4, "one": 1}
    assert spread_erk(shapes, 2406) == {"large": 2001, "middle": 400, "tiny": 4, "one": 1}


def test_in_one_dimension_all_have_the_same_density():
    # The sum of the dimensions is their product: the share is that of the size.
    assert spread_erk({"a": (10,), "b": (30,)}, 20) == {"a": 5, "b": 15}
    # A matrix of 10 by 10 has a fifth of their density.
    assert spread_erk({"bias": (10,), "weight": (10, 10)}, 15) == {"bias": 5, "weight": 10}
    assert spread_erk({"bias": (10,), "weight": (10, 10)}, 60) == {"bias": 10, "weight": 50}


@given(shape_lists, st.fractions(0, 1))
def test_spread_erk_is_exact_and_in_proportion(shapes, density):
    sizes = [math.prod(shape) for shape in shapes]
    kept = round(sum(sizes) * density)
    counts = spread_erk(name_all(shapes), kept)
    assert list(counts) == list(name_all(shapes))
    assert sum(counts.values()) == kept
    assert all(0 <= n <= size for n, size in zip(counts.values(), sizes, strict=True))
    # There is one ratio of connections to the sum of dimensions, to one connection, for whatever is
    # not full; what is full would have been given more by it.
    rows = list(zip(counts.values(), map(sum, shapes), sizes, strict=True))
    ratio = max(Fraction(n - 1, part) for n, part, _ in rows if part) if any(sizes) else 0
    assert all(Fraction(n + 1, part) > ratio for n, part, size in rows if n < size)


@given(st.lists(st.integers(1, 30), min_size=2, max_size=6), st.fractions(0, 1))
def test_smaller_tensors_stay_at_least_as_dense(sides, density):
    shapes = name_all([(side, side) for side in sorted(sides)])
    counts = spread_erk(shapes, round(sum(side**2 for side in sides) * density))
    places = [(counts[name], side * side) for name, (side, _) in shapes.items()]
    for (few, small), (many, large) in pairwise(places):
        # A connection more here, or one less there, is rounding.
        assert few == small or Fraction(few + 1, small) > Fraction(many - 1, large)


def test_shrink_by_hand():
    masks = {"a": torch.tensor([[True, False], [True, True]]), "b": torch.tensor([False, True])}
    scores = {"a": torch.tensor([[1.0, 9.0], [-3.0, 2.0]]), "b": torch.tensor([9.0, 1.0])}
    two, three = shrink(masks, scores, 2), shrink(masks, scores, 3)
    # 2 first, then the 1 that comes first; the nines are gone already
    assert two["a"].tolist() == [[True, False], [False, True]]
    assert two["b"].tolist() == [False, False]
    assert three["b"].tolist() == [False, True]
    assert all(torch.equal(shrink(masks, scores, 4)[name], masks[name]) for name in masks)
    assert masks["a"].tolist() == [[True, False], [True, True]]  # not changed


finite = st.sampled_from([-2.5, -0.0, 0.0, 1.0, 3.0])


@given(st.lists(st.tuples(finite, st.booleans()), min_size=1, max_size=20), st.data())
def test_shrink_is_what_sorting_the_rest_gives(pairs, data):
    there = [place for place, (_, mask) in enumerate(pairs) if mask]
    kept = data.draw(st.integers(0, len(there)))
    best = sorted(there, key=lambda place: -pairs[place][0])[:kept]
    scores, mask = (torch.tensor(column) for column in zip(*pairs, strict=True))
    found = shrink({"a": mask}, {"a": scores}, kept)["a"]
    assert found.nonzero().flatten().tolist() == sorted(best)


def test_keep_by_layer_by_hand():
    scores = {"a": torch.tensor([[9.0, 7.0], [8.0, 8.0]]), "b": torch.tensor([1.0, -2.0, 0.0])}
    masks = keep_by_layer(scores, {"b": 2, "a": 2})
    # the four of a are larger than all of b, and of its eights the first is kept
    assert masks["a"].tolist() == [[True, False], [True, False]]
    assert masks["b"].tolist() == [True, False, True]
    none = keep_by_layer(scores, {"a": 0, "b": 3})
    assert not none["a"].any()
    assert none["b"].all()
    with pytest.raises(SettingError, match="cannot keep 5 of 4 connections"):
        keep_by_layer(scores, {"a": 5, "b": 0})


@given(st.integers(0, 3000), st.data())
def test_choose_random_is_exact(size, data):
    kept = data.draw(st.integers(0, size))
    mask = choose_random({"a": (size, 1)}, {"a": kept}, torch.Generator().manual_seed(0))["a"]
    assert mask.shape == (size, 1)
    assert int(mask.sum()) == kept


def test_choose_random_is_the_same_for_the_same_seed():
    def draw(seed):
        generator = torch.Generator().manual_seed(seed)
        return choose_random({"a": (200,), "b": (200,)}, {"a": 90, "b": 90}, generator)

    assert torch.equal(draw(1)["a"], draw(1)["a"])
    assert not torch.equal(draw(1)["a"], draw(2)["a"])
    assert not torch.equal(draw(1)["a"], draw(1)["b"])


@pytest.mark.parametrize("kept", [2, 3])
def test_choose_random_chooses_all_pairs_alike(kept):
    generator = torch.Generator().manual_seed(3)
    draws = 6000
    counts: dict[tuple[bool, ...], int] = {}
    for _ in range(draws):
        mask = tuple(choose_random({"a": (5,)}, {"a": kept}, generator)["a"].tolist())
        counts[mask] = counts.get(mask, 0) + 1
    expected = draws / math.comb(5, kept)
    assert len(counts) == math.comb(5, kept)
    # χ² with 9 degrees of freedom passes 27.9 once in 1,000 times.
    assert sum((n - expected) ** 2 / expected for n in counts.values()) < 27.9


@pytest.mark.parametrize("kept", [400, 600])
def test_choose_random_where_coins_are_tossed_prefers_no_place(kept):
    generator = torch.Generator().manual_seed(4)
    draws, size = 2000, 1000
    hits = torch.zeros(size)
    for _ in range(draws):
        hits += choose_random({"a": (size,)}, {"a": kept}, generator)["a"]
    p = kept / size
    chi = float(((hits - draws * p) ** 2).sum() / (draws * p * (1 - p)))
    # About χ² with 999 degrees of freedom: mean 999, standard deviation 44.7.
    assert abs(chi - 999) < 4 * 44.7
