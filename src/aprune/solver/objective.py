"""The function to be minimised, for many problems and many points of each at once."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from aprune.errors import SettingError

_AT_ONCE = 2**18  # numbers at a time of each vector that f computes with: more only miss the cache


class Objective:
    """f(v), or f(v, θ), plus a price for every one, at points [P, R, D] of P problems.

    Attributes:
        penalty: The price of a one.
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
        self._sample, self.penalty = sample, penalty
        self.evaluations = 0

    def fitted(self, v: Tensor, theta: Tensor | None) -> Tensor | None:
        """Return the θ that goes with v: the best one if somebody knows it."""
        if self._fit is None:
            return theta
        with torch.no_grad():
            fitted: Tensor = self._each(self._best, (v,), self._data)
        return fitted

    def values(self, v: Tensor, theta: Tensor | None = None) -> Tensor:
        """Return f plus the price at each point [P, R], some at a time where there are many."""
        self.evaluations += v.shape[0] * v.shape[1]
        rows = self._at_once(v)
        thetas = [None] * len(v.split(rows, 1)) if theta is None else theta.split(rows, 1)
        with torch.no_grad():
            parts = [
                self._each(self._priced, _both(part, self.fitted(part, own)), self._data)
                for part, own in zip(v.split(rows, 1), thetas, strict=True)
            ]
        return torch.cat(parts, 1)

    def survey(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return values [P, R] and what each place is worth [P, R, D], to first order.

        Where θ is fitted, that is half the slope: it is exact for squares, since the loss bends by as
        much as the best θ of a new place makes it fall.
        """
        self.evaluations += v.shape[0] * v.shape[1]
        values, worths = [], []
        for part in v.split(self._at_once(v), 1):
            point, theta = part.detach().requires_grad_(), self.fitted(part, None)
            with torch.enable_grad():
                value = self._each(self._priced, _both(point, theta), self._data)
                (slope,) = torch.autograd.grad(value.sum() + 0.0 * point.sum(), point)
            values.append(value.detach())
            worths.append(slope if theta is None else slope / 2)
        return torch.cat(values, 1), torch.cat(worths, 1)

    def _at_once(self, v: Tensor) -> int:
        longest = max(v.shape[-1], *(max(tensor.shape[1:], default=1) for tensor in self._data), 1)
        return max(1, _AT_ONCE // (v.shape[0] * longest))

    def slopes(
        self, v: Tensor, theta: Tensor | None, step: int, *, priced: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """Return the gradients to v and to θ, on the data of a step if there are any.

        Args:
            v: Points [P, R, D].
            theta: Their θ, if it is moved.
            step: Number of the step, for `sample`.
            priced: Whether the price of the ones is part of it.
        """
        joint = theta is not None
        theta = theta if joint else self.fitted(v, None)
        self.evaluations += v.shape[0] * v.shape[1]
        data = self._data if self._sample is None else tuple(self._sample(step))
        function = self._priced if priced else self._plain
        points = [tensor.detach() for tensor in _both(v, theta)]
        moved = [tensor.requires_grad_() for tensor in points[: 2 if joint else 1]]
        with torch.enable_grad():
            # Points do not touch each other, so the gradient of the sum is the gradient of each. What
            # is added lets f leave out v.
            total = self._each(function, points, data).sum() + 0.0 * points[0].sum()
        slopes = torch.autograd.grad(total, moved, materialize_grads=True)
        return slopes[0], slopes[1] if joint else None

    def of(self, problems: Tensor) -> "Objective":
        """Return that of some of the problems."""
        data = [tensor[problems] for tensor in self._data]
        return Objective(self._f, data, penalty=self.penalty, fit=self._fit, sample=None)

    def _priced(self, v: Tensor, *rest: Tensor) -> Tensor:
        return self._plain(v, *rest) + self.penalty * v.sum()

    def _plain(self, v: Tensor, *rest: Tensor) -> Tensor:
        value = self._f(v, *rest)
        _check_tensor("f", value, "one number for one v")
        if value.dim():
            raise SettingError(
                f"f gave a tensor of shape {tuple(value.shape)}: expected one number for one v"
            )
        return value

    def _best(self, v: Tensor, *rest: Tensor) -> Tensor:
        assert self._fit is not None
        theta = self._fit(v, *rest)
        _check_tensor("fit", theta, "the best θ for one v")
        return theta

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


def _check_tensor(name: str, given: object, meaning: str) -> None:
    if not isinstance(given, Tensor):
        raise SettingError(
            f"{name} gave an object of type {type(given).__name__}: expected a tensor, {meaning}"
        )


def _both(v: Tensor, theta: Tensor | None) -> tuple[Tensor, ...]:
    return (v,) if theta is None else (v, theta)
