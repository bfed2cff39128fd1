"""Which tensors of a network are its connections, and how they are masked and folded.

Connections are the weights that multiply an input: those of convolutional and linear layers, and any
other parameter with two or more dimensions that belongs to neither a norm nor an embedding. Biases and
norms are not, unless they are asked for by name.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from aprune.errors import SettingError
from aprune.maths.relaxation import relax

Masks = dict[str, Tensor]
"""Which connections are there: a boolean tensor for each parameter, by name."""

NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.LocalResponseNorm,
)
_LOOKED_UP = (nn.Embedding, nn.EmbeddingBag)
_ORDER = "order_before"  # of a module's parameters, kept beside its parametrisations


def find_connections(
    model: nn.Module,
    *,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
) -> dict[str, nn.Parameter]:
    """Return the connections of `model` by name, in the order of its modules.

    Args:
        model: Any network.
        include: Patterns such as `"features.*"`; the parameters that match one are the connections,
            whatever their kind. Without it the rule above decides.
        exclude: Patterns of parameters that are left alone.

    Returns:
        The parameters themselves, not copies.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))
        >>> list(find_connections(net))
        ['0.weight', '2.weight']
        >>> list(find_connections(net, exclude="2.*"))
        ['0.weight']
    """
    included, excluded = list_patterns(include) or [], list_patterns(exclude) or []
    found: dict[str, nn.Parameter] = {}
    left_out: list[str] = []
    names: dict[int, list[str]] = {}
    for name, _, parameter in _every_parameter(model):
        names.setdefault(id(parameter), []).append(name)
    for name, module, parameter in _every_parameter(model):
        wanted = _matches(name, included) if included else _multiplies(name, module, parameter)
        if not wanted:
            continue
        if _matches(name, excluded):
            left_out.append(name)
            continue
        if isinstance(module, parametrize.ParametrizationList):
            raise _already(name, module)
        if len(names[id(parameter)]) > 1:
            raise SettingError(
                f"{' and '.join(names[id(parameter)])} share one tensor, so a mask would fall "
                "on all of them: exclude them"
            )
        found[name] = parameter
    if left_out and not found:
        raise SettingError(
            f"no connections are left: {_some(excluded)} in exclude takes away {_some(left_out)}, and"
            " there are no others; expected patterns that spare some"
        )
    if not found:
        raise SettingError(
            "the network has no connections: expected a parameter with two or more dimensions"
            + (f" among those matching {', '.join(included)}" if included else "")
        )
    return found


def uncompiled(model: nn.Module) -> nn.Module:
    """Return the network that `torch.compile` wrapped, whose parameters have their own names.

    Example:
        >>> uncompiled(nn.Linear(2, 2))
        Linear(in_features=2, out_features=2, bias=True)
    """
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else model


def check_patterns(model: nn.Module, *patterns: str | Sequence[str] | None) -> None:
    """Raise a `SettingError` if one of the patterns matches no parameter: it is a slip of the pen.

    Example:
        >>> check_patterns(nn.Linear(2, 2), "weight", ["bias*"])
        >>> check_patterns(nn.Linear(2, 2), None, "wieght")
        Traceback (most recent call last):
        aprune.errors.SettingError: no parameter matches 'wieght': expected names as in weight, bias
    """
    names = [name for name, _, _ in _every_parameter(model)]
    for pattern in itertools.chain.from_iterable(list_patterns(given) or [] for given in patterns):
        if not any(_matches(name, [pattern]) for name in names):
            some = _some(names)
            raise SettingError(f"no parameter matches {pattern!r}: expected names as in {some}")


def list_patterns(patterns: str | Sequence[str] | None) -> list[str] | None:
    """Return one pattern or several as a list; None stays None.

    Example:
        >>> list_patterns("features.*")
        ['features.*']
    """
    if patterns is None:
        return None
    return [patterns] if isinstance(patterns, str) else list(patterns)


def weights_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return every tensor that multiplies an input, whichever of them are searched.

    A tensor that two layers share comes once, under its first name.

    Example:
        >>> list(weights_of(nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))))
        ['0.weight']
    """
    first: dict[int, tuple[str, nn.Parameter]] = {}
    for name, module, parameter in _every_parameter(model):
        if _multiplies(name, module, parameter):
            first.setdefault(id(parameter), (name, parameter))
    return dict(first.values())


