import copy
import hashlib
import pickle
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aprune.architecture import Architecture, Layer, Overlap
from aprune.errors import ArchitectureError, SettingError


def mask_of(*rows: str) -> torch.Tensor:
    """Rows of a mask as text: 'x' is a connection."""
    return torch.tensor([[letter == "x" for letter in row] for row in rows])


def random_masks(shapes, seed=0, density=0.4):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.rand(shape, generator=generator) < density for name, shape in shapes.items()
    }


shape_lists = st.lists(
    st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple), min_size=1, max_size=4
)


@st.composite
def architectures(draw):
    shapes = {f"layer{i}.weight": shape for i, shape in enumerate(draw(shape_lists))}
    bits = draw(st.binary(min_size=1, max_size=20))
    stream = np.resize(
        np.unpackbits(np.frombuffer(bits, np.uint8)), sum(map(prod, shapes.values()))
    )
    masks, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + prod(shape)
        masks[name] = torch.from_numpy(stream[begin:end].astype(bool)).view(shape)
    return Architecture(masks), masks


CONVOLUTIONAL = {
    "features.0.weight": (4, 3, 3, 3),
    "features.1.weight": (8, 4, 3, 3),
    "classifier.0.weight": (16, 32),
    "classifier.1.weight": (16, 16),
    "classifier.2.weight": (10, 16),
}


@given(architectures())
def test_masks_come_back(made):
    arch, masks = made
    assert arch.names == tuple(masks)
    assert dict(arch.shapes) == {name: tuple(mask.shape) for name, mask in masks.items()}
    assert all(torch.equal(arch.mask(name), mask) for name, mask in masks.items())
    assert arch.total == sum(mask.numel() for mask in masks.values())
    assert arch.kept == sum(int(mask.sum()) for mask in masks.values())
    assert arch.density == arch.kept / arch.total
    assert arch.sparsity == pytest.approx(1 - arch.density, abs=1e-15)


def test_memory_format_does_not_matter():
    mask = torch.rand(4, 3, 5, 5) < 0.3
    plain = Architecture({"w": mask})
    assert Architecture({"w": mask.to(memory_format=torch.channels_last)}) == plain
    assert Architecture({"w": mask.mT.contiguous().mT}) == plain
    assert plain.mask("w").is_contiguous()


def test_it_cannot_be_changed():
    mask = mask_of("x.", "xx")
    notes = {"seed": 1, "nested": {"list": [1]}}
    arch = Architecture({"w": mask}, notes)
    mask.fill_(False)
    arch.mask("w").fill_(False)
    arch.masks()["w"].fill_(False)
    notes["nested"]["list"].append(2)
    arch.provenance["nested"]["list"].append(3)
    assert arch.mask("w").tolist() == [[True, False], [True, True]]
    assert arch.provenance == {"seed": 1, "nested": {"list": [1]}}
    with pytest.raises(TypeError):
        arch.provenance["seed"] = 2
    with pytest.raises(TypeError):
        arch.shapes["w"] = (1,)
    with pytest.raises(AttributeError, match="cannot be changed"):
        arch.kept = 3
    with pytest.raises(AttributeError, match="cannot be changed"):
        arch._content = None


def test_copies_are_the_same_object():
    arch = Architecture({"w": mask_of("x.")})
    assert copy.copy(arch) is arch
    assert copy.deepcopy({"a": [arch]})["a"][0] is arch


def test_another_process_gets_it_whole_with_a_bit_a_connection():
    arch = Architecture({"w": torch.arange(80_000) % 7 == 0}, {"seed": 3})
    sent = pickle.dumps(arch)
    assert len(sent) < 11_000
    got = pickle.loads(sent)
    assert got == arch
    assert (got.kept, got.provenance) == (arch.kept, arch.provenance)
    with pytest.raises(AttributeError, match="cannot be changed"):
        got._content = None


def test_equality_is_about_connections_names_and_shapes():
    arch = Architecture({"a": mask_of("x."), "b": mask_of(".x")})
    same = Architecture({"a": mask_of("x."), "b": mask_of(".x")}, {"seed": 7})
    assert arch == same
    assert hash(arch) == hash(same)
    others = [
        Architecture({"a": mask_of("x."), "b": mask_of("xx")}),
        Architecture({"a": mask_of("x."), "c": mask_of(".x")}),
        Architecture({"a": mask_of("x."), "b": mask_of(".", "x")}),
        Architecture({"b": mask_of(".x"), "a": mask_of("x.")}),
    ]
    assert all(arch != other for other in others)
    assert arch != "arch"


def test_fingerprint_is_of_names_shapes_and_their_order():
    arch = Architecture({"a": mask_of("x."), "b": mask_of("..")})
    assert len(arch.fingerprint) == 64
    assert Architecture({"a": mask_of(".."), "b": mask_of("xx")}).fingerprint == arch.fingerprint
    assert Architecture({"b": mask_of(".."), "a": mask_of("xx")}).fingerprint != arch.fingerprint
    assert Architecture({"a": mask_of("."), "b": mask_of("..")}).fingerprint != arch.fingerprint


