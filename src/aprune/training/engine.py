"""Runs one step again and again: eagerly, or on a GPU as one captured graph.

A captured step costs one launch instead of hundreds. The result is the same: the first steps of every
phase run eagerly, then the very same step is recorded once and replayed.
"""

from collections.abc import Callable, Hashable

import torch

_EAGER_STEPS = (
    3  # lets lazily made state (momenta, workspaces) come into being before the recording
)


class Engine:
    """Repeats `step`, which reads and writes tensors that stay where they are.

    Example:
        >>> counter = torch.zeros(())
        >>> engine = Engine(lambda: counter.add_(1), torch.device("cpu"))
        >>> for _ in range(3):
        ...     engine.run()
        >>> counter.item()
        3.0
    """

    def __init__(self, step: Callable[[], object], device: torch.device) -> None:
        self._step = step
        self._device, self._captures = device, device.type == "cuda"
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
        if self._graph is not None:
            self._graph.replay()
            return
        assert self._stream is not None
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            self._step()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        self._done += 1