def shapes_of(connections: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each connection tensor.

    Example:
        >>> shapes_of(find_connections(nn.Linear(4, 3)))
        {'weight': (3, 4)}
    """
    return {name: tuple(tensor.shape) for name, tensor in connections.items()}


def has_norm(model: nn.Module) -> bool:
    """Tell whether some layer of `model` normalises.

    Example:
        >>> has_norm(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
        False
    """
    return any(isinstance(module, NORMS) for module in model.modules())


class TwoTemperatureMask(nn.Module):
    """A parametrisation that shows θ ∘ σ(t_l·w) to the layer and holds w.

    w is a buffer that takes a gradient, not a parameter: an optimiser made from
    `model.parameters()` never sees it, while `deepcopy` and `state_dict` keep it.
    """

    w: Tensor

    def __init__(self, w: Tensor, t_l: float, t_s: float) -> None:
        super().__init__()
        self.register_buffer("w", w.requires_grad_())
        self.t_l, self.t_s = t_l, t_s

    def forward(self, theta: Tensor) -> Tensor:
        """Return the masked weights."""
        return relax(theta, self.w, self.t_l, self.t_s)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:  # noqa: ARG002
        # `model.to(…)` would put a new tensor here, and whoever trains w would still hold the old.
        self.w.data = fn(self.w.data)
        return self


def attach_masks(
    model: nn.Module, w: Mapping[str, Tensor], t_l: float, t_s: float
) -> dict[str, TwoTemperatureMask]:
    """Parametrise the connections named in `w` in place.

    Optimisers made before keep working: the weights stay the same parameters.

    Example:
        >>> import torch
        >>> layer = nn.Linear(2, 1, bias=False)
        >>> _ = attach_masks(layer, {"weight": torch.tensor([[1.0, -1.0]])}, t_l=100.0, t_s=10.0)
        >>> (layer.weight != 0).tolist()
        [[True, False]]
    """
    masks = {name: TwoTemperatureMask(values, t_l, t_s) for name, values in w.items()}
    for name, mask in masks.items():
        parametrise(model, name, mask)
    return masks


def parametrise(model: nn.Module, name: str, shown: nn.Module) -> None:
    """Let a layer see what `shown` makes of one of its parameters, until it is folded.

    Raises:
        SettingError: The parameter has a parametrisation already.
    """
    module, leaf = _owner(model, name)
    if parametrize.is_parametrized(module, leaf):
        raise _already(name, module.get_submodule(f"parametrizations.{leaf}"))
    order = list(module._parameters)
    # unsafe skips a trial run, which would cost a copy of every weight
    parametrize.register_parametrization(module, leaf, shown, unsafe=True)
    if not hasattr(module.parametrizations, _ORDER):
        setattr(module.parametrizations, _ORDER, order)


def fold(model: nn.Module, names: Iterable[str]) -> None:
    """Make plain parameters of the weights as their layers see them.

    They stay the same parameters, where they are in memory: what was captured still finds them. Copies
    of the network that were made before keep their masks.

    Example:
        >>> import torch
        >>> layer = nn.Linear(2, 1, bias=False)
        >>> _ = attach_masks(layer, {"weight": torch.tensor([[1.0, -1.0]])}, t_l=100.0, t_s=10.0)
        >>> fold(layer, ["weight"])
        >>> type(layer), layer.weight[0, 1].item() == 0.0
        (<class 'torch.nn.modules.linear.Linear'>, True)
    """
    for name in names:
        module, leaf = _owner(model, name)
        order = getattr(module.parametrizations, _ORDER)
        _leave_class(module)
        with torch.no_grad():
            shown = getattr(module, leaf)
            parametrize.remove_parametrizations(module, leaf, leave_parametrized=False)
            getattr(module, leaf).copy_(shown)
        _put_in_order(module, order)


def masked_state(model: nn.Module, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a copy of the state of `model` on the CPU, zero outside `masks`."""
    state = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
    for name, mask in masks.items():
        state[name] *= mask.cpu()
    return state


def _already(name: str, shown: nn.Module) -> SettingError:
    """Say what to do about a parametrisation; that of a search is not to be removed by hand."""
    ours = any(isinstance(part, TwoTemperatureMask) for part in shown.children())
    return SettingError(
        f"{name} has a parametrisation already"
        + (", the mask of a search: call search.finish() first" if ours else ": remove it first")
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def _leave_class(module: nn.Module) -> None:
    """Give a parametrised module a class of its own.

    PyTorch shows the tensor by a property of the class, which copies of the module share, and takes
    the property away from all of them.
    """
    shared = type(module)
    module.__class__ = type(shared.__name__, shared.__bases__, dict(vars(shared)))


def _put_in_order(module: nn.Module, order: Iterable[str]) -> None:
    """Undo that a folded parameter comes last: the state of an optimiser goes by places."""
    for leaf in order:
        if leaf in module._parameters:
            module._parameters[leaf] = module._parameters.pop(leaf)


def _owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    prefix, _, leaf = name.rpartition(".")
    return model.get_submodule(prefix), leaf


def _every_parameter(model: nn.Module) -> Iterator[tuple[str, nn.Module, nn.Parameter]]:
    """Go through the parameters by the names they have where nothing is parametrised."""
    for prefix, module in model.named_modules():
        for leaf, parameter in module.named_parameters(recurse=False):
            name = f"{prefix}.{leaf}" if prefix else leaf
            if isinstance(module, parametrize.ParametrizationList):
                name = f".{prefix}".replace(".parametrizations.", ".").removeprefix(".")
            yield name, module, parameter


def _multiplies(name: str, module: nn.Module, parameter: nn.Parameter) -> bool:
    # Attention has biases of three dimensions, bias_k and bias_v.
    added = name.rpartition(".")[2].startswith("bias")
    return parameter.dim() >= 2 and not added and not isinstance(module, NORMS + _LOOKED_UP)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    # a name may itself contain what patterns are made of
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)
