"""What must hold whatever is trained, copied or exported: zeros stay zero, test images stay unseen."""

import contextlib
import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import SGD, AdamW
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from aprune import (
    AP,
    IMP,
    SET,
    Architecture,
    Random,
    Recipe,
    Result,
    Retraining,
    RigL,
    Trained,
    attach,
    find,
    load_model,
    load_task,
    search,
    transfer,
    transfer_many,
)
from aprune.experiments import style
from aprune.experiments.comparison import Comparison, TaskChoice, compare
from aprune.methods import METHODS, Method, Search, find_method
from aprune.parents import build_parent
from aprune.tasks import Augment, Task
from aprune.training import evaluate

DIGITS = load_task("digits", classes=[0, 1, 2], images=60, seed=0)
PLAIN = Recipe(steps=5, lr=0.1, batch=16, momentum=0.0, weight_decay=0.0, clip=None)
RECIPES = {
    "sgd": PLAIN,
    "momentum": PLAIN.but(momentum=0.9),
    "nesterov": PLAIN.but(momentum=0.9, nesterov=True),
    "decay": PLAIN.but(momentum=0.9, weight_decay=0.5),
    "clipped": PLAIN.but(momentum=0.9, clip=0.01),
    "adamw": PLAIN.but(optimiser="adam", lr=0.01, weight_decay=0.1),
    "mixed": PLAIN.but(momentum=0.9, mixup=0.5),
}
each_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())

# Dynamo instantiates every autograd function that it traces, whoever wrote it.
torch_deprecates_its_own = pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning"
)

Look = Callable[[nn.Module, Tensor], None]
Watch = Callable[[Look], None]


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Let a function look at every network, and at its images, right before each pass.

    What it sees before a pass is what the step before has left, and evaluation comes after the last.
    """
    with contextlib.ExitStack() as stack:

        def start(look: Look) -> None:
            def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
                # a whole network, and no layer of one; a foreign one is tried out with black images
                if hasattr(module, "parent_name") and args[0].any():
                    look(module, args[0])

            stack.callback(register_module_forward_pre_hook(hook).remove)

        yield start


class Small(nn.Sequential):
    """A network that takes little time even in Triton's interpreter."""

    parent_name = "small"


def small(task: Task, seed: int = 0) -> nn.Module:
    channels, height, width = task.shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Small(
            nn.Conv2d(channels, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.1),
            nn.Flatten(),
            nn.Linear(height * width, task.num_classes),
        )


def weight_of(model: nn.Module, name: str) -> Tensor:
    """Return a weight as its layer sees it."""
    layer, _, leaf = name.rpartition(".")
    weight: Tensor = getattr(model.get_submodule(layer), leaf)
    return weight.detach().clone()


def weights_of(model: nn.Module, arch: Architecture) -> dict[str, Tensor]:
    return {name: weight_of(model, name) for name in arch.names}


def strays(weights: Mapping[str, Tensor], arch: Architecture) -> int:
    """Count the weights where no connection is."""
    return sum(int(weights[name][~mask].count_nonzero()) for name, mask in arch.masks().items())


def assert_follows(weights: Mapping[str, Tensor], arch: Architecture) -> None:
    """See that weights are exactly where an architecture has connections."""
    for name, mask in arch.masks().items():
        assert torch.equal(weights[name] != 0, mask), name


def random_arch(parent: Any, sparsity: float = 0.6, seed: int = 0) -> Architecture:
    return find(parent, DIGITS, Random(), sparsity=sparsity, seed=seed)


# Training


class Steps:
    """The weights of an architecture before every pass."""

    def __init__(self, arch: Architecture) -> None:
        self.arch = arch
        self.seen: list[dict[str, Tensor]] = []

    def __call__(self, model: nn.Module, images: Tensor) -> None:
        self.seen.append(weights_of(model, self.arch))

    def check(self, steps: int) -> None:
        """See that nothing is outside the mask after any step, and that every step moves the rest."""
        assert len(self.seen) == steps + 1  # the last is that of the evaluation
        assert [strays(weights, self.arch) for weights in self.seen] == [0] * (steps + 1)
        for one, other in itertools.pairwise(self.seen):
            assert any(not torch.equal(one[name], other[name]) for name in one)


