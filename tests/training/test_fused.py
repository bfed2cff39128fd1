"""One pass over all weights gives what PyTorch's own steps give, one after another."""

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import aprune.parents.vgg
from aprune import AP, Recipe, build_parent, find_connections, load_task
from aprune.descent import Search, draw_w
from aprune.errors import SettingError
from aprune.initialise import initialise
from aprune.methods.protocol import Outcome, Problem
from aprune.parents.vgg import VGG
from aprune.tasks import Task
from aprune.training import fit
from aprune.training.engine import EngineName, choose_engine
from aprune.training.fused import FusedUpdate, obstacle
from aprune.training.masked import Lane, fit_masked
from aprune.training.shadow import computes_narrowly
from helpers import other_world

RECIPE = Recipe(steps=6, lr=0.05, batch=8, schedule="constant")
RECIPES = {
    "clipped": RECIPE.but(clip=0.2),
    "not clipped": replace(RECIPE, clip=None),
    "nesterov": RECIPE.but(nesterov=True, weight_decay=0.01),
    "adam": RECIPE.but(optimiser="adam", lr=0.001, weight_decay=0.1),
}


def digits() -> Task:
    return load_task("digits", classes=[0, 1, 2], images=30)


def network(task: Task, parent: str = "conv") -> nn.Module:
    model = build_parent(parent, task)
    initialise(model, scheme="he", seed=0)
    return model


def masks_of(model: nn.Module, density: float = 0.4) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        name: torch.rand(weight.shape, generator=generator) < density
        for name, weight in find_connections(model).items()
    }


def assert_alike(ours: nn.Module, theirs: nn.Module, tolerance: float = 2e-5) -> None:
    other = theirs.state_dict()
    assert {name: value.shape for name, value in ours.state_dict().items()} == {
        name: value.shape for name, value in other.items()
    }
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(value, other[name], atol=tolerance, rtol=1e-4, msg=name)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
@pytest.mark.parametrize("masked", [True, False])
def test_training_gives_the_same_network(recipe: Recipe, masked: bool) -> None:
    task = digits()
    ours, theirs = network(task), network(task)
    masks = masks_of(ours) if masked else {}
    curves = [
        fit_masked(model, masks, task, recipe, seed=3, engine=engine, progress=False)
        for model, engine in ((ours, "fused"), (theirs, "eager"))
    ]
    torch.testing.assert_close(curves[0].loss, curves[1].loss, atol=1e-5, rtol=1e-5)
    assert_alike(ours, theirs)
    for name, mask in masks.items():
        assert (ours.get_parameter(name)[~mask] == 0).all()
    assert curves[0].loss[0] != curves[0].loss[-1]


def test_a_lane_takes_one_network_after_another() -> None:
    task, lane = digits(), Lane(network(digits()), engine="fused")
    for seed in range(2):
        theirs = network(task)
        initialise(lane.model, scheme="he", seed=seed)
        initialise(theirs, scheme="he", seed=seed)
        masks = masks_of(theirs, density=0.3 + 0.4 * seed)
        with lane.run(masks, task, RECIPE, seed=seed) as training:
            while not training.done:
                training.advance()
            curve = training.finish()
        other = fit_masked(theirs, masks, task, RECIPE, seed=seed, progress=False)
        torch.testing.assert_close(curve.loss, other.loss, atol=1e-5, rtol=1e-5)
        assert_alike(lane.model, theirs)


def test_of_four_connections_that_are_off_nothing_is_read_or_written() -> None:
    task, recipe = digits(), RECIPE.but(clip=0.2)
    lane, theirs = Lane(network(task, "mlp"), engine="fused"), network(task, "mlp")
    masks = masks_of(theirs, density=0.05)
    name = max(masks, key=lambda name: masks[name].numel())
    off = ~masks[name].view(-1, 4).any(1)
    assert 0.7 < off.float().mean() < 0.9
    with lane.run(masks, task, recipe, seed=0) as training:
        assert isinstance(lane._masked, FusedUpdate)
        momenta = lane._masked._entries[name].first.view(-1, 4)
        momenta[off] = torch.nan  # whoever reads that passes it on
        while not training.done:
            training.advance()
        training.finish()
    assert momenta[off].isnan().all()
    assert momenta[~off].isfinite().all()
    fit_masked(theirs, masks, task, recipe, seed=0, engine="eager", progress=False)
    assert_alike(lane.model, theirs)


