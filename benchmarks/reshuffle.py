"""How much of AP's gain is the densities of the layers alone? The demo's setting, on the CPU.

Each AP architecture is retrained as it is, and again with the connections of every layer shuffled:
the same density in each layer, in random places. Accuracy on test images, paired by seed.

    python benchmarks/reshuffle.py
"""

import torch

import aprune as ap
from aprune.experiments.demo import SETTING
from aprune.maths.statistics import paired_interval, summarise


def main() -> None:
    torch.set_num_threads(1)
    scores: dict[tuple[float, str], list[float]] = {}
    for seed in SETTING.seeds:
        big, small = SETTING.search_task.load(seed), SETTING.new_task.load(seed)
        parent = ap.build_parent(SETTING.parent, small)
        search = ap.Recipe.for_search(parent, big).but(steps=SETTING.search_steps)
        retrain = ap.Recipe.for_transfer(parent, small).but(
            steps=SETTING.retrain_steps, lr=SETTING.lrs[0]
        )
        found = ap.find(SETTING.parent, big, sparsity=SETTING.sparsities, seed=seed, recipe=search)
        for sparsity, architecture in zip(SETTING.sparsities, found, strict=True):
            for what, kept in (("AP", architecture), ("shuffled", architecture.shuffle(seed))):
                result = ap.transfer(kept, SETTING.parent, small, seed=seed, recipe=retrain)
                scores.setdefault((sparsity, what), []).append(result.accuracy)
    print("| sparsity | AP | AP, layers shuffled | difference |")
    print("| --- | --- | --- | --- |")
    for sparsity in SETTING.sparsities:
        ours, shuffled = scores[sparsity, "AP"], scores[sparsity, "shuffled"]
        cells = [f"{s.mean:.3f} ± {s.std:.3f}" for s in (summarise(ours), summarise(shuffled))]
        print(f"| {sparsity:g} | {' | '.join(cells)} | {paired_interval(ours, shuffled):+.3f} |")


if __name__ == "__main__":
    main()
