"""The architecture: which connections of a parent network are there, without their weights."""

from aprune.architecture.core import Architecture
from aprune.architecture.layer import Layer, Overlap

__all__ = ["Architecture", "Layer", "Overlap"]
