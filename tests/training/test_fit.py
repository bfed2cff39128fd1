"""The training loop: what it computes, what stays zero, what it repeats and when it gives up."""

import math

import pytest
import torch
from torch import Tensor, nn

from aprune import load_task
from aprune.errors import TrainingError
from aprune.parents import build_parent
from aprune.tasks import Augment, Task
from aprune.training import Curve, Hook, KeepMasked, Recipe, evaluate, fit, predict
from aprune.training.batch import draw_batches

DIGITS = load_task("digits", classes=[0, 1, 2], images=60, seed=0)
QUICK = Recipe(steps=12, lr=0.05, batch=16)


def two_points() -> Task:
    """Two images of one pixel: black is the first class, white the second."""
    pixels = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)
    labels = torch.tensor([0, 1])
    return Task("points", pixels, labels, pixels, labels, ("a", "b"), Augment(), {})


def linear(rows: list[list[float]]) -> nn.Module:
    layer = nn.Linear(1, len(rows), bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(rows))
    return nn.Sequential(nn.Flatten(), layer)


class Watch(Hook):
    """Writes down whatever a function says after every step."""

    def __init__(self, look: object) -> None:
        self.look, self.seen = look, []

    def after(self, step: int) -> None:
        self.seen.append(self.look())


def random_masks(model: nn.Module, density: float = 0.3) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {
        name: torch.rand(p.shape, generator=generator) < density
        for name, p in model.named_parameters()
        if p.dim() > 1
    }


def test_a_step_of_sgd_worked_by_hand() -> None:
    # The pixels become −1 and +1; logits are w·x, so at w = 0 both classes have probability ½.
    # ∂L/∂w₀ = mean over x of (½ − [y = 0])·x = ½·(½ + ½) = ½, and ∂L/∂w₁ = −½.
    model = linear([[0.0], [0.0]])
    recipe = Recipe(
        steps=2, lr=0.4, batch=2, schedule="constant", weight_decay=0.1, momentum=0.5, clip=None
    )
    watch = Watch(lambda: model[1].weight.flatten().tolist())
    curve = fit(model, two_points(), recipe, seed=0, hooks=[watch])
    first = -0.4 * 0.5
    # second step: p = σ(2·0.2); the gradient of w₀ is 1 − p, plus the decay, plus half the first one
    gradient = 1 - 1 / (1 + math.exp(-0.4)) + 0.1 * first
    second = first - 0.4 * (0.5 * 0.5 + gradient)
    assert watch.seen[0] == pytest.approx([first, -first])
    assert watch.seen[1] == pytest.approx([second, -second])
    assert curve.loss == pytest.approx([math.log(2), math.log(1 + math.exp(-0.4))])


def test_a_step_on_mixed_images_worked_by_hand() -> None:
    # With the share λ of the other one the pixels become ∓(1 − 2λ), and each image asks for its own
    # class with weight 1 − λ: ∂L/∂w₀ = (½ − (1 − λ))·−(1 − 2λ) = ½·(1 − 2λ)².
    model, task = linear([[0.0], [0.0]]), two_points()
    recipe = Recipe(steps=1, lr=1.0, batch=2, schedule="constant", momentum=0.0, mixup=0.3)
    share = next(draw_batches(task, 2, 1, seed=0, mixup=0.3)).share.item()
    curve = fit(model, task, recipe, seed=0)
    assert 0.05 < share < 0.3
    step = 0.5 * (1 - 2 * share) ** 2
    assert model[1].weight.flatten().tolist() == pytest.approx([-step, step])
    assert curve.loss == pytest.approx([math.log(2)])


def test_the_gradient_is_clipped_over_all_weights() -> None:
    model = linear([[0.0], [0.0]])  # its gradient is (½, −½), of norm √½
    recipe = Recipe(steps=1, lr=1.0, batch=2, schedule="constant", momentum=0.0, clip=0.1)
    fit(model, two_points(), recipe, seed=0)
    assert model[1].weight.norm().item() == pytest.approx(0.1, rel=1e-4)


def test_the_schedule_sets_the_learning_rate() -> None:
    model = linear([[0.0], [0.0]])
    recipe = Recipe(
        steps=4,
        lr=1.0,
        batch=2,
        schedule=lambda step, steps: float(step == 2) / steps,
        momentum=0.0,
        weight_decay=0.0,
        clip=None,
    )
    watch = Watch(lambda: model[1].weight[0].item())
    fit(model, two_points(), recipe, seed=0, hooks=[watch])
    assert watch.seen == pytest.approx([0.0, 0.0, -0.125, -0.125])