@each_recipe
@pytest.mark.parametrize("parent", ["conv", "conv_bn"])
def test_zeros_after_every_step_of_a_transfer(watch: Watch, parent: str, recipe: Recipe) -> None:
    arch = random_arch(parent)
    watch(look := Steps(arch))
    result = transfer(arch, parent, DIGITS, recipe=recipe, device="cpu", engine="eager")
    look.check(recipe.steps)
    assert_follows(weights_of(result.model, arch), arch)


@each_recipe
def test_zeros_after_every_fused_step(watch: Watch, recipe: Recipe) -> None:
    arch, recipe = random_arch(small), recipe.but(steps=3)
    watch(look := Steps(arch))
    result = transfer(arch, small, DIGITS, recipe=recipe, device="cpu", engine="fused")
    look.check(recipe.steps)
    assert_follows(weights_of(result.model, arch), arch)


@each_recipe
@pytest.mark.parametrize("bare", [False, True])
def test_zeros_from_the_first_step_on_if_the_start_had_none(
    watch: Watch, recipe: Recipe, bare: bool
) -> None:
    arch, dense = random_arch(small), small(DIGITS)
    start = Trained.of(dense, DIGITS, {})
    watch(look := Steps(arch))
    result = transfer(arch, dense, DIGITS, recipe=recipe, start_from=start, bare=bare, device="cpu")
    assert [strays(weights, arch) for weights in look.seen] == [0] * (recipe.steps + 1)
    assert_follows(weights_of(result.model, arch), arch)
    assert strays(weights_of(dense, arch), arch) > 100  # what it started from is left alone


@each_recipe
def test_zeros_where_many_share_a_place(watch: Watch, recipe: Recipe) -> None:
    archs = [random_arch("conv", seed=seed) for seed in range(3)]
    todo = [Retraining(arch, "conv", DIGITS, recipe=recipe) for arch in archs]
    looks = [Steps(arch) for arch in archs]
    done: list[nn.Module] = []
    watch(lambda model, images: looks[len(done)](model, images))
    for _, result in transfer_many(todo, device="cpu"):
        assert isinstance(result, Result)
        done.append(result.model)
    for look, model in zip(looks, done, strict=True):
        look.check(recipe.steps)
        assert_follows(weights_of(model, look.arch), look.arch)


# Searches


def supports(seen: list[dict[str, Tensor]]) -> list[Tensor]:
    """Tell of each connection, pass by pass, whether it was there."""
    return [torch.cat([w.flatten() != 0 for w in weights.values()]) for weights in seen]


@each_recipe
@pytest.mark.parametrize(
    ("method", "engine"),
    [
        (AP(ramp_end=0.6), "eager"),
        (AP(ramp_end=0.6), "fused"),
        (SET(every=1, until=0.6), "eager"),
        (RigL(every=1, until=0.6), "eager"),
    ],
    ids=["ap", "ap fused", "set", "rigl"],
)
def test_momentum_revives_nothing_once_the_architecture_is_there(
    watch: Watch, method: Method, engine: Any, recipe: Recipe
) -> None:
    watch(look := Steps(random_arch(small, 0.0)))  # of all connections
    recipe = recipe.but(steps=12)
    arch = find(small, DIGITS, method, sparsity=0.8, recipe=recipe, device="cpu", engine=engine)
    there, last = supports(look.seen), 5  # steps after 0.6 · 12, or thereabouts
    mask = torch.cat([mask.flatten() for mask in arch.masks().values()])
    assert len(there) == recipe.steps + 1
    assert all(not now[~mask].any() for now in there[-last:])
    assert any(now[~mask].any() for now in there[:-last])  # some were there, and moved


