"""The paper's experiments, from raw data to a page of verdicts; `figure1` holds the first.

Architectures are searched on one task and retrained on another that has few images: AP, random
connections, IMP and the dense parent, at seven sparsities, five times over. The seed of a repetition
draws classes, images, initial weights and search. Figure 2 stays in the domain of the search, on images
that it has not seen; figures 3 to 7 go to ten new classes with ever fewer images. Table 1 is figure 5
again, with the connections of each layer in random places.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from aprune.errors import FileError, SettingError
from aprune.experiments import figure1, page, report, style
from aprune.experiments.accuracy import draw_accuracy
from aprune.experiments.claims import judge, judge_convergence
from aprune.experiments.comparison import compare
from aprune.experiments.densities import draw_densities
from aprune.experiments.launch import Launcher
from aprune.experiments.plan import Comparison, Protocol, Scale, TaskChoice
from aprune.experiments.rows import read_rows as read_file
from aprune.experiments.store import Store
from aprune.files import check_writable, writing
from aprune.progress import Clock

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

SPARSITIES = (0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99)
TABLE1 = "figure5"
"""The figure whose architectures table 1 reshuffles."""
RATES_OF = {"figure4": "figure5", "figure6": "figure7"}
"""Figures that take the learning rates of another, whose images are a half of theirs."""

Budget = Literal["paper", "quick"]


@dataclass(frozen=True)
class Setting:
    """Where a reproduction takes place.

    Attributes:
        search: The task of the search.
        new: The new task of each figure.
        search_steps: Of a search; None for the usual ones.
        retrain_steps: Of a retraining, likewise.
    """

    search: TaskChoice
    new: Mapping[str, TaskChoice]
    search_steps: int | None = None
    retrain_steps: int | None = None


SETTINGS: Mapping[Scale, Setting] = {
    "paper": Setting(
        TaskChoice("cifar10"),
        {
            "figure2": TaskChoice("cifar10", images=5_000, split="test"),
            **{
                f"figure{number}": TaskChoice("cifar100", classes=10, images=images)
                for number, images in ((3, 5_000), (4, 1_000), (5, 500), (6, 100), (7, 50))
            },
        },
    ),
    # for a CPU: the same experiment on 8 × 8 digits, in minutes
    "small": Setting(
        TaskChoice("digits", classes=(0, 1, 2, 3, 4)),
        {
            "figure2": TaskChoice("digits", classes=(0, 1, 2, 3, 4), images=150, split="test"),
            **{
                f"figure{number}": TaskChoice("digits", classes=(5, 6, 7, 8, 9), images=images)
                for number, images in ((3, 500), (4, 200), (5, 100), (6, 50), (7, 25))
            },
        },
        search_steps=500,
        retrain_steps=200,
    ),
}
FIGURES = tuple(SETTINGS["paper"].new)


def plan(
    figure: str,
    parent: str,
    *,
    protocol: Protocol = "fair",
    scale: Scale = "paper",
    budget: Budget = "paper",
    seeds: int | None = None,
    sparsities: Sequence[float] | None = None,
    images: int | None = None,
) -> Comparison:
    """Return what a figure compares.

    Args:
        figure: One of `FIGURES`.
        parent: Name of the parent.
        protocol: `fair` or `paper` (see `Comparison`).
        scale: `paper`, or `small` for a CPU.
        budget: `paper`, or `quick` for a first look: two seeds, three sparsities, fewer steps.
        seeds: Repetitions, if not those of the budget.
        sparsities: Likewise.
        images: Images of the new task, if not those of the figure.

    Example:
        >>> plan("figure5", "vgg19", seeds=2).seeds
        (0, 1)
    """
    if figure not in FIGURES:
        raise SettingError(f"unknown figure {figure!r}: expected one of {', '.join(FIGURES)}")
    setting, quick = SETTINGS[scale], budget == "quick"
    new = setting.new[figure]
    repetitions = tuple(range(seeds if seeds is not None else 2 if quick else 5))
    return Comparison(
        parent=parent,
        search_task=setting.search,
        new_task=new if images is None else replace(new, images=images),
        methods=("ap", "random", "imp", "dense"),
        sparsities=tuple(sparsities or ((0.5, 0.9, 0.99) if quick else SPARSITIES)),
        seeds=repetitions,
        search_steps=_part(setting.search_steps, quick, 500),
        retrain_steps=_part(setting.retrain_steps, quick, 400),
        tuning_task=setting.new[RATES_OF[figure]] if figure in RATES_OF and not images else None,
        tuning_seeds=repetitions[:1],
        also=(("ap", "reshuffled"), ("imp", "reshuffled")) if figure == TABLE1 else (),
        protocol=protocol,
        figure=figure,
    )


def _part(steps: int | None, quick: bool, otherwise: int) -> int | None:
    if not quick:
        return steps
    return otherwise if steps is None else max(1, steps // 4)


def reproduce(
    comparisons: Sequence[Comparison],
    out: Path | str,
    *,
    device: str | torch.device = "auto",
    progress: bool | None = None,
    time_limit: float | None = None,
    fresh: bool = False,
    launcher: Launcher | None = None,
) -> "pd.DataFrame":
    """Do figures, or what is left of them; the same call resumes after an interruption.

    Every run is kept in one store under `out`, so that figures share their searches. Each figure gets a
    folder `PARENT-PROTOCOL/FIGURE` with rows, table and figure.

    Args:
        comparisons: What `plan` gave, of one parent and protocol.
        out: Folder for everything.
        device: `auto`, `cpu` or `cuda`.
        progress: Whether to show a bar for each figure; None shows it on a terminal.
        time_limit: Seconds after which nothing more is started.
        fresh: Whether to do again what is there.
        launcher: Where runs are done; None does them here, on `device`.

    Returns:
        The rows of all figures; `attrs` as those of `compare`.
    """
    import pandas as pd

    out = check_writable(out)
    store, clock, frames = Store(out, fresh=fresh), Clock(time_limit), []
    for comparison in comparisons:
        frames.append(
            compare(
                comparison,
                _folder(out, comparison.parent, comparison.protocol) / comparison.figure,
                store=store,
                device=device,
                progress=progress,
                time_limit=clock.left,
                launcher=launcher,
            )
        )
    frame = pd.concat(frames, ignore_index=True)
    frame.attrs["complete"] = all(part.attrs["complete"] for part in frames)
    frame.attrs["damaged"] = [str(path) for path in store.damaged]
    frame.attrs["dead"] = sum(part.attrs["dead"] for part in frames)
    return frame


def _folder(out: Path, parent: str, protocol: str) -> Path:
    return out / f"{parent.replace(':', '_')}-{protocol}"


def reproduce_figure1(out: Path | str, *, fresh: bool = False) -> None:
    """Do figure 1 on digits, unless it lies under `out` already; `fresh` does it again."""
    if fresh or read_convergence(out) is None:
        figure1.figure1(out=out)


def read_rows(folder: Path | str) -> "pd.DataFrame":
    """Read the rows of all figures under `folder`.

    Raises:
        FileError: There are none, or a file of rows is damaged; its name is in the message.
    """
    import pandas as pd

    wanted = {"figure", "parent", "protocol", "reshuffled"}
    frames = [
        rows[rows["figure"].isin(FIGURES)]
        for rows in _read_all(folder)
        if wanted <= set(rows.columns)
    ]
    if not frames or not sum(map(len, frames)):
        raise FileError(
            f"there are no rows of the paper's figures under {folder}: expected parquet files as"
            " `aprune reproduce` writes them"
        )
    return pd.concat(frames, ignore_index=True)


def read_convergence(folder: Path | str) -> "pd.DataFrame | None":
    """Read the numbers of figure 1 on digits that lie under `folder`, if there are any."""
    for rows in _read_all(folder):
        if {"data", "t_s", "objective"} <= set(rows.columns) and (rows["data"] == "digits").all():
            return rows
    return None


def read_densities(folder: Path | str) -> "pd.DataFrame | None":
    """Read how dense the layers of all figures under `folder` are, if that was written down."""
    import pandas as pd

    frames = [
        rows[rows["figure"].isin(FIGURES)]
        for rows in _read_all(folder)
        if {"figure", "parent", "protocol", "layer", "density"} <= set(rows.columns)
    ]
    if not frames or not sum(map(len, frames)):
        return None
    return pd.concat(frames, ignore_index=True)


def _read_all(folder: Path | str) -> "Iterator[pd.DataFrame]":
    for path in sorted(
        Path(folder).rglob("[!.]*.parquet")
    ):  # not what a kill has left half-written
        yield read_file(path)


def redraw(
    frame: "pd.DataFrame",
    out: Path | str,
    convergence: "pd.DataFrame | None" = None,
    densities: "pd.DataFrame | None" = None,
) -> list[Path]:
    """Draw every figure of the rows, and write its table and a page with the verdicts.

    Nothing is trained. Of several parents and protocols one more page has all verdicts side by side.

    Args:
        frame: Rows of `reproduce`, of any parents and protocols.
        out: Folder; each parent and protocol gets one of its own in it.
        convergence: The frame of `figure1`, to be judged on the pages and drawn again.
        densities: What `read_densities` returned, to be drawn.

    Returns:
        The files written.
    """
    out = check_writable(out)
    written: list[Path] = []
    first = []
    if convergence is not None:
        written += style.save(figure1.draw(convergence), out / "figure1-digits")
        first = [judge_convergence(convergence)]
    pages = {}
    for (parent, protocol), part in frame.groupby(["parent", "protocol"], sort=False):
        folder = _folder(out, str(parent), str(protocol))
        pages[folder.name] = [*first, *judge(part)]
        cells = []
        for name, rows in part.groupby("figure"):
            figure, plain = str(name), rows[~rows["reshuffled"]]
            if plain["accuracy"].notna().any():
                written += style.save(draw_accuracy(plain), folder / figure)
            written.append(_write(folder / f"{figure}.md", report.write_table(rows)))
            cells.append(f"[{figure.replace('figure', 'figure ')}]({figure}.md)")
        table = _rows_of_table1(part)
        if table["reshuffled"].any() and table["accuracy"].notna().any():
            written += style.save(draw_table1(part), folder / "table1")
        title = f"# {parent}, {protocol} protocol: what becomes of the paper's claims\n\n"
        text = page.write_page(pages[folder.name], page.table1(part))
        text += f"\nEvery cell, with the interval of AP − method: {', '.join(cells)}.\n"
        layers = _part_of(densities, str(parent), str(protocol))
        if layers is not None:
            written += style.save(draw_densities(layers), folder / "densities")
            which = str(layers["figure"].iloc[0]).replace("figure", "figure ")
            text += (
                f"\nHow many connections each layer of {which} keeps: [densities](densities.png).\n"
            )
        written.append(_write(folder / "claims.md", title + text))
    if len(pages) > 1:
        written.append(_write(out / "claims.md", page.write_overview(pages)))
    return written


def _part_of(densities: "pd.DataFrame | None", parent: str, protocol: str) -> "pd.DataFrame | None":
    """Return the densities of one figure: those of others may come from shorter searches."""
    if densities is None:
        return None
    part = densities[(densities["parent"] == parent) & (densities["protocol"] == protocol)]
    if part.empty:
        return None
    figures = sorted(part["figure"].unique())
    return part[part["figure"] == (TABLE1 if TABLE1 in figures else figures[0])]


def _write(path: Path, text: str) -> Path:
    with writing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def draw_table1(frame: "pd.DataFrame") -> "Figure":
    """Draw architectures as they were found and reshuffled, with the paper's printed values."""
    rows = _rows_of_table1(frame)
    figure = draw_accuracy(rows)
    if (rows["parent"] == "vgg19").all() and (rows["images"] == 500).all():
        with style.styled():
            axes = figure.axes[0]
            handles, labels = axes.get_legend_handles_labels()
            for method, printed in page.PRINTED.items():
                places, values = [1 - sparsity for sparsity in printed], list(printed.values())
                look = style.look_of(f"{method}, reshuffled") | {"marker": "x", "linestyle": ""}
                handles += axes.plot(places, values, zorder=3, **look)
                labels.append(f"{report.title_of(method)}, reshuffled, in the paper")
            figure.legends[0].remove()
            style.add_legend(figure, handles, labels, most=4)
    return figure


def _rows_of_table1(frame: "pd.DataFrame") -> "pd.DataFrame":
    return frame[(frame["figure"] == TABLE1) & frame["method"].isin(page.PRINTED)]