def test_which_masks_leave_little_is_noted_anew_for_each_network() -> None:
    task, model = digits(), network(digits(), "mlp")
    lane = Lane(model, engine="fused")
    for density in (0.05, 0.5, 0.08):
        with lane.run(masks_of(model, density), task, RECIPE, seed=0) as training:
            training.advance()
            assert isinstance(lane._masked, FusedUpdate)
            noted = lane._masked._table[:, -1].tolist()
            connections = [entry.mask is not None for entry in lane._masked._entries.values()]
            assert noted == [int(there and density < 1 / 12) for there in connections]
            training.step = RECIPE.steps


def search(model: nn.Module, task: Task, method: AP, recipe: Recipe, *, engine: str) -> Outcome:
    return method.search(
        Problem(
            model,
            tuple(find_connections(model)),
            task,
            (0.3, 0.8),
            recipe=recipe,
            seed=0,
            weights=True,
            progress=False,
            engine=engine,
        )
    )


METHODS = {
    "auto": AP(),
    "gamma": replace(AP(), gamma=0.1, w_step=2.0, relative=False, dense_start=0.0, w_scale=0.3),
    "layers": AP(layer_share=30.0),
}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_search_finds_the_same_architectures_and_weights(recipe: Recipe) -> None:
    assert_same_search(AP(), recipe.but(steps=12))


def test_search_with_a_fixed_penalty_is_the_same_too() -> None:
    assert_same_search(METHODS["gamma"], RECIPE.but(steps=12))


@pytest.mark.parametrize("parent", ["logistic", "conv"])
def test_search_whose_layers_move_as_a_whole_is_the_same_too(parent: str) -> None:
    assert_same_search(METHODS["layers"], RECIPE.but(steps=12), parent)


def assert_same_search(method: AP, recipe: Recipe, parent: str = "logistic") -> None:
    task = digits()
    ours, theirs = network(task, parent), network(task, parent)
    fused = search(ours, task, method, recipe, engine="fused")
    plain = search(theirs, task, method, recipe, engine="eager")
    torch.testing.assert_close(fused.curves[0].loss, plain.curves[0].loss, atol=1e-5, rtol=1e-5)
    assert fused.masks.keys() == plain.masks.keys() == {0.3, 0.8}
    for sparsity, masks in plain.masks.items():
        for name, mask in masks.items():
            assert torch.equal(fused.masks[sparsity][name], mask)
        for name, value in plain.weights[sparsity].items():
            torch.testing.assert_close(fused.weights[sparsity][name], value, atol=2e-5, rtol=1e-4)
    assert_alike(ours, theirs)


@pytest.mark.parametrize("name", ["auto", "layers"])
def test_equal_inputs_of_a_vgg_are_summed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aprune.parents.vgg, "_WIDTHS", (4, 4, 4, 4, 4))
    monkeypatch.setattr(aprune.parents.vgg, "_HIDDEN", 8)
    task = other_world(channels=1, size=32, classes=3)
    ours, theirs = (VGG((1, 32, 32), 3, depth=11, batch_norm=False) for _ in range(2))
    recipe = RECIPE.but(steps=8, batch=6)
    seen: list[tuple[int, ...]] = []
    ours.classifier[0].register_forward_hook(lambda layer, args, out: seen.append(args[0].shape))
    fused = search(ours, task, METHODS[name], recipe, engine="fused")
    plain = search(theirs, task, METHODS[name], recipe, engine="eager")
    assert seen[0] == (6, 4)  # 4 inputs in place of 4 · 49
    for sparsity, masks in plain.masks.items():
        for name, mask in masks.items():
            assert torch.equal(fused.masks[sparsity][name], mask)
    assert_alike(ours, theirs)
    assert type(ours.avgpool) is nn.AdaptiveAvgPool2d


def test_what_stands_against_it(monkeypatch: pytest.MonkeyPatch) -> None:
    linear, tied = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert obstacle(linear) is None
    assert obstacle(build_parent("conv_bn", digits()).to(memory_format=torch.channels_last)) is None
    tied[1].weight = tied[0].weight
    gaps = nn.Linear(2, 2)
    gaps.weight = nn.Parameter(torch.zeros(2, 4)[:, ::2])
    for model, reason in (
        (tied, "share a weight"),
        (nn.LSTM(2, 2), "recurrent layer"),
        (nn.Linear(2, 2).double(), "float32"),
        (gaps, "in one piece"),
    ):
        assert reason in (obstacle(model) or "")
        with pytest.raises(SettingError, match=f"'fused' cannot train this network: .*{reason}"):
            choose_engine("fused", model, steps=1)
        assert choose_engine("auto", model, steps=1) == "eager"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert obstacle(linear) == "Triton is not installed"
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert obstacle(linear) == "its weights are on cpu, not on a GPU"


