"""What the project claims, on real data: small seeded runs that fail if the claim stops holding."""

from statistics import mean

from aprune import AP, Random, Recipe, find, load_task, transfer
from aprune.methods import Method

SEEDS = range(4)
SPARSITIES = (0.98, 0.99)


def retrained(method: Method, seed: int) -> list[float]:
    """Search on digits 0 … 4, retrain on 50 images of 5 … 9; one accuracy a sparsity."""
    old = load_task("digits", classes=[0, 1, 2, 3, 4])
    new = load_task("digits", classes=[5, 6, 7, 8, 9], images=50, seed=seed)
    found = find(
        "mlp",
        old,
        method,
        sparsity=SPARSITIES,
        seed=seed,
        recipe=Recipe(steps=300, lr=0.03),
        device="cpu",
    )
    recipe = Recipe(steps=200, lr=0.1)
    return [
        transfer(architecture, "mlp", new, seed=seed, recipe=recipe, device="cpu").accuracy
        for architecture in found
    ]


def test_ap_beats_random_connections_at_high_sparsity() -> None:
    ap = [retrained(AP(), seed) for seed in SEEDS]
    random = [retrained(Random(), seed) for seed in SEEDS]
    for number, margin in enumerate((0.15, 0.3)):
        gains = [a[number] - r[number] for a, r in zip(ap, random, strict=True)]
        assert mean(gains) > margin, SPARSITIES[number]
        assert min(gains) > 0, SPARSITIES[number]


def test_same_seed_gives_the_same_accuracy_to_the_last_bit() -> None:
    assert retrained(AP(), seed=1) == retrained(AP(), seed=1)
