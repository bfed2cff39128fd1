"""Training, evaluation and where they run."""

from aprune.training.device import choose_device
from aprune.training.engine import EngineName, choose_engine, no_more_than_captured
from aprune.training.evaluate import evaluate, predict
from aprune.training.fit import Curve, fit
from aprune.training.hook import Hook, KeepMasked
from aprune.training.masked import fit_masked
from aprune.training.recipe import Recipe, describe_settings

__all__ = [
    "Curve",
    "EngineName",
    "Hook",
    "KeepMasked",
    "Recipe",
    "choose_device",
    "choose_engine",
    "describe_settings",
    "evaluate",
    "fit",
    "fit_masked",
    "no_more_than_captured",
    "predict",
]