OPTIMISERS = {
    "plain": QUICK.but(momentum=0.0, weight_decay=0.0),
    "momentum": QUICK,
    "nesterov": QUICK.but(nesterov=True),
    "decay": QUICK.but(weight_decay=0.5),
    "clipped": QUICK.but(clip=0.01),
    "adam": QUICK.but(optimiser="adam", lr=0.01, weight_decay=0.1),
}


@pytest.mark.parametrize("recipe", OPTIMISERS.values(), ids=OPTIMISERS.keys())
@pytest.mark.parametrize("parent", ["mlp", "conv_bn"])
def test_masked_weights_are_zero_after_every_step(recipe: Recipe, parent: str) -> None:
    model = build_parent(parent, DIGITS)
    masks = random_masks(model)
    keep = KeepMasked(model, masks)

    def strays() -> int:
        weights = dict(model.named_parameters())
        return sum(int(weights[name][~mask].count_nonzero()) for name, mask in masks.items())

    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    watch = Watch(strays)
    assert strays() == 0  # at once, not only after a step
    fit(model, DIGITS, recipe, seed=0, hooks=[keep, watch])
    assert watch.seen == [0] * recipe.steps
    for name, weight in model.named_parameters():
        assert not torch.equal(weight, before[name]), f"{name} was not trained"


def test_masked_gradients_do_not_count_when_the_norm_is_clipped() -> None:
    # Of the gradient (½, −½) only the first is there, so the step is clip · (1, 0) in full.
    model = linear([[0.0], [0.0]])
    recipe = Recipe(steps=1, lr=1.0, batch=2, schedule="constant", momentum=0.0, clip=0.1)
    keep = KeepMasked(model, {"1.weight": torch.tensor([[True], [False]])})
    fit(model, two_points(), recipe, seed=0, hooks=[keep])
    assert model[1].weight.flatten().tolist() == pytest.approx([-0.1, 0.0], abs=1e-5)


def test_masks_follow_the_memory_format() -> None:
    model = build_parent("conv", DIGITS).to(memory_format=torch.channels_last)
    masks = random_masks(model)
    keep = KeepMasked(model, masks)
    fit(model, DIGITS, QUICK, seed=0, hooks=[keep])
    for name, weight in model.named_parameters():
        if name in masks:
            assert torch.equal(weight != 0, masks[name])


def test_frozen_weights_may_be_masked() -> None:
    model = linear([[1.0], [2.0]])
    model.insert(1, nn.Linear(1, 1))
    model[2].weight.requires_grad_(False)
    keep = KeepMasked(model, {"2.weight": torch.tensor([[True], [False]])})
    fit(model, two_points(), QUICK, seed=0, hooks=[keep])
    assert model[2].weight.flatten().tolist() == [1.0, 0.0]


@pytest.mark.parametrize("parent", ["mlp", "conv_bn"])
def test_the_same_seed_gives_the_same_weights_bit_for_bit(parent: str) -> None:
    noisy = Task(**{**vars_of(DIGITS), "augment": Augment(flip=True, shift=1)})
    runs = []
    for seed in (3, 3, 4):
        model = build_parent(parent, noisy)
        model.append(
            nn.Dropout(0.2)
        )  # draws from the global numbers, at whose state it must not look
        torch.rand(seed)
        curve = fit(model, noisy, QUICK, seed=seed)
        runs.append((curve.loss, evaluate(model, noisy), model.state_dict()))
    assert runs[0][:2] == runs[1][:2]
    assert all(torch.equal(runs[0][2][name], runs[1][2][name]) for name in runs[0][2])
    assert runs[0][0] != runs[2][0]


def vars_of(task: Task) -> dict[str, object]:
    fields = ("name", "train_images", "train_labels", "test_images", "test_labels")
    return {key: getattr(task, key) for key in (*fields, "classes", "augment", "provenance")}


def test_the_global_numbers_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    reseeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", reseeded.append)
    before = torch.get_rng_state()
    model = build_parent("mlp", DIGITS)
    model.append(nn.Dropout(0.2))
    fit(model, DIGITS, QUICK, seed=0)
    assert torch.equal(torch.get_rng_state(), before)
    assert reseeded == []


