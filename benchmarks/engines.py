"""Does an engine find architectures that are as good as another's? CIFAR-10 → ten classes of CIFAR-100.

AP's architectures, found with each engine and retrained in the same way on the same 500 images; accuracy
on test images. What is in the file already is not done again: a run that was interrupted goes on.

    python benchmarks/engines.py --parent vgg19 --seeds 6 --engines captured fused
"""

import argparse
import json
from pathlib import Path

import aprune as ap
from aprune.errors import TrainingError
from aprune.files import writing
from aprune.maths.statistics import summarise
from aprune.training.engine import EngineName

SPARSITIES = (0.95, 0.99)
EVERY_TENTH = list(range(0, 100, 10))


def main() -> None:
    ask = read_arguments()
    done: dict[str, list[float]] = json.loads(ask.out.read_text()) if ask.out.exists() else {}
    for seed in range(ask.seeds):
        for engine in ask.engines:
            key = f"{ask.parent}, {engine}, seed {seed}"
            if key not in done:
                done[key] = accuracies(ask, engine, seed)
                with writing(ask.out) as temporary:
                    temporary.write_text(json.dumps(done, indent=1) + "\n")
            print(key, *(f"{accuracy:.3f}" for accuracy in done[key]), flush=True)
    first = ask.engines[0]
    print("\n| parent | sparsity | engine | accuracy | minus that of the first, by seed |")
    print("| --- | --- | --- | --- | --- |")
    for place, sparsity in enumerate(SPARSITIES):
        for engine in ask.engines:
            pairs = [
                [done[f"{ask.parent}, {name}, seed {seed}"][place] for name in (engine, first)]
                for seed in range(ask.seeds)
            ]
            level = summarise([ours for ours, _ in pairs])
            more = summarise([ours - theirs for ours, theirs in pairs])
            print(
                f"| {ask.parent} | {sparsity:g} | {engine} | {level.mean:.3f} ± {level.std:.3f} |"
                f" {more.mean:+.3f} ± {more.std:.3f} |"
            )


def accuracies(ask: argparse.Namespace, engine: EngineName, seed: int) -> list[float]:
    old = ap.load_task(ask.old)
    new = ap.load_task(ask.new, classes=ask.classes, images=ask.images, seed=seed)
    found = ap.find(ask.parent, old, ap.AP(), sparsity=list(SPARSITIES), seed=seed, engine=engine)
    todo = [ap.Retraining(architecture, ask.parent, new, seed=seed) for architecture in found]
    reached = []
    for _, result in ap.transfer_many(todo):
        if isinstance(result, TrainingError):
            raise result
        reached.append(result.accuracy)
    return reached


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parent", default="vgg19")
    parser.add_argument("--engines", nargs="+", default=["captured", "fused"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--old", default="cifar10")
    parser.add_argument("--new", default="cifar100")
    parser.add_argument("--classes", type=int, nargs="+", default=EVERY_TENTH)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/engines.json"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
