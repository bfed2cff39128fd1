"""The function to be minimised, for many problems and many points of each at once."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from aprune.errors import SettingError

_AT_ONCE = 2**20  # numbers of v that are evaluated at a time


class Objective:
    """f(v), or f(v, θ), plus a price for every one, at points [P, R, D] of P problems.

    Attributes:
        evaluations: How often f was computed, with or without its gradient.
    """

    def __init__(
        self,
        f: Callable[..., Tensor],
        data: Sequence[Tensor],
        *,
        penalty: float,
        fit: Callable[..., Tensor] | None,
        sample: Callable[[int], Sequence[Tensor]] | None,
    ) -> None:
        self._f, self._data, self._fit = f, tuple(data), fit
        self._sample, self._penalty = sample, penalty
        self.evaluations = 0

    def fitted(self, v: Tensor, theta: Tensor | None) -> Tensor | None:
        """Return the θ that goes with v: the best one if somebody knows it."""
        if self._fit is None:
            return theta
        with torch.no_grad():
            fitted: Tensor = self._each(self._fit, (v,), self._data)
        return fitted

    def values(self, v: Tensor, theta: Tensor | None = None) -> Tensor:
        """Return f plus the price at each point [P, R], some at a time where there are many."""
        self.evaluations += v.shape[0] * v.shape[1]
        rows = max(1, _AT_ONCE // (v.shape[0] * v.shape[-1]))
        thetas = [None] * len(v.split(rows, 1)) if theta is None else theta.split(rows, 1)
        with torch.no_grad():
            parts = [
                self._each(self._priced, _both(part, self.fitted(part, own)), self._data)
                for part, own in zip(v.split(rows, 1), thetas, strict=True)
            ]
        return torch.cat(parts, 1)

    def slopes(self, v: Tensor, theta: Tensor | None, step: int) -> tuple[Tensor, Tensor | None]:
        """Return the gradients to v and to θ, on the data of a step if there are any."""
        joint = theta is not None
        theta = theta if joint else self.fitted(v, None)
        self.evaluations += v.shape[0] * v.shape[1]
        data = self._data if self._sample is None else tuple(self._sample(step))
        function = grad_and_value(self._priced, argnums=(0, 1) if joint else 0)
        slopes, _ = self._each(function, _both(v, theta), data)
        return slopes if joint else (slopes, None)

    def of(self, problems: Tensor) -> "Objective":
        """Return that of some of the problems."""
        data = [tensor[problems] for tensor in self._data]
        return Objective(self._f, data, penalty=self._penalty, fit=self._fit, sample=None)

    def _priced(self, v: Tensor, *rest: Tensor) -> Tensor:
        value = self._f(v, *rest)
        if value.dim():
            raise SettingError(
                f"f gave a tensor of shape {tuple(value.shape)}: expected one number for one v"
            )
        return value + self._penalty * v.sum()

    def _each(self, function: Callable[..., Any], points: Sequence[Tensor], data: Any) -> Any:
        """Call a function for every point of every problem."""
        inner = vmap(function, in_dims=(0,) * len(points) + (None,) * len(data))
        outer = vmap(inner, in_dims=(0,) * (len(points) + len(data)))
        try:
            return outer(*points, *data)
        except RuntimeError as error:
            if "vmap" in str(error) or "data-dependent" in str(error):
                reason = str(error).splitlines()[0]
                raise SettingError(
                    f"f cannot be computed for many points at once: {reason}; write it with tensor"
                    " operations alone, without `if`, `.item()` or changes in place"
                ) from error
            raise


def _both(v: Tensor, theta: Tensor | None) -> tuple[Tensor, ...]:
    return (v,) if theta is None else (v, theta)