class OwnCode(nn.Module):
    """Computes a part in float32, whatever surrounds it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return self.head(x.float())


def test_layers_in_code_of_ones_own_keep_their_type() -> None:
    assert computes_narrowly(build_parent("conv_bn", digits()))
    assert computes_narrowly(build_parent("resnet20", digits()))
    assert not computes_narrowly(nn.Sequential(nn.Linear(2, 2), OwnCode()))


def test_the_state_in_the_middle_of_a_search_has_the_weights_themselves() -> None:
    task = digits()
    model = network(task, "mlp")
    chosen = dict(list(find_connections(model).items())[:1])  # the others are left alone
    method = replace(AP(), sparsity=0.5, steps=10)
    search = Search(model, method, chosen, draw_w(method, chosen, 0), attached=False)
    fused = FusedUpdate(model, RECIPE, mover=search)
    search.behind = fused.weights()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with fused.in_place():
        for name, entry in fused._entries.items():  # what a GPU would show
            module = model.get_submodule(name.rpartition(".")[0])
            module._parameters[entry.name] = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
        state = search._state(
            {name: torch.ones_like(w, dtype=torch.bool) for name, w in chosen.items()}
        )
    assert state.keys() == before.keys()
    assert all(torch.equal(state[name], value) for name, value in before.items())


class OnGpu(nn.Linear):
    """Says that its weights are on a GPU."""

    def __init__(self) -> None:
        super().__init__(2, 2, bias=False)
        self.register_parameter("weight", PretendsToBeOnGpu(torch.zeros(2, 2)))


class PretendsToBeOnGpu(nn.Parameter):
    device = torch.device("cuda", 0)


def test_gpus_that_nobody_has_tried_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Card 9000")
    for capability, engine in (((9, 0), "fused"), ((7, 5), "captured")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, c=capability: c)
        assert choose_engine("auto", OnGpu(), steps=1) == engine
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert choose_engine("auto", OnGpu(), steps=10**6) == "compiled"
    monkeypatch.setattr(torch.version, "hip", "6.0")
    assert choose_engine("auto", OnGpu(), steps=10**6) == "captured"
    with pytest.raises(SettingError, match="Card 9000 is too old, or not NVIDIA's; use auto"):
        choose_engine("fused", OnGpu(), steps=1)


@pytest.mark.parametrize("engine", ["captured", "compiled"])
def test_some_engines_need_a_gpu(engine: EngineName) -> None:
    with pytest.raises(SettingError, match=f"{engine!r} cannot train.* not on a GPU; use auto"):
        choose_engine(engine, nn.Linear(2, 2), steps=1)


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(SettingError, match="unknown engine 'steam': expected one of auto, eager"):
        choose_engine("steam", nn.Linear(2, 2), steps=1)


def test_what_is_on_is_counted_along_the_way() -> None:
    task = digits()
    model = network(task, "logistic")
    connections = find_connections(model)
    method = replace(AP(), sparsity=0.5, steps=10, dense_start=0.0)
    search = Search(model, method, connections, draw_w(method, connections, 0), attached=False)
    fused = FusedUpdate(model, RECIPE, mover=search)
    with fused.in_place():
        fit(model, task, RECIPE.but(steps=10), seed=0, hooks=[search], update=fused)
    assert fused.active() == sum(int((w > 0).sum()) for w in search.w.values()) == 96


@pytest.mark.parametrize("kind", ["spread", "equal", "few", "beyond", "one"])
def test_the_drift_is_the_one_that_sorting_finds(kind: str) -> None:
    """On w alone: without gradients the ratio is w/(1 + w)."""
    generator = torch.Generator().manual_seed(0)
    w = {
        "spread": torch.randn(5_000, generator=generator),
        "equal": torch.full((3_000,), 0.7),
        "few": torch.tensor([0.1, 0.2, 1e-30, -0.5]).repeat(1_000),
        "beyond": torch.tensor([-1.0, -3.0, 2.0, 1e30, 0.0]).repeat(700),
        "one": torch.tensor([0.3]),
    }[kind]
    model = nn.Linear(len(w), 1, bias=False)
    method = replace(AP(), sparsity=0.5, steps=10, dense_start=0.0)
    connections = {"weight": model.weight}
    search = Search(model, method, connections, {"weight": w[None].clone()}, attached=False)
    fused = FusedUpdate(model, RECIPE, mover=search)
    ratios = torch.where(w > -1, w / (1 + w), -torch.inf).clamp(0, 1).sort(descending=True).values
    for keep in (0.0, 0.001, 0.3, 0.5, 0.999, 1.0):
        search.w["weight"].detach().copy_(w[None])
        search.descent.aim(0.1, keep)
        model.weight.grad = None
        fused.move()
        rank = round(keep * len(w))
        expected = ratios[rank].item() if rank < len(w) else 0.0
        found = fused._numbers[3].item()
        assert expected * (1 - 2**-13) <= found <= expected * (1 + 1e-6), keep


COMPILE = """
import re
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from aprune.training import decide, kernels

