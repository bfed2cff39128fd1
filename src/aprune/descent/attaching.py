"""A search in a network and a training loop of the user's own."""

from collections.abc import Sequence

from torch import nn

from aprune.connections import check_patterns, find_connections, list_patterns, uncompiled
from aprune.descent.search import Search
from aprune.descent.settings import Settings
from aprune.errors import SettingError


def attach(
    model: nn.Module,
    method: Settings,
    *,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    seed: int = 0,
    weights: bool = False,
) -> Search:
    """Attach a search to `model` in place, for a training loop of your own.

    Any optimiser may train the weights; `search.step()` trains the mask. For the paper's penalty on
    the weights, give the optimiser a `weight_decay` of 2γ.

    Args:
        model: Any network; its connections are parametrised in place. Its weights stay as they are.
        method: An `AP` with `sparsity` and `steps`.
        include: Patterns of parameters to search over (see `find_connections`).
        exclude: Patterns of parameters to leave alone.
        seed: Of the initial w.
        weights: Whether to keep the weights that go with each architecture.

    Returns:
        The search: call its `step` after each step of your optimiser, then `architecture` and `finish`.

    Example:
        >>> import torch
        >>> from aprune import AP
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        >>> search = attach(model, AP(sparsity=0.75, steps=50))
        >>> for _ in range(50):
        ...     x = torch.randn(32, 8)
        ...     loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
        ...     optimiser.zero_grad()
        ...     loss.backward()
        ...     optimiser.step()
        ...     search.step()
        >>> search.architecture().kept, search.architecture().total
        (40, 160)
    """
    if not isinstance(method, Settings):
        given = getattr(method, "name", None) or type(method).__name__
        raise SettingError(
            f"attach got {given}: expected AP(sparsity=…, steps=…); other methods are for find"
        )
    if method.sparsity is None or method.steps is None:
        raise SettingError(
            "attach needs to know where to go: give the method a sparsity and steps, "
            "as in AP(sparsity=0.9, steps=1000)"
        )
    if method.steps < 2:
        raise SettingError(f"steps is {method.steps}: expected at least 2")
    model = uncompiled(model)
    connections = find_connections(model, include=include, exclude=exclude)
    check_patterns(model, include, exclude)
    search = Search.over(model, method, connections, seed=seed, weights=weights)
    search.origin = {"include": list_patterns(include), "exclude": list_patterns(exclude)}
    return search
