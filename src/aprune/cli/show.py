"""`aprune show`: what an architecture looks like, and what it shares with another."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aprune.cli import option
from aprune.cli.output import draw_bar, print_json, print_table, say

if TYPE_CHECKING:
    from aprune.architecture import Architecture, Overlap

EXAMPLE = "Example: aprune show archs/mlp-digits-ap-0.9-seed0.arch.safetensors"


def show(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="An architecture, as find wrote it.")
    ],
    other: Annotated[
        Path | None,
        typer.Argument(metavar="OTHER", help="Another of the same parent: what do they share?"),
    ] = None,
    json: option.Json = False,
) -> None:
    """Show what is in an architecture.

    Of each layer: how many connections are kept; their density, with a bar relative to the densest
    layer; how many units no connection leads to, and how many inputs none leads away from. Then
    where it all comes from.
    """
    from aprune.architecture import Architecture

    architecture = Architecture.load(file)
    overlap = None if other is None else architecture.overlap(Architecture.load(other))
    if json:
        print_json(_describe(architecture, file, overlap))
        return
    _print_layers(architecture)
    say(
        f"{architecture.kept:,} of {architecture.total:,} connections in all, sparsity"
        f" {architecture.sparsity:.6g}; "
        + (
            f"empty layers: {', '.join(architecture.empty_layers())}."
            if architecture.empty_layers()
            else "no layer is empty."
        )
    )
    for line in _tell_origin(architecture.provenance):
        say(line)
    if overlap is not None:
        say(
            f"It shares {overlap.shared:,} connections with {other}: {overlap.of_first:.1%} of its"
            f" own, {overlap.of_second:.1%} of the other's ({overlap.expected_by_chance:,.0f} are to"
            " be expected by chance at these layer densities)."
        )


def _print_layers(architecture: "Architecture") -> None:
    layers = architecture.layers()
    densest = max(layer.density for layer in layers) or 1.0
    print_table(
        ("layer", "shape", "kept", "density", " ", "no input", "no output"),
        [
            (
                layer.name,
                "×".join(map(str, layer.shape)),
                f"{layer.kept:,}",
                f"{layer.density:.4f}",
                draw_bar(layer.density / densest, width=8),
                f"{layer.units_without_input:,}",
                f"{layer.inputs_without_output:,}",
            )
            for layer in layers
        ],
        left=("layer", " "),
    )


def _tell_origin(provenance: Mapping[str, Any]) -> list[str]:
    """Tell where it comes from, whatever a file of somebody else's may hold there."""
    return [
        f"{key}: {', '.join(_pairs(value)) if isinstance(value, dict) else _short(value)}"
        for key, value in provenance.items()
        if value is not None
    ]


def _pairs(value: Mapping[str, Any]) -> list[str]:
    return [f"{key} {_short(entry)}" for key, entry in value.items() if entry is not None]


def _short(value: object) -> str:
    """Leave out the digits of a number that say nothing."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _describe(
    architecture: "Architecture", file: Path, overlap: "Overlap | None"
) -> dict[str, Any]:
    return {
        "file": str(file),
        "sparsity": architecture.sparsity,
        "connections": architecture.kept,
        "of": architecture.total,
        "empty_layers": list(architecture.empty_layers()),
        "layers": [{**asdict(layer), "density": layer.density} for layer in architecture.layers()],
        "fingerprint": architecture.fingerprint,
        "provenance": dict(architecture.provenance),
        "overlap": None if overlap is None else asdict(overlap),
    }