TYPES = {
    "table": "*i64", "gradients": "*i64", "chunks": "*i64", "sums": "*fp32", "active": "*i32",
    "numbers": "*fp32", "t_l": "fp32", "t_s": "fp32", "momentum": "fp32", "weight_decay": "fp32",
    "lr": "*fp32", "floats": "*fp32", "counts": "*i64", "clip": "fp32", "gamma": "fp32",
    "memory": "fp32", "jump": "fp32", "places": "*i64", "ratios": "*i32", "found": "*i32",
    "total": "i32", "runs": "i32", "shares": "*fp32", "parts": "*i64", "layer_share": "fp32",
    "most": "fp32",
}

def build(kernel, constants, **types):
    signature = {name: (TYPES | types).get(name, "constexpr") for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs={})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm

search = {"W": True, "MASK": False, "NARROW": True, "MOVES": True, "SHARES": False}
shares = {"SHARES": True}
shape = {"EVEN": True, "BLOCK": 1024, "PIECES": 8}
even = shape | {"MERGED": False, "COPIES": 1}
merged = shape | {"MERGED": True, "COPIES": 49, "UNITS": 20, "RUNS": 32}
sgd = {"NESTEROV": False, "ADAM": False, "SHADOW": True}
masked = {"W": False, "MASK": True, "MOVES": False}
for kernel, shape in [
    (kernels.measure, even),
    (kernels.update, sgd | even | {"UNITS": 1024, "RUNS": 1024}),
    (kernels.update, sgd | merged),
    (kernels.update, sgd | even | masked | {"UNITS": 1024, "RUNS": 1024}),
    (kernels.measure, even | shares),
    (kernels.measure, even | shares | {"MERGED": True, "COPIES": 49}),
    (kernels.update, sgd | merged | shares),
]:
    made = build(kernel, search | shape)
    wide = len(re.findall(r"(?:ld|st)[.]global[.]v[24]", made["ptx"]))
    print(kernel.__name__, shape["MERGED"], len(made["cubin"]) > 0, wide)
everything = dict.fromkeys(["CLIPS", "CHOOSES", "ADAM", "MOVES", "RELATIVE"], True)
build(decide.decide, everything | {"BLOCK": 8192}, chunks="i32", total="fp32")
build(decide.share, {"BLOCK": 1024})
build(decide.look_up, {"RUNS": 256, "RUN": 4})
build(decide.narrow_down, {"BLOCK": 1024})
"""


def test_kernels_compile_for_a_gpu_and_move_four_numbers_at_a_time(tmp_path: Path) -> None:
    script = tmp_path / "compile_kernels.py"  # Triton reads the source of what it compiles
    script.write_text(COMPILE)
    places = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, **places},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[:3] for line in lines] == [
        ["measure", "False", "True"],
        ["update", "False", "True"],
        ["update", "True", "True"],
        ["update", "False", "True"],
        ["measure", "False", "True"],
        ["measure", "True", "True"],
        ["update", "True", "True"],
    ]
    assert int(lines[0][3]) >= 5  # θ, w and the gradient
    assert int(lines[2][3]) >= 12  # the same, but for gradient and shadow: they have few numbers
    assert int(lines[1][3]) >= 14  # these and the momentum, and all of them written
    assert int(lines[3][3]) >= 12  # under a mask too, though nothing is read of four that are off
