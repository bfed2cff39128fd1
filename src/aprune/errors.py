"""What can go wrong, by kind; every message says what was got, what was expected and what to do."""

import math


class ApruneError(Exception):
    """The parent of all errors that aprune raises on purpose.

    The command line prints its message as one line and exits with status 2.
    """


class ArchitectureError(ApruneError):
    """An architecture, or its file, is damaged, foreign, or does not fit the network."""


class TaskError(ApruneError):
    """A data set is missing, damaged or smaller than what was asked of it.

    Attributes:
        reason: Why an image cannot be read; None if something else is wrong.
    """

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class ParentError(ApruneError):
    """A parent network is unknown or does not fit the task."""


class SettingError(ApruneError):
    """A setting lies outside what it may be."""


class SearchError(ApruneError):
    """A search went wrong: numbers that are not finite, or a target out of reach."""


class TrainingError(ApruneError):
    """A training went wrong: its loss is not finite."""


class DeviceError(ApruneError):
    """A GPU has stopped working, or has too little memory.

    Attributes:
        batch: The batch size that it has no memory for; None if that is not the reason.
    """

    def __init__(self, message: str, batch: int | None = None) -> None:
        super().__init__(message)
        self.batch = batch


class RankError(ApruneError):
    """Processes that train together have lost each other, or no longer hold the same numbers."""


class FileError(ApruneError):
    """A file could not be read or written."""


class ApruneWarning(UserWarning):
    """Something that does no harm but should be known; the command line prints it as one line."""


class NetworkWarning(ApruneWarning):
    """A network that can hardly learn any more: dead, or with a layer that lets nothing through."""


class EmptyLayerWarning(NetworkWarning):
    """A layer that lets nothing through, since its last connection has gone."""


def check_kind(given: object, kind: type, name: str, hint: str, *, optional: bool = False) -> None:
    """Raise a `SettingError` unless an argument is what it is meant to be.

    Args:
        given: The argument.
        kind: Its class.
        name: What it is called.
        hint: Where to get one.
        optional: Whether None will do.

    Example:
        >>> check_kind("digits", dict, "task", "dict() makes one")
        Traceback (most recent call last):
        aprune.errors.SettingError: task is 'digits': expected dict; dict() makes one
    """
    if not isinstance(given, kind) and not (optional and given is None):
        text = repr(given) if isinstance(given, str | int | float) else type(given).__name__
        raise SettingError(f"{name} is {text}: expected {kind.__name__}; {hint}")


def check_whole(name: str, value: object, least: int) -> None:
    """Raise unless a setting is a whole number that is large enough.

    Example:
        >>> check_whole("rounds", 2.5, least=1)
        Traceback (most recent call last):
        aprune.errors.SettingError: rounds is 2.5: expected a whole number from 1 on
    """
    if not isinstance(value, int) or value < least:
        raise SettingError(f"{name} is {value!r}: expected a whole number from {least} on")


def is_number(value: object, least: float = math.ulp(0.0)) -> bool:
    """Tell whether a setting is a finite number, above 0 or from `least` on.

    Example:
        >>> is_number(0.5), is_number(0.0), is_number(0.0, least=0.0), is_number(math.inf)
        (True, False, True, False)
    """
    return isinstance(value, int | float) and math.isfinite(value) and value >= least
