"""The problems that t_s and the step size are tried on, and the ways to move: see `temperatures`."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from aprune.errors import ApruneError
from aprune.experiments.convergence import Setting, search
from aprune.finding import search as search_network
from aprune.maths.seed import derive_seed
from aprune.methods import AP
from aprune.solver import Scheme, solve
from aprune.tasks import load_task
from aprune.training import Recipe
from aprune.training.batch import Normalise
from aprune.training.device import one_thread

FINE = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""The t_s of cases that ask where exactly the best one is."""
_WIDE = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
_STEPS = (0.2, 0.6, 2.0, 6.0, 20.0, 60.0)

_SPARSITY = 0.98
_HELD_OUT = 0.2
_QUADRATICS = 20  # for each seed
_SIZE = 40


@dataclass(frozen=True)
class Run:
    """How one descent ended.

    Attributes:
        objective: What is minimised, at the binary point at the end; not finite if it died.
        active: Ones that are left.
        accuracy: Of a network, on training images that were held out.
    """

    objective: float
    active: float
    accuracy: float = float("nan")


Measure = Callable[..., list[Run]]


@dataclass(frozen=True)
class Case:
    """A problem, a way to move, and the temperatures and steps to try.

    Attributes:
        title: For figures.
        measure: From t_l, t_s, step, seeds, iterations, and the penalty if there is one, to a run for
            each seed.
        data: What it needs: `digits`, `mnist`, or `made` of random numbers.
        t_s: To try.
        steps: To try.
        t_l: To try; more than one where t_l itself is in question.
        penalties: γ, likewise; 0 where nothing has a price.
    """

    title: str
    measure: Measure
    data: str
    t_s: Sequence[float] = _WIDE
    steps: Sequence[float] = _STEPS
    t_l: Sequence[float] = (1000.0,)
    penalties: Sequence[float] = (0.0,)


def measure_logistic(
    *,
    data: str,
    t_l: float,
    t_s: float,
    step: float,
    penalty: float,
    seeds: Sequence[int],
    iterations: int,
    alone: bool = False,
    drift: bool = True,
) -> list[Run]:
    """Descend on the problem of figure 1.

    Args:
        data: `digits` or `mnist`, the classes 0 and 1.
        t_l: Forward.
        t_s: Backward.
        step: c of the steps c/√i.
        penalty: γ.
        seeds: One run for each.
        iterations: Steps.
        alone: Whether `step` is that of w only; θ then keeps that of figure 1.
        drift: Whether γ is a drift of w, as in the paper.

    Example:
        >>> cell = {"t_l": 1000.0, "t_s": 10.0, "step": 2.0, "penalty": 0.01}
        >>> (run,) = measure_logistic(data="digits", **cell, seeds=[0], iterations=5)
        >>> run.active <= 64
        True
    """
    task = load_task(data, classes=[0, 1])
    setting = Setting(penalty=penalty)
    stretch = (setting.step / step) ** 0.5 if alone else 1.0
    found = search(
        task.train_images.flatten(1).float() / 255,
        task.train_labels.float(),
        replace(setting.scheme(t_l, t_s, iterations), step=step, drift=drift),
        setting,
        seeds=seeds,
        moments=[0, iterations],
        stretch=stretch,
    )
    return [Run(float(run.trajectory[-1]), int(run.ones[-1])) for run in found]


