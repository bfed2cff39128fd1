"""`aprune methods`: the ways to choose connections; and how their settings are read."""

import inspect
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import typer

from aprune.cli import option
from aprune.cli.output import print_json, print_table, say
from aprune.errors import SettingError

if TYPE_CHECKING:
    from aprune.methods import Method

EXAMPLE = "Example: aprune methods rigl"


def methods(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One of them, with its settings.")
    ] = None,
    json: option.Json = False,
) -> None:
    """List the ways to choose connections.

    What each does, what a search costs, and the paper that it comes from. Settings are given to
    find as --set NAME=VALUE and to compare as --set METHOD.NAME=VALUE.
    """
    from aprune.methods import METHODS, find_method

    chosen = [find_method(name)] if name is not None else [kind() for kind in METHODS.values()]
    if json:
        print_json([_describe(method) for method in chosen])
        return
    print_table(
        ("method", "what it does", "cost", "paper"),
        [(m.name, m.summary, m.cost, m.source) for m in chosen],
        left=("method", "what it does", "cost", "paper"),
    )
    if name is None:
        return
    settings = _settings(chosen[0])
    if not settings:
        say("It has no settings.")
        return
    meanings = meanings_of(chosen[0])
    print_table(
        ("setting", "default", "expected", "meaning"),
        [
            (key, _show(getattr(chosen[0], key)), _expected(kind), meanings.get(key, ""))
            for key, kind in settings.items()
        ],
        left=("setting", "default", "expected", "meaning"),
    )


def make_method(name: str, assignments: Sequence[str]) -> "Method":
    """Return a method with some settings changed, each given as `name=value`.

    Example:
        >>> make_method("imp", ["rounds=3"])
        IMP(rounds=3, rewind=0, steps=None)
    """
    from aprune.methods import find_method

    method = find_method(name)
    known = _settings(method)
    changes = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key = key.strip().replace("-", "_")
        if not equals:
            raise SettingError(f"got {assignment!r} for --set: expected NAME=VALUE")
        if key not in known:
            there = ", ".join(known) or "none at all"
            raise SettingError(f"{name} has no setting {key!r}: expected one of {there}")
        changes[key] = _read(text.strip(), key, known[key])
    return replace(method, **changes)


def make_methods(names: Sequence[str], assignments: Sequence[str]) -> "tuple[Method, ...]":
    """Return those of several methods that have settings, each given as `method.name=value`.

    Example:
        >>> make_methods(["ap", "imp"], ["imp.rounds=3"])
        (IMP(rounds=3, rewind=0, steps=None),)
    """
    own: dict[str, list[str]] = {}
    for assignment in assignments:
        owner, dot, rest = assignment.partition(".")
        if not dot or owner not in names:
            raise SettingError(
                f"got {assignment!r} for --set: expected METHOD.NAME=VALUE with one of"
                f" {', '.join(names)}"
            )
        own.setdefault(owner, []).append(rest)
    return tuple(make_method(name, given) for name, given in own.items())


def meanings_of(method: "Method") -> dict[str, str]:
    """Return what the settings of a method mean: the first sentence on each under `Attributes:`.

    Example:
        >>> from aprune.methods import SNIP
        >>> meanings_of(SNIP())["batches"]
        'Batches of training images that the loss is taken over.'
    """
    meanings = {}
    for kind in reversed(type(method).__mro__):  # a class knows better than those it comes from
        text = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")[2]
        for name, about in re.findall(
            r"^ {4}(\w+): (.*(?:\n {8}.*)*)", text.partition("\n\n")[0], flags=re.MULTILINE
        ):
            meanings[name] = re.split(r"(?<=\.) ", " ".join(about.split()))[0]
    return meanings


def _settings(method: "Method") -> dict[str, Any]:
    """Return the type of each setting that a user may give."""
    hints = get_type_hints(type(method))
    own = [field.name for field in fields(method) if not field.metadata.get("set_by_find")]
    return {name: hints[name] for name in own}


def _read(text: str, name: str, kind: Any) -> Any:
    for accepted in _kinds(kind):
        if accepted is NoneType and text.lower() == "none":
            return None
        if accepted in (int, float):
            try:
                return accepted(text)
            except ValueError:
                continue
        if accepted is bool and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if accepted is str or accepted == text:
            return text
    raise SettingError(f"got {text!r} for {name}: expected {_expected(kind)}")


def _kinds(kind: Any) -> list[Any]:
    """Return what a value may be: types, and words that it may say."""
    if get_origin(kind) in (Union, UnionType):
        return [part for each in get_args(kind) for part in _kinds(each)]
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [kind]


def _expected(kind: Any) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a name"}
    words[NoneType] = "none"
    shown = [words.get(each, each if isinstance(each, str) else "") for each in _kinds(kind)]
    *others, last = [word for word in shown if word]
    return f"{', '.join(others)} or {last}" if others else last


def _show(value: object) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _describe(method: "Method") -> dict[str, Any]:
    return {
        "name": method.name,
        "summary": method.summary,
        "cost": method.cost,
        "paper": method.source,
        "nested": method.nested,
        "trains": method.trains,
        "settings": {key: getattr(method, key) for key in _settings(method)},
    }
