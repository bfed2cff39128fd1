"""Many seeds out of one, so that draws for different purposes have nothing to do with each other."""

import hashlib
import json


def derive_seed(seed: int, *purpose: str) -> int:
    """Return a seed for one purpose.

    Two generators with one seed draw the same numbers: weights that are said to be fresh would be
    those of the search again, and a mask learnt around them would fit before any training.

    Args:
        seed: The user's seed, any whole number.
        *purpose: What the numbers are for.

    Returns:
        A number of 32 bits, all that the generator of the CPU takes in.

    Example:
        >>> derive_seed(0, "weights") == derive_seed(0, "weights")
        True
        >>> derive_seed(0, "weights") == derive_seed(0, "transfer")
        False
    """
    digest = hashlib.sha256(json.dumps([int(seed), *purpose]).encode()).digest()
    return int.from_bytes(digest[:4], "little")
