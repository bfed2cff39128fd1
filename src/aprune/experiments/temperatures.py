"""Which t_s: the end of a descent against t_s and the step size together, on four kinds of problems.

Figure 1 compares three t_s at one step size. But t_s scales the slope of w, about t_s/4 near w = 0, so
that a t_s and a step size act in part as one. Here both vary. What else differs from case to case is how
the sparsity comes about:

- *by a drift*: the paper's γ‖1 + w‖² pulls with 2γ at w = 0, whatever t_s is, while the loss pulls with
  t_s/4 times its slope to v. To first order a connection is worth its price γ if that slope is −γ or
  less. Both say the same if t_s/4 = 2: a t_s of 8, whatever t_l, γ and the step size are. With a smaller
  one the descent prunes as if the price were 8γ/t_s.
- *by the price itself*, γ·Σv, or by a number of ones, or by AP's `gamma="auto"`: then t_s scales all
  that decides between connections alike, and what is left of it is the width of the sigmoid, 1/t_s.

`CASES` says what is run. Training images only; the network is judged on some of them that it was not
trained on.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from aprune.errors import ApruneError, SettingError
from aprune.experiments import style
from aprune.experiments.convergence import Setting, search
from aprune.files import check_writable, writing
from aprune.finding import search as search_network
from aprune.maths.seed import derive_seed
from aprune.maths.statistics import summarise
from aprune.methods import AP
from aprune.progress import bar
from aprune.solver import Scheme, solve
from aprune.tasks import load_task
from aprune.training import Recipe
from aprune.training.batch import Normalise
from aprune.training.device import one_thread

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NEAR = 1.1  # within so many times the lowest mean
_PAPER = 100  # t_l/t_s of the paper's figure
_RULE = 8  # t_s at which the drift of w and the price of a one agree

_WIDE = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
_FINE = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
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
            _DIGITS, t_s=_FINE, steps=(2.0, 6.0), t_l=(30.0, 100.0, 1000.0, 10000.0)
        ),
        "digits-penalty": replace(
            _DIGITS, t_s=_FINE, steps=(2.0, 6.0), penalties=(0.003, 0.01, 0.03)
        ),
    }
)
DATA = ("digits", "mnist", "made")


@dataclass(frozen=True, eq=False)
class Temperatures:
    """What `temperatures` found and where it wrote it.

    Attributes:
        frame: One row for each case, t_l, penalty, t_s, step and seed, with objective, active and
            accuracy (of the network).
        table: One row for each case, t_l and penalty; see `tabulate`.
        steps: Paths of the heat maps, PNG and PDF.
        best: Paths of the lines, PNG and PDF.
        parquet: The frame as parquet.
    """

    frame: "pd.DataFrame"
    table: "pd.DataFrame"
    steps: tuple[Path, Path]
    best: tuple[Path, Path]
    parquet: Path


def temperatures(
    data: Sequence[str] = DATA, *, seeds: int = 5, iterations: int = 1000, out: Path | str
) -> Temperatures:
    """Run the cases and write `temperatures.parquet` and the figures `temperatures-steps` and `-best`.

    Args:
        data: Of the cases to run: `digits`, `mnist`, and `made` for random quadratic problems.
        seeds: How many runs in each cell; their seeds are 0, 1, …, the same in each.
        iterations: Steps on digits and MNIST; a network takes a third of them, a quadratic a tenth.
        out: Folder for the files; it is made if need be.

    Returns:
        The numbers and the paths.

    Example:
        >>> import tempfile
        >>> result = temperatures(["made"], seeds=1, iterations=10, out=tempfile.mkdtemp())
        >>> sorted(result.frame["case"].unique())
        ['quadratic', 'quadratic-exactly']
    """
    import pandas as pd

    unknown = [name for name in data if name not in DATA]
    if unknown or not data:
        raise SettingError(
            f"got {unknown or 'nothing'} as data: expected some of {', '.join(DATA)}"
        )
    if seeds < 1 or iterations < 1:
        raise SettingError(
            f"got {seeds} seeds and {iterations} iterations; give at least 1 of each"
        )
    out = check_writable(out)
    cells = [
        (name, case, t_l, penalty, t_s, step)
        for name, case in CASES.items()
        if case.data in data
        for t_l in case.t_l
        for penalty in case.penalties
        for t_s in case.t_s
        for step in case.steps
    ]
    rows = []
    with bar("temperatures", len(cells)) as advance:
        for name, case, t_l, penalty, t_s, step in cells:
            cell = {"t_l": t_l, "t_s": t_s, "step": step}
            price = {"penalty": penalty} if penalty else {}
            runs = case.measure(**cell, **price, seeds=range(seeds), iterations=iterations)
            about = {"case": name, **cell, "penalty": penalty}
            rows += [{**about, "seed": seed, **vars(run)} for seed, run in enumerate(runs)]
            advance(note=name)
    frame = pd.DataFrame(rows)
    parquet = out / "temperatures.parquet"
    with writing(parquet) as temporary:
        frame.to_parquet(temporary, index=False)
    steps = style.save(draw_steps(frame), out / "temperatures-steps")
    best = style.save(draw_best(frame), out / "temperatures-best")
    return Temperatures(frame, tabulate(frame), steps, best, parquet)


def tabulate(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Say which t_s is the best in each case, and how many others are about as good.

    Args:
        frame: The frame of `Temperatures`.

    Returns:
        For each case, t_l and penalty: the `t_s` and the `step` where the mean over the seeds is
        lowest, that `objective` as mean ± standard deviation, and `near`: every t_s whose best step
        gets to within 1.1 times that mean.
    """
    import pandas as pd

    rows = []
    for (case, t_l, penalty), part in frame.groupby(["case", "t_l", "penalty"], sort=False):
        tuned = tune(part)
        first = tuned["objective"].idxmin()
        step = tuned["step"].to_numpy()[tuned["objective"].to_numpy().argmin()]
        values = part[(part["t_s"] == first) & (part["step"] == step)]["objective"].to_numpy()
        near = tuned.index[tuned["objective"] <= NEAR * tuned["objective"].min()]
        rows.append(
            {
                "case": case,
                "t_l": t_l,
                "penalty": penalty,
                "t_s": first,
                "step": step,
                "objective": str(summarise(values)),
                "near": ", ".join(f"{t_s:g}" for t_s in near),
            }
        )
    return pd.DataFrame(rows)


