"""Small problems whose best subset is known because all of them were tried: how often `solve` finds it.

    python benchmarks/subsets.py            # 100 instances of each kind, some minutes on two cores
    python benchmarks/subsets.py --instances 5

Every way gets the same problems and the same number of starts. Times are those of the CPU, on
one thread. Writes benchmarks/results/subsets.json.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from aprune import Scheme, solve
from aprune.estimators import logistic, squares
from aprune.estimators.base import standardise
from aprune.progress import bar

ALPHA = 1e-3
FAR_AWAY = 1e-9  # a step so small that a descent stays where it starts

WAYS: dict[str, dict[str, Any]] = {
    "two temperatures": {"scheme": Scheme()},
    "one temperature": {"scheme": Scheme(t_s=Scheme().t_l)},
    # v is binary, and the gradient passes as if it were w: the slope at a low t_s is the same for all
    "straight through": {"scheme": Scheme(t_l=1e6, t_s=1e-3)},
    "random points": {"scheme": Scheme(steps=1, step=FAR_AWAY)},
}


@dataclass(frozen=True)
class Kind:
    """Instances of one kind, and the best value of each.

    Attributes:
        size: D.
        asked: What `solve` gets besides f and the data.
        f: The function.
        data: Tensors with a first dimension for the instances.
        best: The lowest value of all subsets [instances].
    """

    size: int
    asked: dict[str, Any]
    f: Callable[..., Tensor]
    data: tuple[Tensor, ...]
    best: Tensor


def all_subsets(size: int, number: int | None = None) -> Tensor:
    """Return all subsets [N, D], or all with so many ones."""
    if number is None:
        return torch.tensor(list(itertools.product((0.0, 1.0), repeat=size))).double()
    places = torch.tensor(list(itertools.combinations(range(size), number)))
    return torch.zeros(len(places), size).double().scatter(1, places, 1.0)


def make_regression(instances: int, *, size: int, number: int | None, price: float) -> Kind:
    """Correlated features, a third of which matter, and noise as large as what they say."""
    data = []
    for seed in range(instances):
        rng = np.random.default_rng([1, seed])
        x = rng.normal(size=(60, size)) @ rng.normal(size=(size, size))
        weights = rng.normal(size=size) * (rng.random(size) < 1 / 3)
        signal = standardise(x)[0].numpy() @ weights
        y = signal / max(signal.std(), 1e-9) + rng.normal(size=60)
        targets = torch.from_numpy(y - y.mean())[:, None]
        f, fit, one, _ = squares.problem(standardise(x)[0], targets, ALPHA, number or size)
        data.append(one)
    together = tuple(torch.stack(tensors) for tensors in zip(*data, strict=True))
    subsets, best = all_subsets(size, number), []
    for a, b, c in zip(*together, strict=True):
        # a row of the identity for what is not there
        lost = subsets[:, :, None] * a * subsets[:, None] + torch.diag_embed(
            ALPHA * subsets + 1 - subsets
        )
        here = subsets * b[:, 0]
        explained = (here * torch.linalg.solve(lost, here)).sum(1)
        best.append(((c - explained) / 2 + price * subsets.sum(1)).min())
    asked = {"fit": fit, "exactly": number, "penalty": price}
    return Kind(size, asked, f, together, torch.stack(best))


def make_logistic(instances: int, *, size: int, number: int) -> Kind:
    """Tell 0 from 1 by some of the pixels, on 200 of the 360 images of scikit-learn's digits."""
    images, digits = load_digits(n_class=2, return_X_y=True)
    alive = np.flatnonzero(images.std(0) > 0)
    data, best = [], []
    for seed in range(instances):
        rng = np.random.default_rng([2, seed])
        rows = rng.choice(len(images), 200, replace=False)
        x = images[np.ix_(rows, rng.choice(alive, size, replace=False))]
        labels = torch.from_numpy(digits[rows].astype(np.float64))
        f, fit, one, theta = logistic.problem(standardise(x)[0], labels, ALPHA, number)
        data.append(one)
        best.append(enumerate_logistic(all_subsets(size, number), one[0], labels))
    together = tuple(torch.stack(tensors) for tensors in zip(*data, strict=True))
    return Kind(
        size, {"fit": fit, "exactly": number, "theta": theta}, f, together, torch.stack(best)
    )