@each_recipe
def test_exchanges_leave_exact_zeros_behind(watch: Watch, recipe: Recipe) -> None:
    watch(look := Steps(random_arch(small, 0.0)))
    method = SET(every=2, fraction=0.5)
    arch = find(small, DIGITS, method, sparsity=0.8, recipe=recipe.but(steps=20), device="cpu")
    there = supports(look.seen)
    assert max(int(now.sum()) for now in there) == arch.kept  # what comes in is zero at first
    assert int((there[0] & ~there[-1]).sum()) > 0.2 * arch.kept


@each_recipe
@pytest.mark.parametrize("rewind", [0, 2])
def test_what_imp_drops_never_comes_back(watch: Watch, recipe: Recipe, rewind: int) -> None:
    watch(look := Steps(random_arch(small, 0.0)))
    method = IMP(rounds=4, rewind=rewind, steps=recipe.steps)
    arch = find(small, DIGITS, method, sparsity=0.9, recipe=recipe, device="cpu")
    there = supports(look.seen)
    assert len(there) == 4 * recipe.steps
    assert all(not (now & ~before).any() for before, now in itertools.pairwise(there))
    rounds = there[:: recipe.steps]
    assert [bool(now.all()) for now in rounds] == [True, False, False, False]
    assert int(rounds[-1].sum()) > arch.kept
    mask = torch.cat([mask.flatten() for mask in arch.masks().values()])
    assert not (mask & ~rounds[-1]).any()


# A loop of one's own


Optimiser = Callable[[nn.Module], torch.optim.Optimizer]
OPTIMISERS: dict[str, Optimiser] = {
    "sgd": lambda m: SGD(m.parameters(), 0.1),
    "momentum": lambda m: SGD(m.parameters(), 0.1, momentum=0.9),
    "nesterov": lambda m: SGD(m.parameters(), 0.1, momentum=0.9, nesterov=True),
    "decay": lambda m: SGD(m.parameters(), 0.1, momentum=0.9, weight_decay=0.1),
    "adamw": lambda m: AdamW(m.parameters(), 0.01, weight_decay=0.1),
}
STEPS, FROZEN = 24, 13  # the twelfth step reaches the architecture, and 12 are left


