"""One look for all figures: readable at column width, safe for colour-blind eyes and grey print.

Figures are made without pyplot, so that no window, no backend and no setting of the user's own
session is touched.
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from aprune.files import writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN_WIDTH = 3.5  # inches: one column of a two-column page
PAGE_WIDTH = 7.0

# Okabe and Ito's palette. A method keeps its colour in every figure.
COLOURS: Mapping[str, str] = MappingProxyType(
    {
        "ap": "#0072B2",
        "random": "#E69F00",
        "imp": "#D55E00",
        "dense": "#4D4D4D",
        "snip": "#009E73",
        "grasp": "#CC79A7",
        "synflow": "#56B4E9",
        "magnitude": "#8C6D31",
        "edge_popup": "#7A5195",
        "continuous": "#F0A3C4",
        "erk": "#B8B000",
        "set": "#6E8B3D",
        "rigl": "#003F5C",
    }
)

OTHER = "#999999"
"""For methods without a colour of their own."""

# Dashes tell methods apart where colour does not.
DASHES: Mapping[str, str | tuple[int, tuple[float, ...]]] = MappingProxyType(
    {
        "ap": "-",
        "random": "--",
        "imp": "-.",
        "dense": ":",
        "snip": (0, (5, 1, 1, 1, 1, 1)),
        "grasp": (0, (1, 1)),
        "synflow": (0, (6, 2)),
        "magnitude": (0, (3, 1, 1, 1)),
        "edge_popup": (0, (8, 2, 2, 2)),
        "continuous": (0, (10, 2)),
        "erk": (0, (2, 2)),
        "set": (0, (4, 1, 1, 1, 1, 1, 1, 1)),
        "rigl": (0, (10, 2, 1, 2)),
    }
)

# Variants of a method have its colour, and a mark of their own.
_MARKERS: Mapping[str, str] = MappingProxyType(
    {
        "": "o",
        "reshuffled": "o",
        "bare": "X",
        "normal": "D",
        "he": "s",
        "he_density": "^",
        "he_fan_in": "v",
        "rewound": "<",
        "fine_tuned": "P",
    }
)


def look_of(method: str) -> dict[str, Any]:
    """Return how the line of a method, or of a variant such as `ap, bare`, looks.

    Example:
        >>> look_of("ap, reshuffled")["color"] == COLOURS["ap"]
        True
    """
    base, _, variant = method.partition(", ")
    colour = COLOURS.get(base, OTHER)
    return {
        "color": colour,
        "linestyle": DASHES.get(base, "-"),
        "marker": _MARKERS.get(variant, "o"),
        "alpha": 0.5 if variant else 1.0,
        "markerfacecolor": "white" if variant else colour,
    }


_SETTINGS: Mapping[str, Any] = MappingProxyType(
    {
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same on every machine
        "font.size": 8,
        "axes.labelsize": 8,
        "axes.titlesize": 8,
        "legend.fontsize": 7,
        "xtick.labelsize": 7,
        "ytick.labelsize": 7,
        "axes.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "grid.color": "#E5E5E5",
        "grid.linewidth": 0.5,
        "lines.linewidth": 1.4,
        "lines.markersize": 3.5,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "xtick.minor.width": 0.4,
        "ytick.minor.width": 0.4,
        "legend.frameon": False,
        "legend.handlelength": 2.2,
        "figure.constrained_layout.use": True,
        "figure.dpi": 100,
        "savefig.bbox": None,
        "pdf.fonttype": 42,  # TrueType: text stays text, and publishers accept it
        "pdf.compression": 6,
    }
)


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Give matplotlib this look inside the block; afterwards it is as it was.

    Everything of a figure is made inside one such block.

    Example:
        >>> with styled():
        ...     figure = make_figure()
        ...     line = figure.gca().plot([0, 1], [0, 1], color=COLOURS["ap"])
    """
    import matplotlib

    settings: Any = dict(_SETTINGS)  # releases of matplotlib disagree on the type of its keys
    with matplotlib.rc_context(settings):
        yield


def make_figure(width: float = COLUMN_WIDTH, height: float | None = None) -> "Figure":
    """Return an empty figure of `width` × `height` inches; call it inside `styled`.

    Args:
        width: `COLUMN_WIDTH`, `PAGE_WIDTH` or any other.
        height: Golden section of the width by default.

    Returns:
        A figure that pyplot does not know of.

    Example:
        >>> with styled():
        ...     figure = make_figure(height=2.0)
        >>> figure.get_size_inches().tolist()
        [3.5, 2.0]
    """
    from matplotlib.figure import Figure

    return Figure(figsize=(width, width / 1.618 if height is None else height))


def make_logarithmic(axes: "Axes") -> None:
    """Make both axes logarithmic, with plain numbers (0.5, 1, 100), more of them upwards.

    Example:
        >>> with styled():
        ...     axes = make_figure().add_subplot()
        ...     make_logarithmic(axes)
        >>> axes.get_xscale(), axes.get_yscale()
        ('log', 'log')
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axis.set_minor_formatter(NullFormatter())


def add_legend(figure: "Figure", handles: list[Any], labels: list[str], *, most: int) -> None:
    """Put a legend below the axes, in as few rows as there is room for, with at most `most` columns.

    Example:
        >>> with styled():
        ...     figure = make_figure()
        ...     line = figure.add_subplot().plot([0, 1])
        ...     add_legend(figure, 3 * line, ["a name that takes the room of two"] * 3, most=4)
        >>> figure.legends[0]._ncols
        1
    """
    number = len(handles)
    for columns in range(most, 0, -1):
        rows = -(-number // columns)
        even = -(-number // rows)  # no row is longer than so many rows need
        legend = figure.legend(handles, labels, loc="outside lower center", ncols=even)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def save(figure: "Figure", path: Path | str) -> tuple[Path, Path]:
    """Write a figure as PNG (200 dpi) and PDF; the same figure gives the same bytes.

    Args:
        figure: What to write.
        path: Where to, without a suffix.

    Returns:
        Paths of the PNG and of the PDF.

    Example:
        >>> import tempfile
        >>> with styled():
        ...     png, pdf = save(make_figure(), Path(tempfile.mkdtemp()) / "empty-0.5")
        >>> png.name, pdf.name
        ('empty-0.5.png', 'empty-0.5.pdf')
    """
    path = Path(path)
    png, pdf = (path.with_name(f"{path.name}.{suffix}") for suffix in ("png", "pdf"))
    with styled():
        with writing(png) as temporary:
            figure.savefig(temporary, format="png", dpi=200, metadata={"Software": None})
        with writing(pdf) as temporary:
            # No date and no version: files differ only where what they show differs.
            nobody = {"CreationDate": None, "Creator": None, "Producer": None}
            figure.savefig(temporary, format="pdf", metadata=nobody)
    return png, pdf
