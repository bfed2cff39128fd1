"""All kinds of files that a stranger can give to aprune.

To add a kind, write a subclass of `Target` and put it into `TARGETS`: nothing else has to know of it.
"""

import json
import random
from functools import cached_property
from pathlib import Path
from typing import Any

from aprune.cli import option
from aprune.cli.methods import make_method, make_methods
from aprune.methods import METHODS
from fuzz import mutate
from fuzz.data import Cache, EncodedImage, ImageFolder, ParquetData
from fuzz.stored import ArchitectureFile, ModelFile, Rows, StoreFolder
from fuzz.target import LOADED, Case, Target
from fuzz.under_way import Checkpoints


class Settings(Target):
    name = "settings"

    @cached_property
    def good(self) -> Case:
        return {"x": json.dumps(["imp", "rounds=3", "5,6", "0.5,0.9", "20", "0.1"]).encode()}

    def damage(self, rng: random.Random) -> Case:
        word = self._word
        given = ["imp", "rounds=3", "5,6", "0.5,0.9", "20", "0.1"]
        place = rng.randrange(len(given) + 2)
        if place >= 2:
            given[min(place, len(given) - 1)] = word(rng)
        else:
            given[0] = rng.choice((*METHODS, *METHODS, word(rng)))
            own = METHODS[given[0]].__dataclass_fields__ if given[0] in METHODS else ()
            equals = rng.choice(("=", "=", "=", ""))
            given[1] = f"{rng.choice((*own, *own, word(rng)))}{equals}{word(rng)}"
        return {"x": json.dumps(given).encode()}

    @staticmethod
    def _word(rng: random.Random) -> str:
        words = (*mutate.NAMES, *mutate.NUMBERS, "none", "true", "0.5", "3", "nan", "1e-320", "1_0")
        chosen = str(rng.choice(words))
        return f"{chosen},{rng.choice(words)}" if rng.random() < 0.3 else chosen

    def load(self, folder: Path) -> str:
        method, assignment, classes, sparsities, steps, lr = json.loads((folder / "x").read_text())
        made = make_method(method, [assignment])
        make_methods([method], [f"{method}.{assignment}"])
        option.read_classes(classes)
        option.read_sparsities(sparsities)
        option.check_recipe(steps=_number(int, steps), lr=_number(float, lr))
        repr(made)
        return LOADED


def _number(kind: Any, text: str) -> Any:
    """Read a number as Typer does, which refuses by itself what is none."""
    try:
        return kind(text)
    except ValueError:
        return None


TARGETS: tuple[Target, ...] = (
    ArchitectureFile(),
    ModelFile(),
    StoreFolder(),
    Rows(),
    Checkpoints(),
    ParquetData(),
    EncodedImage(),
    ImageFolder(),
    Cache(),
    Settings(),
)