class Own:
    """A network in a loop of the user's own, with a search attached."""

    def __init__(self, optimiser: str = "momentum", *, seed: int = 0) -> None:
        self.model = small(DIGITS, seed)
        self.optimiser = OPTIMISERS[optimiser](self.model)
        method = AP(sparsity=0.8, steps=STEPS, ramp_end=0.5, dense_start=0.2)
        self.search: Search = attach(self.model, method, seed=seed)
        self.forward: Callable[[Tensor], Tensor] = self.model

    def go(self, steps: int, *, clip: float | None = None) -> "Own":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)  # of dropout
            for _ in range(steps):
                self._step(clip)
        return self

    def _step(self, clip: float | None) -> None:
        x, y = DIGITS.train_images / 255, DIGITS.train_labels
        loss = nn.functional.cross_entropy(self.forward(x), y)
        self.optimiser.zero_grad()
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        self.optimiser.step()
        self.search.step()


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_zeros_in_a_loop_of_ones_own_and_in_its_average(optimiser: str, clip: float | None) -> None:
    own = Own(optimiser)
    average = AveragedModel(own.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    frozen: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = []
    for _ in range(STEPS):
        own.go(1, clip=clip)
        average.update_parameters(own.model)
        if own.search.phase == "frozen":
            arch = own.search.architecture()
            frozen.append((weights_of(own.model, arch), weights_of(average.module, arch)))
    assert len(frozen) == FROZEN
    for pair in frozen:
        for weights in pair:
            assert_follows(weights, arch)
    for one, other in itertools.pairwise(frozen):  # both go on
        assert not any(torch.equal(one[k]["6.weight"], other[k]["6.weight"]) for k in (0, 1))
    theta = own.model[6].parametrizations.weight.original
    assert theta[~arch.mask("6.weight")].any()  # it is the mask that keeps them out
    own.search.finish()
    assert_follows(dict(own.model.named_parameters()), arch)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_the_average_of_a_finished_network_in_transfer_keeps_zeros(
    watch: Watch, optimiser: str
) -> None:
    own = Own(optimiser).go(STEPS)
    arch = own.search.architecture()
    own.search.finish()
    average = AveragedModel(own.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    watch(lambda model, images: average.update_parameters(model) if model.training else None)
    start = Trained.of(own.model, DIGITS, {})
    recipe = RECIPES["adamw" if optimiser == "adamw" else "nesterov"]
    result = transfer(arch, own.model, DIGITS, recipe=recipe, start_from=start, device="cpu")
    assert average.n_averaged.item() == recipe.steps
    for model in (average.module, result.model):
        assert_follows(weights_of(model, arch), arch)
        assert not torch.equal(model[6].weight, own.model[6].weight)


# Copies and files


@pytest.fixture(scope="module")
def result() -> Result:
    arch = random_arch("conv_bn", 0.8)
    return transfer(arch, "conv_bn", DIGITS, recipe=RECIPES["momentum"], device="cpu")


def reloaded(model: nn.Module, into: nn.Module, path: Path) -> nn.Module:
    torch.save(model.state_dict(), path)
    into.load_state_dict(torch.load(path, weights_only=True))
    return into.eval()


def exported(model: nn.Module, path: Path) -> nn.Module:
    images = DIGITS.test_images[:5] / 255
    torch.export.save(torch.export.export(model, (images,)), path)
    return torch.export.load(path).module()


WAYS: dict[str, Callable[[nn.Module, Path], nn.Module]] = {
    "deepcopy": lambda model, path: copy.deepcopy(model),
    "state": lambda model, path: reloaded(model, build_parent("conv_bn", DIGITS), path),
    "compile": lambda model, path: torch.compile(model, backend="eager", fullgraph=True),
    "export": exported,
}


@pytest.mark.parametrize("way", WAYS)
def test_the_final_network_keeps_its_zeros(result: Result, tmp_path: Path, way: str) -> None:
    other = WAYS[way](result.model, tmp_path / "network.pt2")
    assert result.architecture is not None
    images = DIGITS.test_images[:5] / 255
    with torch.no_grad():
        assert torch.equal(other(images), result.model(images))
    names = [name.removeprefix("_orig_mod.") for name, _ in other.named_parameters()]
    weights = dict(zip(names, other.parameters(), strict=True))
    assert sorted(weights) == sorted(dict(result.model.named_parameters()))
    assert_follows(weights, result.architecture)
    assert all(torch.equal(weights[n], p) for n, p in result.model.named_parameters())


MOMENTS = {"dense": 3, "descent": 9, "frozen": 18}


@pytest.mark.parametrize("phase", MOMENTS)
def test_a_copy_in_the_middle_of_a_search_is_whole_and_apart(phase: str) -> None:
    images = DIGITS.test_images / 255
    own, alone = Own().go(MOMENTS[phase]), Own().go(MOMENTS[phase])
    assert own.search.phase == phase
    twin = copy.deepcopy(own.model).eval()
    expected = own.model.eval()(images)
    own.model.train()
    assert torch.equal(twin(images), expected)
    with torch.no_grad():
        for tensor in (*twin.parameters(), *twin.buffers()):
            tensor.zero_()
    own.go(STEPS - MOMENTS[phase])
    alone.go(STEPS - MOMENTS[phase])
    assert own.search.architecture() == alone.search.architecture()
    state = own.model.state_dict()
    assert all(torch.equal(state[n], value) for n, value in alone.model.state_dict().items())


@torch_deprecates_its_own
@pytest.mark.parametrize("phase", MOMENTS)
def test_state_and_compiled_code_keep_a_mask_that_is_attached(tmp_path: Path, phase: str) -> None:
    images = DIGITS.test_images / 255
    own = Own().go(MOMENTS[phase])
    model = own.model.eval()
    other = reloaded(model, Own(seed=5).model, tmp_path / "state.pt")
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for twin in (other, compiled):
        assert torch.equal(twin(images), model(images))
    for name in ("0.weight", "6.weight"):
        assert torch.equal(weight_of(other, name), weight_of(model, name))
        if phase == "frozen":
            mask = own.search.architecture().mask(name)
            assert torch.equal(weight_of(other, name) != 0, mask)


@torch_deprecates_its_own
def test_a_compiled_loop_searches_as_any_other() -> None:
    plain, compiled = Own(), Own()
    torch._dynamo.reset()
    compiled.forward = torch.compile(compiled.model, backend="eager")
    for own in (plain, compiled):  # through all three phases
        own.go(STEPS)
    assert compiled.search.architecture() == plain.search.architecture()
    arch = compiled.search.architecture()
    assert_follows(weights_of(compiled.model, arch), arch)
    assert all(map(torch.equal, compiled.model.parameters(), plain.model.parameters()))


def test_files_keep_architecture_and_zeros(tmp_path: Path) -> None:
    recipe = RECIPES["momentum"]
    found = search(
        "conv_bn", DIGITS, AP(), sparsities=[0.5, 0.9], recipe=recipe.but(steps=12), weights=True
    )
    for number, (arch, network) in enumerate(zip(found.architectures, found.networks, strict=True)):
        arch.save(tmp_path / f"{number}.arch.safetensors")
        network.save(tmp_path / f"{number}.model.safetensors")
        again = Architecture.load(tmp_path / f"{number}.arch.safetensors")
        assert again == arch
        assert all(torch.equal(again.mask(name), arch.mask(name)) for name in arch.names)
        loaded = load_model(tmp_path / f"{number}.model.safetensors")
        assert_follows(dict(loaded.model.named_parameters()), again)
        results = [
            transfer(a, "conv_bn", DIGITS, recipe=recipe, start_from=n, device="cpu")
            for a, n in ((arch, network), (again, loaded))
        ]
        one, other = (r.model.state_dict() for r in results)
        assert all(torch.equal(one[name], other[name]) for name in one)
        results[1].save(tmp_path / "tuned.model.safetensors")
        tuned = load_model(tmp_path / "tuned.model.safetensors")
        assert_follows(dict(tuned.model.named_parameters()), again)


# Evaluation


@pytest.mark.parametrize("training", [True, False])
def test_evaluating_twice_gives_the_same_and_changes_nothing(training: bool) -> None:
    arch = random_arch(small)
    model = transfer(arch, small, DIGITS, recipe=RECIPES["momentum"], device="cpu").model
    model.train(training)
    before, numbers = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    assert before["1.num_batches_tracked"] == 5
    first = evaluate(model, DIGITS)
    assert evaluate(model, DIGITS) == first
    assert model.training is training
    assert torch.equal(torch.get_rng_state(), numbers)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_result_is_what_evaluating_it_again_gives() -> None:
    result = transfer(random_arch(small), small, DIGITS, recipe=RECIPES["momentum"], device="cpu")
    labels = [result.predict(DIGITS.test_images) for _ in range(2)]
    assert torch.equal(*labels)
    right = (labels[0] == DIGITS.test_labels).float().mean().item()
    assert result.accuracy == right == evaluate(result.model, DIGITS)


def test_a_search_may_be_looked_at_on_the_way() -> None:
    runs = []
    for looks in (False, True):
        own = Own()
        for _ in range(STEPS):
            if looks:
                assert evaluate(own.model, DIGITS) == evaluate(own.model, DIGITS)
            own.go(1)
        runs.append((own.search.architecture(), own.model.state_dict()))
    assert runs[0][0] == runs[1][0]
    assert all(torch.equal(value, runs[1][1][name]) for name, value in runs[0][1].items())


# Test images

TRAIN, TEST = range(60), range(200, 230)


def numbered(number: int) -> np.ndarray:
    """An image that tells its number, however it is normalised, shifted, mirrored or mixed.

    A black stripe, a white one, one as bright as the number, and one that its class can be read off.
    """
    pixels = np.zeros((12, 12, 3), dtype=np.uint8)
    pixels[3:6], pixels[6:9] = 255, number
    pixels[9:] = 120 * (number % 3)
    return pixels


def numbers_of(images: Tensor) -> list[float]:
    """Read the numbers; other images have none."""
    black, white, grey = images[:, 0, [1, 4, 7], 5].unbind(1)
    told = white > black
    return (255 * (grey - black)[told] / (white - black)[told]).tolist()


def numbered_task(train: range = TRAIN) -> Task:
    parts = [torch.from_numpy(np.stack([numbered(n) for n in part])) for part in (train, TEST)]
    images = [part.permute(0, 3, 1, 2).contiguous() for part in parts]
    labels = [torch.tensor(part) % 3 for part in (train, TEST)]
    augment = Augment(flip=True, shift=1)
    return Task(
        "numbered", images[0], labels[0], images[1], labels[1], ("a", "b", "c"), augment, {}
    )


@dataclasses.dataclass
class Run:
    """The numbers of the images that moved a network, and of those that it was judged on."""

    learnt: set[int] = dataclasses.field(default_factory=set)
    judged: set[int] = dataclasses.field(default_factory=set)


class Readers:
    """Every image that any network reads, by run: what is judged and then learns begins another."""

    def __init__(self, *, mixed: bool = False) -> None:
        self.mixed = mixed
        self.runs = [Run()]
        self.largest = 0.0

    def __call__(self, model: nn.Module, images: Tensor) -> None:
        numbers = numbers_of(images)
        learns = model.training or torch.is_grad_enabled()
        if learns and self.runs[-1].judged:
            self.runs.append(Run())
        if learns:
            self.largest = max([self.largest, *numbers])
        if not (learns and self.mixed):
            assert all(abs(number - round(number)) < 0.01 for number in numbers)
        (self.runs[-1].learnt if learns else self.runs[-1].judged).update(map(round, numbers))


def test_numbers_survive_what_is_done_to_images(watch: Watch) -> None:
    watch(readers := Readers())
    transfer(None, "mlp", numbered_task(), recipe=PLAIN.but(steps=20), device="cpu")
    assert readers.runs == [Run(set(TRAIN), set(TEST))]


@pytest.mark.parametrize("name", METHODS)
def test_no_search_reads_a_test_image(watch: Watch, name: str) -> None:
    watch(readers := Readers())
    method = find_method(name)
    recipe = RECIPES["momentum"].but(steps=15)
    search("conv_bn", numbered_task(), method, sparsities=[0.5, 0.9], recipe=recipe, device="cpu")
    learnt = set().union(*(run.learnt for run in readers.runs))
    assert learnt <= set(TRAIN)
    assert bool(learnt) == method.looks
    assert len(learnt) > 40 or not method.trains


@each_recipe
@pytest.mark.parametrize("engine", ["eager", "fused"])
def test_no_retraining_reads_a_test_image(watch: Watch, recipe: Recipe, engine: Any) -> None:
    # a number in the mixture is below 60 as long as both are, and a test image's own above 99
    watch(readers := Readers(mixed=bool(recipe.mixup)))
    task, arch = numbered_task(), find(small, numbered_task(), Random(), sparsity=0.5)
    recipe = recipe.but(steps=4, batch=30)
    transfer(arch, small, task, recipe=recipe, device="cpu", engine=engine)
    assert readers.largest < len(TRAIN)
    assert [run.judged for run in readers.runs] == [set(TEST)]
    assert readers.mixed or readers.runs[0].learnt == set(TRAIN)


def test_a_mixed_test_image_would_be_noticed(watch: Watch) -> None:
    task = numbered_task()
    leaky = dataclasses.replace(
        task,
        train_images=torch.cat([task.train_images, task.test_images[:1]]),
        train_labels=torch.cat([task.train_labels, task.test_labels[:1]]),
    )
    watch(readers := Readers(mixed=True))
    transfer(None, small, leaky, recipe=PLAIN.but(steps=4, mixup=0.5, batch=61), device="cpu")
    assert readers.largest > 99


def test_no_retraining_among_many_reads_a_test_image_or_one_of_its_neighbours(
    watch: Watch,
) -> None:
    parts = [range(30), range(30, 60), range(60, 90)]
    recipe = PLAIN.but(steps=4)
    todo = [Retraining(None, "conv", numbered_task(part), recipe=recipe) for part in parts]
    watch(readers := Readers())
    assert all(isinstance(result, Result) for _, result in transfer_many(todo, device="cpu"))
    assert readers.runs == [Run(set(part), set(TEST)) for part in parts]


def write_folder(folder: Path, train: range, test: range) -> str:
    for part, numbers in (("train", train), ("test", test)):
        for number in numbers:
            path = folder / part / "abc"[number % 3] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(numbered(number)).save(path)
    return f"folder:{folder}"


@pytest.fixture
def compared(
    watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[Run]]:
    """Do a small comparison of numbered images; return what its runs have read, in order."""
    monkeypatch.setenv("APRUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(style, "save", lambda figure, path: None)
    old = write_folder(tmp_path / "old", range(60), range(200, 215))
    new = write_folder(tmp_path / "new", range(60, 150), range(215, 245))

    def do(**more: Any) -> list[Run]:
        settings: dict[str, Any] = {
            "parent": "mlp",
            "search_task": TaskChoice(old, size=12),
            "new_task": TaskChoice(new, images=30, size=12),
            "methods": ("ap", "random", "dense"),
            "sparsities": (0.9,),
            "seeds": (0, 1),
            "search_steps": 10,
            "retrain_steps": 6,
            "lrs": (0.01, 0.1),
            "mixups": (0.0,),
            "tuning_seeds": (7,),
        }
        watch(readers := Readers())
        frame = compare(
            Comparison(**{**settings, **more}), tmp_path / "out", device="cpu", progress=False
        )
        assert frame.attrs["complete"]
        return readers.runs

    return do


def test_no_comparison_learns_from_a_test_image_or_from_one_that_tunes(
    compared: Callable[..., list[Run]],
) -> None:
    runs = compared(also=(("ap", "fine_tuned"), ("dense", "fine_tuned")))
    for run in runs:
        assert not run.learnt & run.judged
        assert max(run.learnt) < 200
    old, new = set(range(200, 215)), set(range(215, 245))
    kinds: dict[str, list[Run]] = {"search": [], "tuning": [], "final": []}
    for run in runs:
        kind = "search" if run.judged == old else "final" if run.judged == new else "tuning"
        kinds[kind].append(run)
    assert {kind: len(runs) for kind, runs in kinds.items()} == {
        "search": 3 * 2,  # AP and the dense parent to be fine-tuned, for three seeds
        "tuning": 5 * 2,  # two rates for every arm
        "final": 5 * 2,  # two seeds
    }
    for run in kinds["search"]:
        assert run.learnt == set(range(60))
    parts = [(frozenset(run.learnt), frozenset(run.judged)) for run in kinds["tuning"]]
    assert len(set(parts)) == 1  # every arm and every rate is tuned on the same images
    assert [len(part) for part in parts[0]] == [30, 60]
    assert parts[0][0] | parts[0][1] == set(range(60, 150))
    drawn = {frozenset(run.learnt) for run in kinds["final"]}
    assert [len(images) for images in drawn] == [30, 30]  # each seed has its own, and all arms them
    assert frozenset().union(*drawn) <= set(range(60, 150))


def test_images_of_the_test_half_that_train_judge_nothing(
    compared: Callable[..., list[Run]], tmp_path: Path
) -> None:
    halves = TaskChoice(f"folder:{tmp_path / 'new'}", images=12, size=12, split="test")
    runs = compared(new_task=halves, methods=("random", "dense"))
    assert len(runs) == 2 * 2 + 2 * 2
    for run in runs:
        assert not run.learnt & run.judged
    whole = set(range(215, 245))
    assert all(len(run.learnt | run.judged) == 12 for run in runs[:4])  # no other for tuning
    assert all(run.learnt | run.judged == whole for run in runs[4:])