def test_repr_says_what_it_is():
    arch = Architecture({"a": mask_of("x..."), "b": torch.zeros(1, 1996, dtype=torch.bool)})
    assert repr(arch) == "Architecture(1 of 2,000 connections in 2 tensors, sparsity 0.9995)"


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ({}, "there is no mask"),
        ({"w": torch.ones(2, 2)}, "the mask of 'w' is torch.float32: expected a boolean tensor"),
        ({"w": [[True]]}, "the mask of 'w' is list: expected a boolean tensor"),
        ({"w": torch.tensor(True)}, "the mask of 'w' has 0 dimensions: expected 1 to 32"),
        ({"w": torch.zeros(3, 0, dtype=torch.bool)}, "is 3×0: expected sizes of 1 or more"),
        ({"__metadata__": mask_of("x")}, "a mask is called '__metadata__'"),
        ({"": mask_of("x")}, "a mask is called ''"),
        ({3: mask_of("x")}, "a mask is called 3"),
        ({"\ud800": mask_of("x")}, "a mask is called"),
        ({"w": torch.ones((1,) * 33, dtype=torch.bool)}, "has 33 dimensions"),
    ],
)
def test_what_is_no_architecture(masks, message):
    with pytest.raises(ArchitectureError) as caught:
        Architecture(masks)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "provenance",
    [{"x": float("nan")}, {"x": object()}, {1: 1, "1": 2}, {"x": "\ud800"}, {"x": {1, 2}}],
)
def test_provenance_has_to_fit_into_json(provenance):
    with pytest.raises(ArchitectureError, match="does not fit into JSON"):
        Architecture({"w": mask_of("x")}, provenance)


def test_endless_provenance():
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(ArchitectureError, match="does not fit into JSON"):
        Architecture({"w": mask_of("x")}, {"x": endless})


def test_more_provenance():
    arch = Architecture({"w": mask_of("x")}, {"seed": 1, "task": "digits"})
    more = arch.with_provenance(seed=2, method="ap")
    assert more == arch
    assert dict(more.provenance) == {"seed": 2, "task": "digits", "method": "ap"}
    assert dict(arch.provenance) == {"seed": 1, "task": "digits"}


def test_unknown_name():
    with pytest.raises(ArchitectureError, match="no mask of 'v': expected a name such as 'w'"):
        Architecture({"w": mask_of("x")}).mask("v")


def test_layers_by_hand():
    kernel = torch.zeros(2, 3, 2, 2, dtype=torch.bool)
    kernel[1, 0, 0, 1] = kernel[1, 2, 1, 1] = True
    arch = Architecture(
        {
            "conv": kernel,
            "head": mask_of("x.x.", "....", "x..."),
            "bias": torch.tensor([True, False, False]),
            "gone": mask_of("..", ".."),
        }
    )
    conv, head, bias, gone = arch.layers()
    assert conv == Layer("conv", (2, 3, 2, 2), 24, 2, 2, 3, 1, 1)
    assert head == Layer("head", (3, 4), 12, 3, 3, 4, 1, 2)
    assert bias == Layer("bias", (3,), 3, 1, 3, 0, 2, 0)
    assert gone == Layer("gone", (2, 2), 4, 0, 2, 2, 2, 2)
    assert (head.density, head.sparsity) == (0.25, 0.75)
    assert arch.empty_layers() == ("gone",)


def test_overlap_by_hand():
    one = Architecture({"a": mask_of("xx.."), "b": mask_of("xxxx", "....")})
    two = Architecture({"a": mask_of("x..."), "b": mask_of("xx..", "..xx")})
    # Shared 1 + 2 of 6 and 5; either 6 + 5 − 3 = 8; by chance 2·1/4 + 4·4/8 = 2.5.
    assert one.overlap(two) == Overlap(3, 3 / 8, 3 / 6, 3 / 5, 2.5)
    assert one.overlap(one) == Overlap(6, 1.0, 1.0, 1.0, 2 * 2 / 4 + 4 * 4 / 8)
    none = Architecture({"a": mask_of("...."), "b": mask_of("....", "....")})
    assert one.overlap(none) == Overlap(0, 0.0, 0.0, 1.0, 0.0)
    assert none.overlap(none) == Overlap(0, 1.0, 1.0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"a": (2, 3)}, "'b' is 3×4 in one and absent in the other"),
        ({"a": (2, 3), "b": (3, 4), "c": (1, 1)}, "'c' is absent in one and 1×1 in the other"),
        ({"a": (2, 3), "b": (4, 3)}, "'b' is 3×4 in one and 4×3 in the other"),
    ],
)
def test_overlap_of_different_parents(other, difference):
    arch = Architecture(random_masks({"a": (2, 3), "b": (3, 4)}))
    with pytest.raises(ArchitectureError) as caught:
        arch.overlap(Architecture(random_masks(other)))
    assert difference in str(caught.value)


