"""Figure 1: the claim on real digits, the search against numpy, the files and the sentence."""

import io
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from aprune.errors import FileError, SettingError, TrainingError
from aprune.experiments.convergence import Setting, choose_iterations, descend, search
from aprune.experiments.figure1 import EXACT, T_L, T_S, WARM, WARMEST, Figure1, figure1, judge
from aprune.maths.seed import derive_seed
from aprune.tasks import load_task


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Figure1:
    return figure1("digits", out=tmp_path_factory.mktemp("figure1") / "new")


def final_objective(frame: pd.DataFrame) -> pd.DataFrame:
    last = frame[frame["iteration"] == frame["iteration"].max()]
    return last.pivot_table(index="seed", columns="t_s", values="objective")


def test_warm_gradient_ends_below_the_exact_one_on_every_seed(digits: Figure1) -> None:
    final = final_objective(digits.frame)
    assert len(final) == 5
    assert (final[WARM] < final[EXACT]).all()


def test_too_warm_a_gradient_ends_above_on_every_seed_with_fewer_connections(
    digits: Figure1,
) -> None:
    final = final_objective(digits.frame)
    assert (final[WARMEST] > final[WARM]).all()
    last = digits.frame[digits.frame["iteration"] == 5000]
    active = last.pivot_table(index="seed", columns="t_s", values="active")
    assert (active[WARMEST] < active[WARM]).all()
    assert digits.verdict.startswith(
        "On digits, t_s = t_l/100 ends below t_s = t_l on 5 of 5 seeds"
    )


def test_frame_has_every_run_from_all_connections_on(digits: Figure1) -> None:
    frame = digits.frame
    names = ["data", "t_l", "t_s", "seed", "iteration", "objective", "active"]
    assert frame.columns.tolist() == names
    assert frame.groupby(["t_s", "seed"]).size().tolist() == [len(choose_iterations(5000))] * 15
    assert set(frame["t_s"]) == {1000.0, 10.0, 1.0}
    assert set(frame["t_l"]) == {1000.0}
    start = frame[frame["iteration"] == 0]
    assert (start["active"] == 64).all()
    # A seed starts all its temperatures alike.
    assert (start.groupby("seed")["objective"].nunique() == 1).all()
    assert start.groupby("seed")["objective"].first().nunique() == 5


def test_files_are_whole_and_nothing_else_is_left(digits: Figure1) -> None:
    folder = digits.png.parent
    expected = {f"figure1-digits.{suffix}" for suffix in ("png", "pdf", "parquet")}
    assert {path.name for path in folder.iterdir()} == expected
    assert digits.png.read_bytes().startswith(b"\x89PNG")
    assert digits.pdf.read_bytes().startswith(b"%PDF")
    pd.testing.assert_frame_equal(pd.read_parquet(digits.parquet), digits.frame, check_dtype=False)


