"""`aprune bound`: what Theorem 1 says, as printed and with its proof set right."""

import math
from typing import Annotated

import typer

from aprune.cli import option
from aprune.cli.output import print_json, print_table, say
from aprune.errors import SettingError

EXAMPLE = "Example: aprune bound --t-l 100 --t-s 10 --steps 10000 --c 0.1 --g 1 --m 0.5 --d 1000"


def bound(
    t_l: Annotated[float, typer.Option(metavar="X", help="Inverse temperature, forward.")],
    t_s: Annotated[float, typer.Option(metavar="X", help="Inverse temperature, backward.")],
    steps: Annotated[int, typer.Option(metavar="N", help="T, the steps.")],
    c: Annotated[float, typer.Option(metavar="X", help="Of the step sizes c/√i.")],
    g: Annotated[float, typer.Option(metavar="X", help="G, the largest gradient of the mask.")],
    m: Annotated[float, typer.Option(metavar="X", help="M, the largest |w|.")],
    d: Annotated[
        float | None,
        typer.Option(metavar="X", help="D, the connections; or any bound on ‖v − v*‖²."),
    ] = None,
    json: option.Json = False,
) -> None:
    """Say how far from the optimum Theorem 1 allows a search to be.

    As it is printed, for the last step; with its proof set right, for the average of all steps, if the
    error of the warm gradient has mean zero; and whatever its mean. The last two need --d. A search
    with --set record=true measures G and M.
    """
    from aprune.maths.bound import Theorem, g_max

    if d is not None and not 0 < d < math.inf:
        raise SettingError(f"got {d} for --d: expected a number above 0")
    theorem = Theorem(t_l=t_l, t_s=t_s, c=c, g=g, m=m, r2=0.0 if d is None else d)
    numbers = {
        "g_max_l": g_max(t_l, m),
        "g_max_s": g_max(t_s, m),
        "C": theorem.constant,
        "printed": theorem.printed(steps),
        "corrected": None if d is None else theorem.corrected(steps),
        "unconditional": None if d is None else theorem.unconditional(steps),
    }
    if json:
        given = {"t_l": t_l, "t_s": t_s, "steps": steps, "c": c, "g": g, "m": m, "d": d}
        print_json({**given, **numbers})
        return
    print_table(
        ("quantity", "value", "meaning"),
        [
            (name, "–" if numbers[name] is None else f"{numbers[name]:.6g}", meaning)
            for name, meaning in _MEANINGS.items()
        ],
        left=("quantity", "meaning"),
    )
    if d is None:
        say("Give --d for the bounds that depend on how far the start may be from the optimum.")


_MEANINGS = {
    "g_max_l": "smallest slope of σ at t_l, where |w| ≤ M",
    "g_max_s": "the same at t_s",
    "C": "largest ‖r‖²/G², r being the error of the warm gradient",
    "printed": "the bound as printed, for the last step",
    "corrected": "its proof set right, for the average of all steps, if r has mean zero",
    "unconditional": "the same whatever the mean of r",
}
