"""How large are the gradients of w in each layer of a search, and what do they add up to?

Over some steps of w: how many connections a layer has on, the root mean square of their gradients and
their mean, both in units of the whole network's root mean square, and the sum of the mean gradients as
a share of the sum over all layers. Positive means that the gradients want the layer to keep more.

    python benchmarks/layer_gradients.py --parent small_vgg:plain --size 16 --steps 1500 --updates 350

Stops the search at the last of these steps of w.
"""

import argparse
from unittest import mock

import torch

import aprune as ap
from aprune.descent.step import Descent
from aprune.parents import build_parent

usual_update = Descent.update


class StopSearch(Exception):  # noqa: N818 – nothing is wrong
    """All that was to be measured has been."""


class Watch:
    """Adds up gradients, and prints what they come to at some steps of w."""

    def __init__(self, names: list[str], updates: list[int]) -> None:
        self.names, self.updates = names, sorted(updates)
        self.step, self.since = 0, 0
        self.squares = torch.zeros(len(names), dtype=torch.float64)
        self.sums = torch.zeros(len(names), dtype=torch.float64)

    def update(self, descent: Descent) -> None:
        self.step, self.since = self.step + 1, self.since + 1
        for place, w in enumerate(descent.w):
            assert w.grad is not None
            self.squares[place] += w.grad.square().sum().item()
            self.sums[place] -= w.grad.sum().item()
        if self.step in self.updates:
            self.tell(descent)
        if self.step == self.updates[-1]:
            raise StopSearch
        usual_update(descent)

    def tell(self, descent: Descent) -> None:
        sizes = torch.tensor([w.numel() for w in descent.w], dtype=torch.float64)
        root = (self.squares.sum() / self.since / descent.total).sqrt()
        by_layer = (self.squares / self.since / sizes).sqrt() / root
        means = self.sums / self.since / sizes / root
        print(f"\nsteps {self.step - self.since + 1} to {self.step} of w\n")
        print("| layer | connections | on | root mean square | mean | share of the sum |")
        print("| --- | ---: | ---: | ---: | ---: | ---: |")
        for place, (name, w) in enumerate(zip(self.names, descent.w, strict=True)):
            on = (w > 0).float().mean().item()
            share = (self.sums[place] / self.sums.sum()).item()
            print(
                f"| {name} | {w.numel():,} | {on:.3f} | {by_layer[place]:.2f} |"
                f" {means[place]:+.4f} | {share:.2f} |",
                flush=True,
            )
        self.since = 0
        self.squares.zero_()
        self.sums.zero_()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parent", default="small_vgg:plain")
    parser.add_argument("--task", default="cifar10")
    parser.add_argument("--size", type=int, help="of the images, if they are not left as they are")
    parser.add_argument("--steps", type=int, help="of the whole search")
    parser.add_argument(
        "--updates", type=int, nargs="+", default=[200], help="steps of w to tell at"
    )
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.9, 0.99])
    parser.add_argument("--seed", type=int, default=30)
    ask = parser.parse_args()
    task = ap.load_task(ask.task, size=ask.size)
    parent = build_parent(ask.parent, task)
    recipe = ap.Recipe.for_search(parent, task).but(steps=ask.steps)
    watch = Watch(list(ap.find_connections(parent)), ask.updates)
    with mock.patch.object(Descent, "update", lambda descent: watch.update(descent)):
        try:
            ap.find(
                ask.parent,
                task,
                ap.AP(),
                sparsity=ask.sparsity,
                seed=ask.seed,
                recipe=recipe,
                engine="eager",
            )
        except StopSearch:
            return
    raise SystemExit(f"the search has only {watch.step} steps of w: expected {ask.updates[-1]}")


if __name__ == "__main__":
    main()