def test_same_call_gives_the_same_bits_whatever_the_threads(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        first = figure1(seeds=2, iterations=60, out=tmp_path / "a")
        torch.manual_seed(99)
        torch.set_num_threads(2)
        second = figure1(seeds=2, iterations=60, out=tmp_path / "b")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    pd.testing.assert_frame_equal(first.frame, second.frame, check_exact=True)
    assert first.verdict == second.verdict
    for kind in ("png", "pdf", "parquet"):
        assert getattr(first, kind).read_bytes() == getattr(second, kind).read_bytes()


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def test_search_follows_the_equations_written_in_numpy() -> None:
    # Wide enough w for σ(t_l·w) to be binary would hide t_l, so it is small here.
    t_l, t_s, seed, steps = 20.0, 4.0, 3, 4
    setting = Setting(penalty=0.02, step=0.5, spread_w=0.1, spread_theta=0.5, batch=6)
    task = load_task("digits", classes=[0, 1])
    pixels = (task.train_images.flatten(1).float() / 255).double()
    labels = task.train_labels.double()
    start, of_theta, of_batches = (
        torch.Generator().manual_seed(number)
        for number in (seed, derive_seed(seed, "theta"), derive_seed(seed, "batches"))
    )
    w = (torch.randn(64, generator=start).abs() * 0.1).double().numpy()
    theta = (torch.randn(64, generator=of_theta) * 0.5).double().numpy()
    batches = torch.randint(len(labels), (steps, 6), generator=of_batches)
    expected, active = [], []
    for i in range(steps + 1):
        mask = w > 0
        p = sigmoid(pixels.numpy() @ (mask * theta))
        likelihood = np.where(labels.numpy() == 1, np.log(p), np.log(1 - p))
        # ‖θ‖² counts weights under no connection too
        expected.append(-likelihood.mean() + 0.02 * (mask.sum() + (theta**2).sum()))
        active.append(mask.sum())
        if i < steps:
            x, y = pixels[batches[i]].numpy(), labels[batches[i]].numpy()
            v, warm = sigmoid(t_l * w), sigmoid(t_s * w)
            slope = x.T @ (sigmoid(x @ (v * theta)) - y) / 6  # ∂L/∂(v∘θ)
            grad_w = slope * theta * t_s * warm * (1 - warm) + 2 * 0.02 * (1 + w)
            grad_theta = slope * v + 2 * 0.02 * theta
            w, theta = (
                w - 0.5 / math.sqrt(i + 1) * grad_w,
                theta - 0.5 / math.sqrt(i + 1) * grad_theta,
            )
    frame = descend(
        pixels.float(),
        labels.float(),
        t_l=t_l,
        t_s=[t_l, t_s],
        seeds=[seed],
        iterations=steps,
        setting=setting,
    )
    found = frame.loc[frame["t_s"] == t_s, "objective"].to_numpy()
    assert found == pytest.approx(expected, rel=1e-5)
    assert frame.loc[frame["t_s"] == t_s, "active"].tolist() == active
    assert 0 < active[-1] < 64
    exact = frame.loc[frame["t_s"] == t_l, "objective"].to_numpy()
    assert exact != pytest.approx(expected, rel=1e-3)


def test_a_run_does_not_depend_on_its_neighbours() -> None:
    pixels = torch.rand(20, 5, generator=torch.Generator().manual_seed(0))
    labels = (pixels[:, 0] > 0.5).float()
    both = descend(pixels, labels, t_l=1000, t_s=[1000, 10], seeds=[4, 7], iterations=30)
    alone = descend(pixels, labels, t_l=1000, t_s=[10], seeds=[7], iterations=30)
    same = both[(both["t_s"] == 10) & (both["seed"] == 7)]
    assert same["objective"].to_numpy() == pytest.approx(alone["objective"].to_numpy(), rel=1e-5)


def test_stretched_weights_have_a_step_size_of_their_own() -> None:
    # θ alone is moved: w is so large that its slope is nothing, and that the drift does not get far.
    pixels, labels = torch.rand(20, 5, generator=torch.Generator().manual_seed(0)), torch.ones(20)
    ends = {}
    for step, stretch in ((0.4, 1.0), (0.1, 2.0), (0.1, 1.0)):
        setting = Setting(penalty=1e-4, step=step, spread_w=50.0, spread_theta=0.5)
        scheme = setting.scheme(1000.0, 1000.0, 30)
        (run,) = search(
            pixels, labels, scheme, setting, seeds=[1], moments=[0, 30], stretch=stretch
        )
        ends[step, stretch] = run.trajectory.tolist()
    assert ends[0.1, 2.0] == pytest.approx(ends[0.4, 1.0], rel=1e-5)
    assert ends[0.1, 1.0][0] == pytest.approx(ends[0.4, 1.0][0], rel=1e-5)
    assert ends[0.1, 1.0][1] > ends[0.4, 1.0][1] + 0.01


def test_recorded_iterations_are_spread_evenly_on_a_logarithmic_axis() -> None:
    chosen = choose_iterations(5000)
    assert chosen[:4] == [0, 1, 2, 3]
    assert chosen[-1] == 5000
    assert len(chosen) <= 121
    late = np.diff(np.log(chosen[-50:]))
    assert late == pytest.approx(np.full(49, math.log(5000) / 119), rel=0.1)


def make_frame(objective: dict[float, list[float]], active: dict[float, list[int]]) -> pd.DataFrame:
    rows = [
        ("toy", T_L, t_s, seed, iteration, value, 8 if iteration == 0 else active[t_s][seed])
        for t_s in T_S
        for seed, end in enumerate(objective[t_s])
        for iteration, value in ((0, 2.0), (10, end + 0.125), (20, end))
    ]
    names = ["data", "t_l", "t_s", "seed", "iteration", "objective", "active"]
    return pd.DataFrame(rows, columns=names)


def test_sentence_comes_from_the_numbers() -> None:
    objective = {EXACT: [0.5, 0.75], WARM: [0.25, 0.5], WARMEST: [0.75, 0.25]}
    active = {EXACT: [4, 4], WARM: [3, 3], WARMEST: [0, 1]}
    assert judge(make_frame(objective, active)) == (
        "On toy, t_s = t_l/100 ends below t_s = t_l on 2 of 2 seeds (0.375 ± 0.177 against"
        " 0.625 ± 0.177, difference -0.250 [-0.250, -0.250]) and gets to where t_l ends in 10 of 20"
        " iterations; t_s = t_l/1000 ends above t_l/100 on 1 of 2 (0.500 ± 0.354) and prunes"
        " everything on 1 of 2 (0.5 ± 0.7 of 8 connections left)."
    )


def test_sentence_tells_when_the_claim_fails() -> None:
    objective = {EXACT: [0.25], WARM: [0.5], WARMEST: [0.5]}
    verdict = judge(make_frame(objective, {t_s: [1] for t_s in T_S}))
    assert "below t_s = t_l on 0 of 1 seeds (0.500 against 0.250)" in verdict
    assert "does not get to where t_l ends in 20 iterations" in verdict
    assert "ends above t_l/100 on 0 of 1" in verdict


@pytest.fixture
def small_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An "mnist" of 30 images of 28 × 28 pixels: 0s are bright above, 1s below, 2s all over."""
    from PIL import Image

    rows = []
    for index in range(30):
        pixels = np.random.default_rng(index).integers(0, 60, (28, 28), dtype=np.uint8)
        pixels[[slice(0, 14), slice(14, 28), slice(0, 28)][index % 3]] += 180
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "PNG")
        rows.append({"image": {"bytes": stream.getvalue(), "path": None}, "label": index % 3})
    folder = tmp_path / "data" / "mnist" / "mnist"
    folder.mkdir(parents=True)
    for part in ("train", "test"):
        pd.DataFrame(rows).to_parquet(folder / f"{part}-00000-of-00001.parquet", index=False)
    monkeypatch.setenv("APRUNE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("APRUNE_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("small_mnist")
def test_mnist_has_one_weight_for_each_of_784_pixels(tmp_path: Path) -> None:
    result = figure1("mnist", seeds=1, iterations=5, out=tmp_path)
    assert result.png.name == "figure1-mnist.png"
    assert set(result.frame["data"]) == {"mnist"}
    assert result.frame["active"].max() == 784
    assert "of 784 connections left" in result.verdict


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": "cifar10"}, "choose digits or mnist"),
        ({"seeds": 0}, "at least 1 of each"),
        ({"iterations": -1}, "at least 1 of each"),
    ],
)
def test_bad_arguments_are_named_and_nothing_is_written(
    arguments: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match=message):
        figure1(**arguments, out=tmp_path / "new")  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("field", ["penalty", "step", "spread_w", "spread_theta", "batch"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_bad_settings_are_named(field: str, value: float) -> None:
    with pytest.raises(SettingError, match=f"as {field} of figure 1"):
        Setting(**{field: value})


def test_divergence_is_an_error_and_leaves_no_files(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"not finite at iteration \d+; choose a step below"):
        figure1(seeds=1, iterations=50, out=tmp_path, setting=Setting(step=1e30))
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_found_before_the_search(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FileError):
        figure1(iterations=10**9, out=tmp_path / "file" / "below")
