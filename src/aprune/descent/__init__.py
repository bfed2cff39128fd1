"""The descent on a mask, together with whoever trains the weights: what `AP` and `attach` search by."""

from aprune.descent.attaching import attach
from aprune.descent.search import Search, draw_w
from aprune.descent.settings import Settings

__all__ = ["Search", "Settings", "attach", "draw_w"]
