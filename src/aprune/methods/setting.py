"""Checks for the settings of methods, which look at themselves when they are made."""

import math

from aprune.errors import SettingError


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
