"""The two-temperature operator against hand-worked numbers, finite differences and plain autograd."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from aprune.connections import attach_masks
from aprune.errors import SettingError
from aprune.maths.relaxation import binary_mask, relax, warm_slope

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]

# Dynamo instantiates every autograd function that it traces, whoever wrote it.
torch_deprecates_its_own = pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning"
)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def gradients(theta: Tensor, w: Tensor, t_l: float, t_s: float, g: Tensor) -> tuple[Tensor, Tensor]:
    theta, w = theta.detach().requires_grad_(), w.detach().requires_grad_()
    relax(theta, w, t_l, t_s).backward(g)
    assert theta.grad is not None
    assert w.grad is not None
    return theta.grad, w.grad


def test_numbers_worked_by_hand() -> None:
    # σ(ln 3) = 3/4 and σ(−ln 3) = 1/4, so with t_l = 2 and t_s = 1 every number is a fraction.
    w = torch.tensor([math.log(3) / 2, -math.log(3) / 2, 0.0], dtype=torch.float64)
    theta = torch.tensor([8.0, 8.0, -8.0], dtype=torch.float64)
    g = torch.tensor([2.0, 2.0, 1.0], dtype=torch.float64)
    assert torch.allclose(relax(theta, w, 2.0, 1.0), torch.tensor([6.0, 2.0, -4.0]).double())
    by_theta, by_w = gradients(theta, w, 2.0, 1.0, g)
    assert torch.allclose(by_theta, torch.tensor([1.5, 0.5, 0.5]).double())
    # σ(ln√3)·σ(−ln√3) = √3/(1 + √3)²
    slope = math.sqrt(3) / (1 + math.sqrt(3)) ** 2
    assert torch.allclose(by_w, torch.tensor([16 * slope, 16 * slope, -8 * 0.25]).double())


def test_w_has_the_gradient_of_the_warm_sigmoid() -> None:
    theta, w, g = draw(40, seed=1), draw(40, seed=2), draw(40, seed=3)
    t_l, t_s, h = 1000.0, 7.0, 1e-5
    _, by_w = gradients(theta, w, t_l, t_s, g)
    above, below = (g * theta * torch.sigmoid(t_s * (w + d)) for d in (h, -h))
    assert torch.allclose(by_w, (above - below) / (2 * h), rtol=1e-7, atol=1e-9)
    # and not that of the cold one
    above, below = (g * theta * torch.sigmoid(t_l * (w + d)) for d in (h, -h))
    assert not torch.allclose(by_w, (above - below) / (2 * h), rtol=0.1)


def test_theta_has_the_gradient_of_the_cold_sigmoid() -> None:
    theta, w, g = draw(40, seed=1), 0.01 * draw(40, seed=2), draw(40, seed=3)
    h = 1e-6
    by_theta, _ = gradients(theta, w, 100.0, 3.0, g)
    above, below = (g * relax(theta + d, w, 100.0, 3.0) for d in (h, -h))
    assert torch.allclose(by_theta, (above - below) / (2 * h), rtol=1e-7, atol=1e-9)


def test_equal_temperatures_give_the_exact_gradient() -> None:
    theta, w = draw(3, 4, seed=1).requires_grad_(), draw(3, 4, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: relax(a, b, 3.0, 3.0), (theta, w))
    assert torch.autograd.gradgradcheck(lambda a, b: relax(a, b, 3.0, 3.0), (theta, w))


@pytest.mark.parametrize("theta_dtype", FLOATS)
@pytest.mark.parametrize("w_dtype", FLOATS)
def test_dtypes_may_be_mixed(theta_dtype: torch.dtype, w_dtype: torch.dtype) -> None:
    theta, w = draw(50, seed=1, dtype=theta_dtype), draw(50, seed=2, dtype=w_dtype)
    g = draw(50, seed=3, dtype=theta_dtype)
    masked = relax(theta, w, 4.0, 2.0)
    by_theta, by_w = gradients(theta, w, 4.0, 2.0, g)
    assert (masked.dtype, by_theta.dtype, by_w.dtype) == (theta_dtype, theta_dtype, w_dtype)
    exact = relax(theta.double(), w.double(), 4.0, 2.0)
    exact_theta, exact_w = gradients(theta.double(), w.double(), 4.0, 2.0, g.double())
    for got, expected in ((masked, exact), (by_theta, exact_theta), (by_w, exact_w)):
        # computed in float32 or better inside, and rounded once at the end
        assert torch.allclose(
            got.double(), expected, rtol=torch.finfo(got.dtype).eps + 1e-6, atol=1e-6
        )


@settings(max_examples=30, deadline=None)
@given(
    shape=st.tuples(*[st.integers(1, 4)] * 4),
    last=st.tuples(st.booleans(), st.booleans()),
    seed=st.integers(0, 100),
)
def test_the_memory_format_changes_no_value(
    shape: tuple[int, ...], last: tuple[bool, bool], seed: int
) -> None:
    formats = [torch.channels_last if flag else torch.contiguous_format for flag in last]
    theta, w, g = (draw(*shape, seed=seed + i) for i in range(3))
    plain = (relax(theta, w, 9.0, 2.0), *gradients(theta, w, 9.0, 2.0, g))
    theta, w = theta.contiguous(memory_format=formats[0]), w.contiguous(memory_format=formats[1])
    moved = (relax(theta, w, 9.0, 2.0), *gradients(theta, w, 9.0, 2.0, g))
    for one, other in zip(plain, moved, strict=True):
        assert one.shape == other.shape
        # another order of the loop may round a sigmoid's last bit the other way
        assert torch.allclose(one, other, rtol=1e-14, atol=0)


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (2, 3, 4, 5, 6)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    theta, w = draw(*shape, seed=1), draw(*shape, seed=2)
    by_theta, by_w = gradients(theta, w, 5.0, 1.0, torch.ones(shape, dtype=torch.float64))
    assert by_theta.shape == by_w.shape == relax(theta, w, 5.0, 1.0).shape == shape
    assert torch.allclose(by_theta, torch.sigmoid(5.0 * w))


def test_shapes_must_agree() -> None:
    with pytest.raises(SettingError, match=r"shape \(3, 4\) and w \(4,\)"):
        relax(torch.zeros(3, 4), torch.zeros(4), 1.0, 1.0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_no_finite_product_overflows(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    w = torch.tensor([-largest, -1e4, -60.0, 0.0, 60.0, 1e4, largest], dtype=dtype)
    theta = torch.full_like(w, 3.0)
    wide = 1e30 if dtype.itemsize > 2 else 1e4  # the slope at 0 itself is t_s/4
    for t_l, t_s in ((1e30, wide), (1e4, 1e2), (1.0, 1e-30)):
        masked = relax(theta, w, t_l, t_s)
        by_theta, by_w = gradients(theta, w, t_l, t_s, torch.ones_like(w))
        assert all(bool(tensor.isfinite().all()) for tensor in (masked, by_theta, by_w))
        assert masked[[0, 3, 6]].tolist() == [0.0, 1.5, 3.0]
        assert bool((by_w >= 0).all())


def test_the_slope_keeps_its_digits_on_both_sides() -> None:
    # e⁻ˣ to first order; 1 − σ(x) would be 0 in float32 for x = 40
    assert warm_slope(torch.tensor([40.0]), 1.0).item() == pytest.approx(math.exp(-40), rel=1e-5)
    assert warm_slope(torch.tensor([-40.0]), 1.0).item() == pytest.approx(math.exp(-40), rel=1e-5)


def test_binary_mask_is_the_limit() -> None:
    w = torch.tensor([-2.0, -1e-9, 1e-9, 2.0])
    assert torch.equal(binary_mask(w).float(), torch.sigmoid(1e30 * w))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_else_is_kept_for_the_backward_pass(dtype: torch.dtype) -> None:
    theta = draw(20, dtype=dtype).requires_grad_()
    w = draw(20, seed=1, dtype=torch.float32).requires_grad_()
    kept: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        relax(theta, w, 100.0, 10.0)
    assert sorted(kept) == sorted([theta.data_ptr(), w.data_ptr()])


def test_only_what_is_asked_for_gets_a_gradient() -> None:
    theta, w = draw(5).requires_grad_(), draw(5, seed=1)
    relax(theta, w, 5.0, 1.0).sum().backward()
    assert theta.grad is not None
    theta, w = draw(5), draw(5, seed=1).requires_grad_()
    relax(theta, w, 5.0, 1.0).sum().backward()
    assert w.grad is not None
    assert theta.grad is None


def test_under_autocast() -> None:
    theta = draw(4, 6, dtype=torch.float32).requires_grad_()
    w = draw(4, 6, seed=1, dtype=torch.float32).requires_grad_()
    x = draw(8, 6, seed=2, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        masked = relax(theta, w, 5.0, 2.0)
        out = nn.functional.linear(x, masked)
    assert (masked.dtype, out.dtype) == (torch.float32, torch.bfloat16)
    out.float().square().sum().backward()
    got = (theta.grad, w.grad)
    theta.grad = w.grad = None
    nn.functional.linear(x, relax(theta, w, 5.0, 2.0)).square().sum().backward()
    for half, whole in zip(got, (theta.grad, w.grad), strict=True):
        assert half is not None
        assert whole is not None
        assert half.dtype == torch.float32
        assert torch.allclose(half, whole, rtol=0.05, atol=0.05 * whole.abs().max().item())


@torch_deprecates_its_own
def test_compiles_into_one_graph() -> None:
    theta = draw(4, 6, dtype=torch.float32).requires_grad_()
    w = draw(4, 6, seed=1, dtype=torch.float32).requires_grad_()
    x = draw(8, 6, seed=2, dtype=torch.float32)

    def loss(theta: Tensor, w: Tensor) -> Tensor:
        return nn.functional.linear(x, relax(theta, w, 5.0, 2.0)).square().sum()

    expected = torch.autograd.grad(loss(theta, w), (theta, w))
    torch._dynamo.reset()  # other tests of the process may have compiled as often as is allowed
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    got = torch.autograd.grad(compiled(theta, w), (theta, w))
    for one, other in zip(expected, got, strict=True):
        assert torch.allclose(one, other, rtol=1e-5)


@torch_deprecates_its_own
def test_a_parametrised_network_compiles() -> None:
    layer = nn.Linear(6, 4)
    attach_masks(layer, {"weight": draw(4, 6, dtype=torch.float32)}, t_l=5.0, t_s=2.0)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x = draw(8, 6, seed=2, dtype=torch.float32)
    expected = layer(x)
    assert torch.allclose(compiled(x), expected, atol=1e-6)
    compiled(x).square().sum().backward()
    by_w = layer.parametrizations.weight[0].w.grad.clone()
    layer.parametrizations.weight[0].w.grad = None
    layer(x).square().sum().backward()
    assert torch.allclose(by_w, layer.parametrizations.weight[0].w.grad, rtol=1e-5)


def test_a_copy_of_a_parametrised_network_is_whole_and_apart() -> None:
    layer = nn.Linear(6, 4)
    attach_masks(layer, {"weight": draw(4, 6, dtype=torch.float32)}, t_l=5.0, t_s=2.0)
    twin = copy.deepcopy(layer)
    x = draw(3, 6, seed=2, dtype=torch.float32)
    assert torch.equal(twin(x), layer(x))
    twin(x).sum().backward()
    assert layer.parametrizations.weight[0].w.grad is None
    assert twin.parametrizations.weight[0].w.grad.abs().sum() > 0
    with torch.no_grad():
        twin.parametrizations.weight[0].w.fill_(-9.0)
    assert twin.weight.abs().max() < 1e-10 < layer.weight.abs().max()


@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0), (1, 0)])
def test_vmap_is_a_loop(dims: tuple[int | None, int | None]) -> None:
    theta, w = draw(3, 3, 5, seed=1), draw(3, 3, 5, seed=2)
    theta, w = (t if d is not None else t[0] for t, d in zip((theta, w), dims, strict=True))

    def loss(theta: Tensor, w: Tensor) -> Tensor:
        return relax(theta, w, 6.0, 2.0).square().sum()

    def part(tensor: Tensor, dim: int | None, index: int) -> Tensor:
        return tensor if dim is None else tensor.select(dim, index)

    out = torch.func.vmap(lambda a, b: relax(a, b, 6.0, 2.0), in_dims=dims)(theta, w)
    both = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=dims)(theta, w)
    for index in range(3):
        one, other = part(theta, dims[0], index), part(w, dims[1], index)
        assert torch.allclose(out[index], relax(one, other, 6.0, 2.0))
        expected = gradients(one, other, 6.0, 2.0, 2 * relax(one, other, 6.0, 2.0))
        for got, exact in zip(both, expected, strict=True):
            assert torch.allclose(got[index], exact)
