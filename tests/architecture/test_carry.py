"""Layer densities carried to another parent: which layer is like which, and how many it gets."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aprune import build_parent, find_connections, load_task
from aprune.architecture import Architecture
from aprune.architecture.carry import carry_counts, carry_densities
from aprune.connections import shapes_of
from aprune.errors import ArchitectureError, SettingError
from aprune.maths.select import keep_count, spread_in_proportion

SHALLOW = {"a": (8, 3, 3, 3), "b": (8, 8, 3, 3), "x": (16, 8), "head": (10, 16)}
DENSITIES = {"a": 0.8, "b": 0.2, "x": 0.1, "head": 0.5}


def test_kernels_go_by_kernels_and_matrices_by_matrices() -> None:
    wider = {name: tuple(2 * size for size in shape) for name, shape in SHALLOW.items()}
    assert carry_densities(SHALLOW, DENSITIES, wider) == DENSITIES
    deeper = {"1": (4, 3, 3, 3), "2": (4, 4, 1, 1), "3": (4, 4, 3, 3), "4": (4, 4, 3, 3)}
    carried = carry_densities(SHALLOW, DENSITIES, {**deeper, "last": (3, 4)})
    assert carried == pytest.approx({"1": 0.8, "2": 0.6, "3": 0.4, "4": 0.2, "last": 0.5})
    fewer = carry_densities(SHALLOW, DENSITIES, {"only": (4, 3, 3, 3), "head": (3, 4)})
    assert fewer == {"only": 0.2, "head": 0.5}


def test_a_kind_that_is_missing_gets_the_mean() -> None:
    carried = carry_densities({"x": (4, 4), "y": (4, 4)}, {"x": 0.2, "y": 0.4}, {"k": (4, 3, 3, 3)})
    assert carried == pytest.approx({"k": 0.3})


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 50)), min_size=1, max_size=6),
    st.fractions(0, 1),
)
def test_shares_are_exact_and_never_too_large(
    layers: list[tuple[int, int]], density: float
) -> None:
    sizes = {str(i): size for i, (size, _) in enumerate(layers)}
    parts = {str(i): part for i, (_, part) in enumerate(layers)}
    kept = round(sum(sizes.values()) * density)
    counts = spread_in_proportion(sizes, parts, kept)
    assert list(counts) == list(sizes)
    assert sum(counts.values()) == kept
    assert all(0 <= counts[name] <= size for name, size in sizes.items())
    if any(counts[name] for name, part in parts.items() if part == 0):
        assert all(counts[name] == sizes[name] for name, part in parts.items() if part)


def test_shares_by_hand() -> None:
    sizes = {"a": 100, "b": 10, "c": 50}
    assert spread_in_proportion(sizes, {"a": 3, "b": 1, "c": 1}, 25) == {"a": 15, "b": 5, "c": 5}
    assert spread_in_proportion(sizes, {"a": 3, "b": 1, "c": 0}, 60) == {"a": 50, "b": 10, "c": 0}
    assert spread_in_proportion(sizes, {"a": 3, "b": 1, "c": 0}, 130) == {
        "a": 100,
        "b": 10,
        "c": 20,
    }


@pytest.mark.parametrize("sparsity", [None, 0.5, 0.97])
def test_a_real_parent_gets_densities_like_those_that_were_found(sparsity: float | None) -> None:
    task = load_task("digits")
    masks = {
        name: torch.rand(shape, generator=torch.Generator().manual_seed(i)) < density
        for i, (name, shape, density) in enumerate(
            [("f.0", (32, 1, 3, 3), 0.6), ("f.1", (64, 32, 3, 3), 0.05), ("head", (10, 256), 0.3)]
        )
    }
    found = Architecture(masks, {"method": "test"})
    shapes = shapes_of(find_connections(build_parent("conv", task)))
    spread = found.spread_onto(shapes, sparsity=sparsity, seed=3)
    assert dict(spread.shapes) == shapes
    expected = 1 - found.kept / found.total if sparsity is None else sparsity
    if sparsity is None:
        assert spread.sparsity == pytest.approx(expected, abs=1e-4)
    else:
        assert spread.kept == keep_count(spread.total, sparsity)
    dense = [layer.density for layer in spread.layers()]
    assert dense[0] >= dense[1] >= dense[2]  # the first and last kernels, and one in between
    assert dense[3] > dense[2]
    assert spread.provenance["method"] == "test"
    assert spread == found.spread_onto(shapes, sparsity=sparsity, seed=3)
    assert spread != found.spread_onto(shapes, sparsity=sparsity, seed=4)


def test_what_cannot_be_is_refused() -> None:
    found = Architecture({"a": torch.ones(3, 3, dtype=torch.bool)})
    with pytest.raises(ArchitectureError, match="there is no mask"):
        found.spread_onto({})
    with pytest.raises(SettingError, match="leaves nothing of 4 connections"):
        found.spread_onto({"b": (2, 2)}, sparsity=0.99)


NEW = {"a": (8, 1, 3, 3), "b": (8, 8, 3, 3), "x": (16, 32), "head": (4, 16)}


@given(st.data())
def test_other_shapes_leave_the_sparsity_exact(data: st.DataObject) -> None:
    sizes = {name: math.prod(shape) for name, shape in SHALLOW.items()}
    counts = {name: data.draw(st.integers(0, size), label=name) for name, size in sizes.items()}
    total = sum(math.prod(shape) for shape in NEW.values())
    kept = data.draw(st.integers(3, total))
    carried = carry_counts(counts, SHALLOW, NEW, kept)
    assert list(carried) == list(NEW)
    assert sum(carried.values()) == kept
    assert all(count <= math.prod(NEW[name]) for name, count in carried.items())
    assert min(carried[name] for name in ("a", "x", "head")) >= 1
    left = kept - counts["b"]
    if 3 <= left <= total - sizes["b"]:
        assert carried["b"] == counts["b"]  # what fits is as it was
    else:
        assert (carried["b"] < counts["b"]) is (left < 3)


def test_other_shapes_by_hand() -> None:
    counts = {"a": 100, "b": 60, "x": 64, "head": 80}  # a and x at one half, head too
    there = {"a": (8, 1, 3, 3), "b": (8, 8, 3, 3), "x": (16, 8), "head": (4, 16)}
    # a has 72 places and head 64: at these densities they would have 33 and 32
    carried = carry_counts(counts, SHALLOW, there, 60 + 64 + 2 * 35)
    assert carried["b"] == 60
    assert carried["x"] == 64
    assert (carried["a"], carried["head"]) == (36, 34)


def test_masks_follow_the_counts() -> None:
    generator = torch.Generator().manual_seed(0)
    masks = {name: torch.rand(s, generator=generator) < 0.4 for name, s in SHALLOW.items()}
    found = Architecture(masks)
    for sparsity in (0.05, 0.6, 0.95):
        moved = found.adapt(NEW, sparsity=sparsity, seed=3)
        assert moved.kept == keep_count(moved.total, sparsity)
        assert moved == found.adapt(NEW, sparsity=sparsity, seed=3)
        assert moved.provenance["adapted"]["sparsity"] == sparsity
        ours, theirs = moved.mask("b"), found.mask("b")
        assert torch.equal(ours & theirs, ours if ours.sum() < theirs.sum() else theirs)
    assert torch.equal(found.adapt(NEW, sparsity=0.6).mask("b"), found.mask("b"))
    same = found.adapt(SHALLOW, sparsity=0.5)
    assert same.kept == keep_count(same.total, 0.5)
    exact = Architecture({"a": torch.arange(4) < 2, "b": torch.arange(6) < 3})
    assert exact.adapt(exact.shapes, sparsity=0.5) is exact


def test_impossible_sparsities_elsewhere() -> None:
    found = Architecture({name: torch.ones(shape) > 0 for name, shape in SHALLOW.items()})
    with pytest.raises(SettingError, match="leave no choice of the sparsity"):
        found.adapt(NEW, mismatch="dense", sparsity=0.5)
    with pytest.raises(SettingError, match="too few for 3 layers of other shapes"):
        found.adapt(NEW, sparsity=0.998)
