"""How a training step is run: four ways, each with one thing more than the one before.

    eager      as PyTorch does it
    captured   recorded once as a CUDA graph and replayed: one launch in place of hundreds
    fused      and the weights are moved in one pass of Triton (see `fused`)
    compiled   and the network is compiled by `torch.compile`

All do the same steps with the same random numbers; what differs is rounding. Compiled code is kept on
disk, and networks of one shape share it.
"""

import os
from collections.abc import Callable, Hashable
from typing import Literal, get_args

import torch
from torch import nn

from aprune.errors import SettingError
from aprune.files import cache_folder
from aprune.training.fused import obstacle
from aprune.training.ranks import current_team

Level = Literal["eager", "captured", "fused", "compiled"]
EngineName = Literal["auto", "eager", "captured", "fused", "compiled"]

# Steps before the recording: state that is made lazily (momenta, workspaces) comes into being.
_EAGER_STEPS = 3
# Shapes that networks of one class may be compiled for; beyond, PyTorch would not compile at all.
_SHAPES = 64
_WORTH_COMPILING = 20_000  # steps that save what compiling costs


def choose_engine(asked: EngineName, model: nn.Module, steps: int) -> Level:
    """Return the engine of that name; `auto` is the fastest for so many steps of that network.

    Raises:
        SettingError: There is no such engine, or the network cannot be trained with it.

    Example:
        >>> choose_engine("auto", nn.Linear(2, 2), steps=100)
        'eager'
    """
    if asked not in get_args(EngineName):
        raise SettingError(
            f"unknown engine {asked!r}: expected one of {', '.join(get_args(EngineName))}"
        )
    device, team = next(model.parameters()).device, current_team()
    if not team.alone and asked in ("auto", "eager"):
        return "eager"
    if asked == "auto":
        if device.type != "cuda":
            return "eager"
        if obstacle(model) is not None:
            return "captured"
        return "compiled" if steps >= _WORTH_COMPILING else "fused"
    against = None
    if not team.alone:
        against = f"{team.size} processes train it together"
    elif asked in ("captured", "compiled") and device.type != "cuda":
        against = f"its weights are on {device}, not on a GPU"
    elif asked in ("fused", "compiled"):
        against = obstacle(model)
    if against is not None:
        raise SettingError(
            f"the engine {asked!r} cannot train this network: {against}; use auto or eager"
        )
    return asked


def no_more_than_captured(asked: EngineName) -> Level:
    """Return the engine for a training whose weights are not what its layers see.

    Example:
        >>> no_more_than_captured("auto")
        'captured'
    """
    return "eager" if asked == "eager" else "captured"


def compile_network(model: nn.Module) -> nn.Module:
    """Compile `model` for the shapes that it will see, with random numbers as in eager PyTorch."""
    if (cache := cache_folder()) is not None:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache / "compiled"))
    dynamo = torch._dynamo.config
    dynamo.recompile_limit = max(_SHAPES, dynamo.recompile_limit)
    return torch.compile(model, dynamic=False, options={"fallback_random": True})  # type: ignore[return-value]


class Engine:
    """Repeats `step`, which reads and writes tensors that stay where they are.

    On a GPU the first steps of every phase run eagerly, then the very same step is recorded once and
    replayed, unless nothing is to be captured. Between recording and replaying it calls `settle`.

    Example:
        >>> counter = torch.zeros(())
        >>> engine = Engine(lambda: counter.add_(1), torch.device("cpu"))
        >>> for _ in range(3):
        ...     engine.run()
        >>> counter.item()
        3.0
    """

    def __init__(
        self,
        step: Callable[[], object],
        device: torch.device,
        *,
        captures: bool = True,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        self._step, self._settle = step, settle
        self._device, self._captures = device, captures and device.type == "cuda"
        self._phase: Hashable = None
        self._done = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = torch.cuda.Stream(device) if self._captures else None

    def run(self, phase: Hashable = None) -> None:
        """Do one step; a new `phase` says that the step does other things than before."""
        if not self._captures:
            self._step()
            return
        if phase != self._phase:
            self._phase, self._done, self._graph = phase, 0, None
        if self._graph is None and self._done >= _EAGER_STEPS:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=self._stream):
                self._step()
            self._settle()
        if self._graph is not None:
            self._graph.replay()
            return
        assert self._stream is not None
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            self._step()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        self._done += 1
