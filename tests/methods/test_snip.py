"""SNIP: its scores against a formula and against finite differences, and what they are taken over."""

import copy
from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aprune import Recipe, find, load_task, search
from aprune.connections import find_connections
from aprune.errors import SettingError
from aprune.initialise import initialise
from aprune.methods import SNIP, Problem
from aprune.methods.protocol import Masks
from aprune.methods.scores import fresh_batches
from aprune.tasks import Augment, Task
from helpers import other_world

DIGITS = load_task("digits", classes=[0, 1, 2], images=60, seed=0)
NOISE = other_world(channels=1, size=2, classes=3)  # 40 images, which training would mirror
ALL = Recipe(steps=1, lr=0.1, batch=40)


def scores_of(method: SNIP, model: nn.Module, recipe: Recipe = ALL) -> dict[str, Tensor]:
    seen: dict[str, Tensor] = {}

    class Noting(Problem):
        def keep_best(self, scores: Mapping[str, Tensor]) -> dict[float, Masks]:
            seen.update(scores)
            return super().keep_best(scores)

    names = tuple(find_connections(model))
    method.search(Noting(copy.deepcopy(model), names, NOISE, (0.5,), recipe, seed=3))
    return seen


def fresh(model: nn.Module) -> nn.Module:
    # as the method starts it, but in double precision
    twin = copy.deepcopy(model)
    initialise(twin, scheme="he", seed=3)
    return twin.double().train()


def normalised() -> Tensor:
    x = NOISE.train_images.double() / 255
    return (x - x.mean()) / x.std(correction=0)


def test_scores_are_weight_times_slope_by_the_formula_of_a_linear_model() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    x, weight = normalised().flatten(1), fresh(model)[1].weight.detach()
    wrong = (x @ weight.T).softmax(1) - F.one_hot(NOISE.train_labels, 3)
    by_formula = (weight * (wrong.T @ x) / 40).abs()
    found = scores_of(SNIP(), model)["1.weight"]
    assert torch.allclose(found.double(), by_formula, rtol=1e-4, atol=1e-7)
    # the three largest are kept, whatever their sign was
    arch = find(model, NOISE, SNIP(), sparsity=0.75, seed=3, recipe=ALL, device="cpu")
    assert torch.equal(arch.mask("1.weight"), by_formula >= by_formula.flatten().topk(3).values[-1])


def test_scores_are_how_the_loss_answers_to_a_mask_that_leaves_one() -> None:
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)
    )
    twin, x, step = fresh(model), normalised(), 1e-5

    def loss_with(weight: Tensor, place: int, m: float) -> float:
        before = weight.view(-1)[place].item()
        weight.view(-1)[place] = before * m
        loss = F.cross_entropy(twin(x), NOISE.train_labels).item()
        weight.view(-1)[place] = before
        return loss

    for name, found in scores_of(SNIP(), model).items():
        weight = twin.get_parameter(name).detach()
        for place, score in enumerate(found.flatten().tolist()):
            more, less = (loss_with(weight, place, m) for m in (1 + step, 1 - step))
            assert abs(more - less) / (2 * step) == pytest.approx(score, rel=1e-3, abs=1e-6)


def test_slopes_of_batches_add_up_before_their_size_is_taken() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    whole = scores_of(SNIP(), model)
    # two halves that make up the 40 images, each with a mean loss of its own
    halves = scores_of(SNIP(batches=2), model, recipe=ALL.but(batch=20))
    first = scores_of(SNIP(), model, recipe=ALL.but(batch=20))
    for name, score in whole.items():
        assert torch.allclose(halves[name], 2 * score, rtol=1e-3, atol=1e-6)
        assert not torch.allclose(first[name], score, rtol=0.1)


def test_every_batch_is_a_pass() -> None:
    method = SNIP(batches=3)
    assert search("mlp", DIGITS, method, sparsities=[0.5], recipe=ALL, device="cpu").steps == 3


def test_a_seed_draws_the_images() -> None:
    def drawn(seed: int) -> Tensor:
        model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
        recipe = ALL.but(batch=10)
        problem = Problem(model, ("1.weight",), NOISE, (0.5,), recipe, seed=seed)
        return fresh_batches(problem, 1)[0][0]

    assert torch.equal(drawn(3), drawn(3))
    assert not torch.equal(drawn(3), drawn(4))


def test_what_sees_nothing_goes_first() -> None:
    # after the mean is taken off, a pixel that always has it is zero
    pixels = torch.tensor([[0, 100, 200, 100], [200, 100, 0, 100]]).view(2, 1, 2, 2)
    pixels, labels = pixels.to(torch.uint8), torch.tensor([0, 1])
    task = Task("grey", pixels, labels, pixels, labels, ("a", "b"), Augment(), {})
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    # 12 of 36 go, and as many belong to the two grey pixels
    arch = find(model, task, SNIP(), sparsity=12 / 36, device="cpu")
    assert arch.mask("1.weight").tolist() == [[True, False, True, False]] * 6
    assert arch.mask("3.weight").all()


def test_dropout_does_not_matter() -> None:
    def with_dropout(share: float) -> nn.Module:
        maps = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Dropout2d(share), nn.ReLU())
        return nn.Sequential(maps, nn.Flatten(), nn.Dropout(share), nn.Linear(288, 3))

    found = [
        find(with_dropout(share), DIGITS, SNIP(), sparsity=0.8, device="cpu")
        for share in (0.0, 0.5, 0.9)
    ]
    assert found[0] == found[1] == found[2]


def test_norms_that_run_leave_fresh_networks_as_they_are() -> None:
    layers = [
        nn.Flatten(),
        nn.Linear(4, 5),
        nn.BatchNorm1d(5, eps=1e-9),
        nn.Tanh(),
        nn.Linear(5, 3),
    ]
    model, bare = nn.Sequential(*layers), nn.Sequential(*layers[:2], nn.Identity(), *layers[3:])
    running, without = scores_of(SNIP(norms="running"), model), scores_of(SNIP(), bare)
    assert running.keys() == without.keys()
    for name, score in running.items():
        assert torch.allclose(score, without[name], rtol=1e-5, atol=1e-8)
    assert not torch.allclose(scores_of(SNIP(), model)["1.weight"], without["1.weight"], rtol=0.1)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(SettingError, match="norms is 'layer': expected batch or running"):
        SNIP(norms="layer")  # type: ignore[arg-type]
    for batches in (0, 1.5, float("nan")):
        with pytest.raises(SettingError, match=f"batches is {batches}: expected a whole number"):
            SNIP(batches=batches)  # type: ignore[arg-type]