@given(architectures(), st.integers(-5, 2**70))
def test_shuffle_keeps_the_count_of_every_layer(made, seed):
    arch, _ = made
    shuffled = arch.shuffle(seed)
    assert shuffled.fingerprint == arch.fingerprint
    assert [x.kept for x in shuffled.layers()] == [x.kept for x in arch.layers()]
    assert shuffled.provenance == {"shuffled": seed}
    assert shuffled == arch.shuffle(seed)


def test_shuffle_moves_and_depends_on_the_seed_and_the_name():
    first = torch.arange(1000) < 300
    arch = Architecture({"a": first, "b": first}, {"method": "ap"})
    shuffled = arch.shuffle(0)
    assert shuffled.provenance == {"method": "ap", "shuffled": 0}
    assert shuffled != arch.shuffle(1)
    assert not torch.equal(shuffled.mask("a"), shuffled.mask("b"))
    # By chance 90 of the 300 stay, with a standard deviation of 6.6.
    assert abs(int((shuffled.mask("a") & first).sum()) - 90) < 40


def test_shuffle_is_the_same_on_every_machine():
    few = Architecture({"w": torch.arange(16) < 5}).shuffle(2024).mask("w")
    assert few.nonzero().flatten().tolist() == [5, 9, 12, 14, 15]
    many = Architecture({"w": torch.arange(1000) < 400}).shuffle(2024).mask("w")
    assert hashlib.sha256(bytes(many.tolist())).hexdigest()[:16] == "fa36c378721f37f6"


def test_adapt_where_everything_fits():
    arch = Architecture(random_masks(CONVOLUTIONAL))
    assert arch.adapt(CONVOLUTIONAL) is arch
    assert arch.adapt({name: torch.Size(shape) for name, shape in CONVOLUTIONAL.items()}) is arch


def test_adapt_to_other_channels_size_and_classes():
    arch = Architecture(random_masks(CONVOLUTIONAL), {"seed": 1})
    new = {
        "features.0.weight": (4, 1, 3, 3),
        "classifier.0.weight": (16, 8),
        "classifier.2.weight": (100, 16),
    }
    adapted = arch.adapt(CONVOLUTIONAL | new, seed=5)
    assert dict(adapted.shapes) == CONVOLUTIONAL | new
    assert adapted.names == arch.names
    for name in ("features.1.weight", "classifier.1.weight"):
        assert torch.equal(adapted.mask(name), arch.mask(name))
    densities = {layer.name: layer.density for layer in arch.layers()}
    for layer in adapted.layers():
        assert layer.kept == round(layer.total * densities[layer.name])
    assert adapted.provenance["seed"] == 1
    assert adapted.provenance["adapted"] == {"tensors": list(new), "mismatch": "random", "seed": 5}
    assert adapted == arch.adapt(CONVOLUTIONAL | new, seed=5)
    assert adapted != arch.adapt(CONVOLUTIONAL | new, seed=6)
    dense = arch.adapt(CONVOLUTIONAL | new, mismatch="dense")
    assert [x.density == 1 for x in dense.layers()] == [True, False, True, False, True]


def test_adapt_leaves_at_least_one_connection():
    arch = Architecture({"a": mask_of("x."), "head": mask_of("..", "..")})
    assert arch.adapt({"a": (1, 2), "head": (3, 2)}).layers()[1].kept == 1


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"features.1.weight": (9, 4, 3, 3)}, "'features.1.weight' is 8×4×3×3 in it and 9×4×3×3"),
        ({"classifier.1.weight": (16, 17)}, "'classifier.1.weight' is 16×16 in it and 16×17"),
        ({"features.0.weight": (4, 27)}, "'features.0.weight' is 4×3×3×3 in it and 4×27"),
        ({"extra.weight": (1, 1)}, "it has no 'extra.weight', which this network has"),
    ],
)
def test_adapt_to_another_parent(change, difference):
    arch = Architecture(random_masks(CONVOLUTIONAL))
    with pytest.raises(ArchitectureError) as caught:
        arch.adapt(CONVOLUTIONAL | change)
    assert str(caught.value).startswith("architecture of another parent: ")
    assert difference in str(caught.value)


@pytest.mark.parametrize(
    ("shapes", "difference"),
    [
        ({"a": (2, 3)}, "it has 'b', which this network has not"),
        ({"a": (2, 3), "c": (4, 2)}, "it has 'b' where this network has 'c'"),
        ({"a": (2, 5), "b": (5, 2)}, "no tensor has the same shape"),
    ],
)
def test_adapt_to_something_else_altogether(shapes, difference):
    arch = Architecture(random_masks({"a": (2, 3), "b": (4, 2)}))
    with pytest.raises(ArchitectureError) as caught:
        arch.adapt(shapes)
    assert difference in str(caught.value)


def test_adapt_refuses_what_is_no_choice_and_no_shape():
    arch = Architecture(random_masks({"a": (2, 3), "b": (4, 2)}))
    with pytest.raises(SettingError, match="expected 'random' or 'dense'"):
        arch.adapt({"a": (2, 3), "b": (5, 2)}, mismatch="sparse")
    with pytest.raises(ArchitectureError, match="is 0×2: expected sizes of 1 or more"):
        arch.adapt({"a": (2, 3), "b": (0, 2)})
