"""Where an architecture comes from, as JSON: method and settings, task, seed, version."""

import json
from collections.abc import Mapping
from typing import Any

from aprune.errors import ArchitectureError


def dump_provenance(provenance: Mapping[str, Any]) -> str:
    """Write provenance as JSON.

    Raises:
        ArchitectureError: if JSON cannot hold it.

    Example:
        >>> dump_provenance({"seed": 0, "method": ("ap", 1000)})
        '{"seed":0,"method":["ap",1000]}'
    """
    try:
        text = json.dumps(dict(provenance), allow_nan=False, separators=(",", ":"))
        # Half a surrogate pair passes for text until somebody prints it.
        json.dumps(parse_provenance(text), ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ArchitectureError(
            f"the provenance does not fit into JSON ({error.args[0]}): "
            "expected a mapping of finite numbers, strings, lists and mappings"
        ) from error
    return text


def parse_provenance(text: str) -> dict[str, Any]:
    """Read provenance from JSON.

    Raises:
        ValueError, RecursionError: if it is not the JSON of one mapping with distinct keys.

    Example:
        >>> parse_provenance('{"seed":0}')
        {'seed': 0}
    """
    value = json.loads(text, object_pairs_hook=_distinct)
    if not isinstance(value, dict):
        raise ValueError("not a mapping")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise ValueError("a key appears twice")
    return mapping
