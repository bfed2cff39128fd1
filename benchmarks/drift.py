"""Does it matter that the drift of w is chosen with the step size of the step before?

AP on the digits 0 to 4, retrained on 50 images of the digits 5 to 9: with the drift as it is chosen, and
with the one for the present step size, which is known only after all gradients have been read.

    python benchmarks/drift.py --parent conv --seeds 16
"""

import argparse
from collections.abc import Sequence
from unittest import mock

from torch import Tensor

import aprune as ap
from aprune.descent.step import Descent
from aprune.maths.statistics import summarise

SPARSITIES = (0.9, 0.95, 0.98)
SEARCH = ap.Recipe(steps=500, lr=0.1, batch=64)
RETRAINING = ap.Recipe(steps=150, lr=0.1, batch=50)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parent", default="conv")
    parser.add_argument("--seeds", type=int, default=16)
    ask = parser.parse_args()
    as_it_is = accuracies(ask.parent, ask.seeds)
    with mock.patch.object(Descent, "_drift", drift_of_present_step):
        exact = accuracies(ask.parent, ask.seeds)
    print("| sparsity | of the step before | of the present step | difference, by seed |")
    print("| --- | --- | --- | --- |")
    for sparsity in SPARSITIES:
        pairs = zip(as_it_is[sparsity], exact[sparsity], strict=True)
        cells = [as_it_is[sparsity], exact[sparsity], [one - other for one, other in pairs]]
        shown = [f"{cell.mean:.3f} ± {cell.std:.3f}" for cell in map(summarise, cells)]
        print(f"| {sparsity:g} | {' | '.join(shown)} |")


_drift = Descent._drift


def drift_of_present_step(self: Descent, alpha: Tensor, gradients: Sequence[Tensor]) -> Tensor:
    self._alpha.copy_(alpha)
    return _drift(self, alpha, gradients)


def accuracies(parent: str, seeds: int) -> dict[float, list[float]]:
    found: dict[float, list[float]] = {sparsity: [] for sparsity in SPARSITIES}
    old = ap.load_task("digits", classes=[0, 1, 2, 3, 4])
    for seed in range(seeds):
        new = ap.load_task("digits", classes=[5, 6, 7, 8, 9], images=50, seed=seed)
        architectures = ap.find(
            parent, old, ap.AP(), sparsity=list(SPARSITIES), seed=seed, recipe=SEARCH, device="cpu"
        )
        for sparsity, architecture in zip(SPARSITIES, architectures, strict=True):
            result = ap.transfer(
                architecture, parent, new, seed=seed, recipe=RETRAINING, device="cpu"
            )
            found[sparsity].append(result.accuracy)
    return found


if __name__ == "__main__":
    main()