def enumerate_logistic(subsets: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the least loss of all subsets, by Newton's method for all at once."""
    chosen = subsets.nonzero()[:, 1].reshape(len(subsets), -1)
    features = torch.cat([x[chosen], torch.ones(len(subsets), 1, len(y)).double()], 1)
    ridge = torch.full((features.shape[1],), ALPHA).double()
    ridge[-1] = 0.0
    theta = torch.zeros(features.shape[:2]).double()

    def value(tried: Tensor) -> Tensor:
        z = torch.einsum("nk,nks->ns", tried, features)
        loss = (torch.nn.functional.softplus(z) - y * z).mean(1)
        return loss + (ridge * tried.square()).sum(1) / 2

    now = value(theta)
    for _ in range(40):
        p = torch.sigmoid(torch.einsum("nk,nks->ns", theta, features))
        slope = torch.einsum("nks,ns->nk", features, p - y) / len(y) + ridge * theta
        curve = (features * (p * (1 - p))[:, None]) @ features.mT / len(y) + torch.diag(ridge)
        step = torch.linalg.solve(curve, slope)
        length = torch.ones_like(now)
        for _ in range(8):  # halve what does not lead down
            after = value(theta - length[:, None] * step)
            length = torch.where(after > now, length / 2, length)
        after = value(theta - length[:, None] * step)
        down = after <= now
        theta = torch.where(down[:, None], theta - length[:, None] * step, theta)
        if bool((now - after < 1e-13).all()):
            break
        now = torch.where(down, after, now)
    return now.min()


def make_max_cut(instances: int, *, size: int) -> Kind:
    """Random graphs with an edge between every other pair."""
    graphs = []
    for seed in range(instances):
        rng = np.random.default_rng([3, seed])
        upper = np.triu(rng.random((size, size)) < 0.5, 1).astype(np.float64)
        graphs.append(torch.from_numpy(upper + upper.T))
    subsets = all_subsets(size)[: 2 ** (size - 1)]  # the other half is the same
    best = [-(subsets @ g * (1 - subsets)).sum(1).max() for g in graphs]
    return Kind(size, {}, minus_cut, (torch.stack(graphs),), torch.stack(best))


def minus_cut(v: Tensor, graph: Tensor) -> Tensor:
    """Return minus the number of edges between v and the rest."""
    return -(v @ graph @ (1 - v))


def measure(kind: Kind, way: dict[str, Any], rounds: int) -> dict[str, Any]:
    start = time.process_time()
    found = solve(
        kind.f, kind.size, data=kind.data, rounds=rounds, progress=False, **kind.asked, **way
    )
    seconds = time.process_time() - start
    values = torch.tensor([solution.value for solution in found]).double()
    gaps = (values - kind.best) / kind.best.abs()
    assert bool((gaps > -1e-6).all()), "below the least value of all subsets"
    return {
        "instances": len(found),
        "exact": float((gaps < 1e-6).double().mean()),
        "mean_gap": float(gaps.clamp(min=0).mean()),
        "worst_gap": float(gaps.clamp(min=0).max()),
        "ms": 1e3 * seconds / len(found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/subsets.json"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    makers: dict[str, Callable[[], Kind]] = {
        "regression, 5 of 18": lambda: make_regression(
            asked.instances, size=18, number=5, price=0.0
        ),
        "regression, price 0.02, D = 14": lambda: make_regression(
            asked.instances, size=14, number=None, price=0.02
        ),
        "digits 0 and 1, 4 of 18": lambda: make_logistic(asked.instances, size=18, number=4),
        "max-cut, 18 nodes": lambda: make_max_cut(asked.instances, size=18),
    }
    rows = []
    with bar("subsets", len(makers) * (1 + 2 * len(WAYS))) as advance:
        for name, make in makers.items():
            kind = make()
            advance()
            for (way, settings), rounds in itertools.product(WAYS.items(), (0, 50)):
                row = {"kind": name, "way": way, "exchanges": rounds > 0}
                rows.append({**row, **measure(kind, settings, rounds)})
                advance()
    print(f"{'':32} {'':18} exchanges  exact  mean gap  worst gap  ms each")
    for row in rows:
        print(
            f"{row['kind']:32} {row['way']:18} {'yes' if row['exchanges'] else 'no':9}"
            f"  {row['exact']:5.0%}  {row['mean_gap']:8.3%}  {row['worst_gap']:9.2%}  {row['ms']:7.0f}"
        )
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
