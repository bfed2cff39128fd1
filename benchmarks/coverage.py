"""How often does a paired 95 % interval hold the true difference, by the number of seeds?

Differences are drawn from a distribution whose mean is known: a normal one, and a lopsided one (a
difference of two exponentials, one twice as wide). The bootstrap and Student's interval on the same
numbers, and what aprune takes: on each side the bound of the two that is further out. CPU, two minutes.

    python benchmarks/coverage.py
"""

import argparse
from collections.abc import Callable

import numpy as np

from aprune.maths.statistics import _bootstrap, _student, paired_interval

Draw = Callable[[np.random.Generator, int], np.ndarray]

KINDS: dict[str, tuple[Draw, float]] = {
    "normal": (lambda rng, n: rng.normal(size=n), 0.0),
    "lopsided": (lambda rng, n: 2 * rng.exponential(size=n) - rng.exponential(size=n), 1.0),
}


def main() -> None:
    ask = read_arguments()
    print("| differences | seeds | bootstrap | Student | taken |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for kind, (draw, truth) in KINDS.items():
        for seeds in ask.seeds:
            shares = count(draw, truth, seeds, ask.times)
            print(f"| {kind} | {seeds} | {' | '.join(f'{x:.3f}' for x in shares)} |", flush=True)


def count(draw: Draw, truth: float, seeds: int, times: int) -> list[float]:
    """Return the shares of intervals that hold the truth."""
    rng = np.random.default_rng(seeds)
    held = [0, 0, 0]
    for _ in range(times):
        values = draw(rng, seeds)
        taken = paired_interval(values, np.zeros(seeds))
        bounds = [_bootstrap(values, 0.95, 0), _student(values, 0.95), (taken.low, taken.high)]
        held = [n + (low <= truth <= high) for n, (low, high) in zip(held, bounds, strict=True)]
    return [number / times for number in held]


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[3, 4, 5, 6, 8, 12, 20])
    parser.add_argument("--times", type=int, default=4_000)
    return parser.parse_args()


if __name__ == "__main__":
    main()