def test_test_images_are_not_looked_at() -> None:
    blank = Task(
        **{
            **vars_of(DIGITS),
            "test_images": torch.zeros_like(DIGITS.test_images),
            "test_labels": torch.zeros_like(DIGITS.test_labels),
        }
    )
    losses = [fit(build_parent("mlp", t), t, QUICK, seed=0).loss for t in (DIGITS, blank)]
    assert losses[0] == losses[1]


def test_it_learns() -> None:
    model = build_parent("mlp", DIGITS)
    curve = fit(model, DIGITS, Recipe(steps=60, lr=0.05), seed=0)
    assert curve.final(5) < 0.1 < curve.loss[0]
    assert evaluate(model, DIGITS) > 0.95
    assert all(parameter.grad is None for parameter in model.parameters())


class Break(Hook):
    """Makes a weight infinite after some step."""

    def __init__(self, model: nn.Module, step: int) -> None:
        self.weight, self.step = next(model.parameters()), step

    def after(self, step: int) -> None:
        if step == self.step:
            self.weight.data.fill_(math.inf)


@pytest.mark.parametrize("step", [3, 30, 38])
def test_a_loss_that_is_not_finite_stops_it_and_names_the_step(step: int) -> None:
    model = build_parent("mlp", DIGITS)
    recipe = Recipe(steps=40, lr=0.01)
    with pytest.raises(TrainingError, match=rf"at step {step + 1} of 40: try a smaller learning"):
        fit(model, DIGITS, recipe, seed=0, hooks=[Break(model, step)])


def test_an_absurd_learning_rate_is_an_error() -> None:
    with pytest.raises(TrainingError, match=r"the loss is (nan|inf) at step \d+ of 30"):
        fit(build_parent("mlp", DIGITS), DIGITS, Recipe(steps=30, lr=1e30, clip=None), seed=0)


class Note(Hook):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def before(self, step: int) -> None:
        self.calls.append(f"before {step}")

    def on_gradient(self) -> None:
        self.calls.append("gradient")

    def on_update(self) -> None:
        self.calls.append("update")

    def after(self, step: int) -> None:
        self.calls.append(f"after {step}")

    def check(self, step: int) -> None:
        self.calls.append(f"check {step}")


def test_hooks_are_called_in_their_order() -> None:
    note = Note()
    fit(linear([[0.0], [0.0]]), two_points(), Recipe(steps=2, lr=0.1), seed=0, hooks=[note])
    assert note.calls == [
        *("before 0", "gradient", "update", "after 0"),
        *("before 1", "gradient", "update", "after 1", "check 1"),
    ]


def test_checks_come_every_now_and_then_and_at_the_end() -> None:
    note = Note()
    fit(linear([[0.0], [0.0]]), two_points(), Recipe(steps=60, lr=0.1), seed=0, hooks=[note])
    assert [c for c in note.calls if c.startswith("check")] == ["check 24", "check 49", "check 59"]


def test_a_curve_s_end_is_a_mean() -> None:
    assert Curve((9.0, 1.0, 2.0)).final(2) == 1.5
    assert Curve((9.0, 1.0, 2.0)).final() == 4.0


@pytest.mark.parametrize("steps", [1, 7, 100, 101, 1234])
def test_a_thinned_curve_covers_every_step_once(steps: int) -> None:
    few = Curve(tuple(float(step) for step in range(steps))).thinned()
    assert len(few) == min(steps, 100)
    assert few == sorted(few)
    assert few[0] < 1 + steps / 100
    assert few[-1] > steps - 2 - steps / 100
    flat = Curve((0.5,) * steps).thinned()
    assert flat == pytest.approx([0.5] * len(flat))


def test_predictions_leave_the_network_as_it_was() -> None:
    model = build_parent("conv_bn", DIGITS)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    labels = predict(model, DIGITS.test_images, DIGITS.mean, DIGITS.std)
    assert labels.shape == DIGITS.test_labels.shape
    assert model.training
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    # more than one batch inside, and the same one by one
    few = DIGITS.test_images[:5].repeat(300, 1, 1, 1)
    many = predict(model, few, DIGITS.mean, DIGITS.std)
    assert torch.equal(many, labels[:5].repeat(300))


def test_accuracy_is_the_fraction_that_is_right() -> None:
    task = two_points()
    assert evaluate(linear([[-1.0], [1.0]]), task) == 1.0
    assert evaluate(linear([[1.0], [-1.0]]), task) == 0.0
    assert evaluate(linear([[0.0], [0.0]]), task) == 0.5
