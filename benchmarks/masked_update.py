"""What does a step of masked weights cost by how many of them are on?

Two square layers of 4,096 units, masks at random places, gradients of noise: clipping, momentum and
weights in two passes, as in every step of a retraining. Prints milliseconds an update, as it runs in a
captured step, and what they are of an update without masks.

    python benchmarks/masked_update.py
"""

import argparse

import torch
from timing import timed
from torch import nn

import aprune as ap
from aprune.training import choose_device
from aprune.training.engine import Engine
from aprune.training.fused import FusedUpdate

SIDE, LAYERS = 4096, 2


def main() -> None:
    ask = read_arguments()
    device = choose_device(ask.device)
    without = time_update(None, device, ask.side, ask.repeats)
    print(f"{LAYERS * ask.side**2:,} connections\n")
    print("| density | ms | of an update without masks |")
    print("| ---: | ---: | ---: |")
    print(f"| all, no mask | {without:.4f} | 1.00 |")
    for density in ask.densities:
        found = time_update(density, device, ask.side, ask.repeats)
        print(f"| {density:g} | {found:.4f} | {found / without:.2f} |", flush=True)


def time_update(density: float | None, device: torch.device, side: int, repeats: int) -> float:
    generator = torch.Generator(device).manual_seed(0)
    layers = [nn.Linear(side, side, bias=False, device=device) for _ in range(LAYERS)]
    model = nn.Sequential(*layers)
    masks = {
        name: torch.rand(weight.shape, generator=generator, device=device) < density
        for name, weight in model.named_parameters()
        if density is not None
    }
    update = FusedUpdate(model, ap.Recipe(steps=1, lr=0.1), masks=masks)
    update.load(masks)
    update.lr.fill_(0.1)
    with update.in_place():
        for layer in layers:
            layer.weight.grad = torch.randn_like(layer.weight)
        engine = Engine(update.move, device, settle=update.settle)
        return float(timed(engine.run, repeats, device)["ms"])


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--densities", type=float, nargs="+", default=[0.9, 0.5, 0.3, 0.1, 0.05, 0.02, 0.01]
    )
    parser.add_argument("--side", type=int, default=SIDE, help="units of a layer")
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


if __name__ == "__main__":
    main()