def tune(part: "pd.DataFrame") -> "pd.DataFrame":
    """Return for each t_s the step with the lowest mean over the seeds.

    Args:
        part: Rows of one case, t_l and penalty. A mean over a run that died is not finite, and no
            candidate.

    Returns:
        By t_s: step, objective (the mean), low and high (of the seeds).
    """
    ends = part.assign(objective=part["objective"].fillna(float("inf")))
    cells = ends.groupby(["t_s", "step"])["objective"]
    flat = cells.agg(objective="mean", low="min", high="max").reset_index()
    return flat.loc[flat.groupby("t_s")["objective"].idxmin()].set_index("t_s")


def draw_steps(frame: "pd.DataFrame") -> "Figure":
    """Draw a heat map of every case with one t_l and one penalty.

    Args:
        frame: The frame of `Temperatures`.

    Returns:
        Colours are means over the seeds, up to four times the lowest; dots mark the best step of each
        t_s, the star the best of all, and the dashed line t_l/100.
    """
    import numpy as np
    from matplotlib.colors import LogNorm

    names = [name for name in frame["case"].unique() if _is_map(CASES[name])]
    across = min(4, len(names))
    down = -(-len(names) // across)
    with style.styled():
        figure = style.make_figure(style.PAGE_WIDTH, 0.4 + 1.85 * down)
        grid = figure.subplots(down, across, squeeze=False)
        mesh = None
        for place, axes in enumerate(grid.flat):
            if place >= len(names):
                axes.set_visible(False)
                continue
            case, part = CASES[names[place]], frame[frame["case"] == names[place]]
            ends = part.assign(objective=part["objective"].fillna(float("inf")))
            table = ends.groupby(["step", "t_s"])["objective"].mean().unstack()
            least = table.to_numpy()[np.isfinite(table.to_numpy())].min()
            mesh = axes.imshow(
                table / least, origin="lower", aspect="auto", cmap="viridis_r", norm=LogNorm(1, 4)
            )
            tuned = tune(part)
            first = tuned["objective"].idxmin()
            for t_s, row in tuned.iterrows():
                spot = (table.columns.get_loc(t_s), table.index.get_loc(row["step"]))
                shape, size = ("*", 8) if t_s == first else ("o", 3.5)
                axes.plot(
                    *spot,
                    shape,
                    markersize=size,
                    markerfacecolor="white",
                    markeredgecolor="black",
                    markeredgewidth=0.6,
                )
            ratio = np.interp(
                np.log(case.t_l[0] / _PAPER), np.log(table.columns), range(len(table.columns))
            )
            axes.axvline(ratio, color=style.COLOURS["imp"], linewidth=1, linestyle="--", zorder=1)
            axes.set_title(case.title, fontsize=7)
            axes.set_xticks(range(len(table.columns)), _ratios(table.columns, case.t_l[0]))
            axes.set_yticks(range(len(table.index)), [f"{step:g}" for step in table.index])
            axes.tick_params(labelsize=6, length=2)
            axes.grid(False)
            axes.spines[:].set_visible(False)
            if place % across == 0:
                axes.set_ylabel("step size")
            if place + across >= len(names):
                axes.set_xlabel("$t_l/t_s$")
        if mesh is not None:
            scale = figure.colorbar(mesh, ax=grid, aspect=30, pad=0.01, extend="max")
            scale.set_label("mean at the end / lowest mean")
            scale.set_ticks([1, 1.5, 2, 3, 4], labels=["1", "1.5", "2", "3", "4"], minor=False)
            scale.ax.minorticks_off()
            scale.outline.set_visible(False)
    return figure


def draw_best(frame: "pd.DataFrame") -> "Figure":
    """Draw the best over the step sizes against t_s.

    Args:
        frame: The frame of `Temperatures`.

    Returns:
        Lines are means over the seeds at the step where that is lowest, bands run from the lowest to
        the highest seed. A dotted line marks 8 where a drift prunes. Several γ are each divided by their
        lowest mean.
    """
    present = set(frame["case"])
    panels = {
        title: [name for name in names if name in present] for title, names in _PANELS.items()
    }
    panels = {title: names for title, names in panels.items() if names}
    across = min(3, len(panels))
    down = -(-len(panels) // across)
    with style.styled():
        figure = style.make_figure(style.PAGE_WIDTH, 2.0 * down)
        grid = figure.subplots(down, across, squeeze=False)
        for place, axes in enumerate(grid.flat):
            if place >= len(panels):
                axes.set_visible(False)
                continue
            title = list(panels)[place]
            _draw_panel(axes, frame[frame["case"].isin(panels[title])])
            axes.set_title(title, fontsize=7)
            axes.set_ylabel(_UNITS.get(panels[title][0], "objective, best step"))
            axes.set_xlabel("$t_s$")
    return figure


_PANELS: Mapping[str, Sequence[str]] = {
    "digits": ("digits", "digits-w", "digits-price"),
    "MNIST": ("mnist",),
    "network": ("mlp", "mlp-absolute"),
    "quadratic problems": ("quadratic", "quadratic-exactly"),
    "digits, several $t_l$": ("digits-t_l",),
    r"digits, several $\gamma$": ("digits-penalty",),
}
_UNITS = {
    "mlp": "training loss, best step",
    "quadratic": "gap, best step",
    "digits-penalty": "objective / lowest",
}
_LOOKS = ("ap", "random", "imp", "snip")  # colours and dashes of the style
_LABELS = {
    "digits": "one step size",
    "digits-w": "step of $w$ alone",
    "digits-price": "price itself",
    "mnist": "one step size",
    "mlp": "relative step",
    "mlp-absolute": "absolute step",
    "quadratic": "any number",
    "quadratic-exactly": "10 of 40",
}


def _draw_panel(axes: "Axes", rows: "pd.DataFrame") -> None:
    groups = list(rows.groupby(["case", "t_l", "penalty"], sort=False))
    for look, ((case, t_l, penalty), part) in zip(_LOOKS, groups, strict=False):
        tuned = tune(part)
        label = _LABELS.get(str(case))
        if case == "digits-t_l":
            label = f"$t_l$ = {t_l:,g}"
        elif case == "digits-penalty":
            label = rf"$\gamma$ = {penalty:g}"
        unit = tuned["objective"].min() if case == "digits-penalty" else 1.0
        colour, x = style.COLOURS[look], tuned.index.to_numpy()
        low, mean, high = (tuned[name] / unit for name in ("low", "objective", "high"))
        axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(x, mean, "o", color=colour, linestyle=style.DASHES[look], label=label)
    style.make_logarithmic(axes)
    if (rows["penalty"] > 0).any():
        axes.axvline(_RULE, color="0.5", linewidth=0.6, linestyle=":", zorder=0)
    if set(rows["t_s"]) <= set(_FINE):
        axes.set_yscale("linear")  # a narrow range
        axes.set_xticks(_FINE, [f"{t_s:g}" for t_s in _FINE])
        axes.minorticks_off()
    axes.legend(fontsize=6, frameon=True, facecolor="white", edgecolor="none", framealpha=1)


def _ratios(t_s: Sequence[float], t_l: float) -> list[str]:
    """Return t_l/t_s where it is a power of ten, and nothing elsewhere: there is little room."""
    exponents = [math.log10(t_l / value) for value in t_s]
    return [
        f"{10 ** round(e):,}" if math.isclose(e, round(e), abs_tol=1e-9) else "" for e in exponents
    ]


def _is_map(case: Case) -> bool:
    return len(case.t_l) == len(case.penalties) == 1


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