def measure_quadratic(
    *,
    t_l: float,
    t_s: float,
    step: float,
    seeds: Sequence[int],
    iterations: int,
    exactly: int | None = None,
) -> list[Run]:
    """Descend on random quadratic problems with `solve`, a tenth of `iterations` long.

    Returns:
        For each seed the mean of its problems: how far the end of one descent lies above the best
        that `solve` finds with its defaults, as a share of that.

    Example:
        >>> cell = {"t_l": 100.0, "t_s": 10.0, "step": 0.1}
        >>> (run,) = measure_quadratic(**cell, seeds=[0], iterations=1000)
        >>> 0 <= run.objective < 1
        True
    """
    q = _draw_quadratics(seeds)
    scheme = Scheme(t_l=t_l, t_s=t_s, step=step, steps=max(1, iterations // 10))
    starts = [derive_seed(seed, str(k)) for seed in seeds for k in range(_QUADRATICS)]
    with one_thread():
        found = solve(
            _quadratic,
            _SIZE,
            data=(q,),
            exactly=exactly,
            scheme=scheme,
            restarts=1,
            rounds=0,
            moments=[scheme.steps],
            seed=starts,
        )
    value = torch.stack([run.trajectory[-1] for run in found])
    best = _solve_quadratics(tuple(seeds), exactly)
    gaps = ((value - best) / best.abs()).reshape(len(seeds), -1).mean(1)
    ones = torch.stack([run.ones[-1] for run in found]).double().reshape(len(seeds), -1).mean(1)
    return [Run(*pair) for pair in zip(gaps.tolist(), ones.tolist(), strict=True)]


def measure_network(
    *,
    t_l: float,
    t_s: float,
    step: float,
    seeds: Sequence[int],
    iterations: int,
    relative: bool = True,
) -> list[Run]:
    """Search an `mlp` for 0.98 on the ten digits with AP, a third of `iterations` long.

    Returns:
        For each seed the training loss of the binary network at the end, over all images that it was
        trained on, and its accuracy on training images that were held out.

    Example:
        >>> cell = {"t_l": 100.0, "t_s": 10.0, "step": 0.01}
        >>> (run,) = measure_network(**cell, seeds=[0], iterations=60)
        >>> run.active, 0 <= run.accuracy <= 1
        (1009, True)
    """
    method = AP(t_l=t_l, t_s=t_s, w_step=step, relative=relative)
    recipe = Recipe(steps=max(2, iterations // 3), batch=64, lr=0.1, schedule="hold")
    runs = []
    for seed in seeds:
        task = load_task("digits").hold_out(_HELD_OUT, seed)
        try:
            found = search_network(
                "mlp",
                task,
                method,
                sparsities=[_SPARSITY],
                seed=seed,
                recipe=recipe,
                weights=True,
                device="cpu",
            )
        except ApruneError:  # it died, which is a result
            runs.append(Run(float("inf"), 0))
            continue
        with torch.no_grad(), one_thread():
            images = Normalise(task.mean, task.std)(task.train_images)
            loss = F.cross_entropy(found.networks[0].model(images), task.train_labels)
        kept = found.architectures[0].kept
        runs.append(Run(loss.item(), kept, float(found.accuracy or 0.0)))
    return runs


_ON_DIGITS = functools.partial(measure_logistic, data="digits")
_NETWORK = Case(
    "network, relative step",
    measure_network,
    "digits",
    t_s=(1.0, 3.0, 10.0, 30.0, 100.0),
    steps=(0.003, 0.01, 0.03, 0.1, 0.3),
    t_l=(100.0,),
)
_MADE = Case(
    "quadratic, any number",
    measure_quadratic,
    "made",
    t_s=(0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
    steps=(0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
    t_l=(100.0,),
)
_DIGITS = Case("digits, one step size", _ON_DIGITS, "digits", penalties=(0.01,))

CASES: Mapping[str, Case] = MappingProxyType(
    {
        "digits": _DIGITS,
        "digits-w": replace(
            _DIGITS,
            title="digits, step of $w$ alone",
            measure=functools.partial(_ON_DIGITS, alone=True),
        ),
        "digits-price": replace(
            _DIGITS,
            title="digits, price itself",
            measure=functools.partial(_ON_DIGITS, alone=True, drift=False),
        ),
        "mnist": replace(
            _DIGITS,
            title="MNIST, one step size",
            measure=functools.partial(measure_logistic, data="mnist"),
            data="mnist",
        ),
        "mlp": _NETWORK,
        "mlp-absolute": replace(
            _NETWORK,
            title="network, absolute step",
            measure=functools.partial(measure_network, relative=False),
            steps=(1.0, 10.0, 100.0, 1000.0),
        ),
        "quadratic": _MADE,
        "quadratic-exactly": replace(
            _MADE,
            title="quadratic, 10 of 40",
            measure=functools.partial(measure_quadratic, exactly=10),
        ),
        "digits-t_l": replace(
            _DIGITS, t_s=FINE, steps=(2.0, 6.0), t_l=(30.0, 100.0, 1000.0, 10000.0)
        ),
        "digits-penalty": replace(
            _DIGITS, t_s=FINE, steps=(2.0, 6.0), penalties=(0.003, 0.01, 0.03)
        ),
    }
)
DATA = ("digits", "mnist", "made")


def _quadratic(v: Tensor, q: Tensor) -> Tensor:
    return v @ q @ v


def _draw_quadratics(seeds: Sequence[int]) -> Tensor:
    parts = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(derive_seed(seed, "quadratic"))
        shape = (_QUADRATICS, _SIZE, _SIZE)
        parts.append(torch.randn(shape, generator=generator, dtype=torch.float64))
    q = torch.cat(parts)
    return (q + q.transpose(1, 2)) / 2


@functools.cache
def _solve_quadratics(seeds: tuple[int, ...], exactly: int | None) -> Tensor:
    with one_thread():
        found = solve(_quadratic, _SIZE, data=(_draw_quadratics(seeds),), exactly=exactly)
    return torch.tensor([run.value for run in found], dtype=torch.float64)
