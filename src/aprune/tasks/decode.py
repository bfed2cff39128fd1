"""Turning encoded images into one tensor, with every image checked."""

import io
import itertools
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from aprune.errors import TaskError
from aprune.files import printable
from aprune.progress import bar

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")

LARGEST_IMAGE = 64_000_000  # pixels; a file that declares more is a mistake or an attack
# Pixels that an image of any size may have, and for each of its bytes: a blank one in grey has 1,032.
_FLOOR, _FACTOR = 1_000_000, 1_000

# Only what Pillow decodes by itself: some of its other formats start programs. Trying few formats
# also halves the time that a small image takes.
_FORMATS = ("PNG", "WEBP", "JPEG", "BMP", "GIF", "TIFF", "PPM")
_CHUNK = 64  # images given to a thread at once
_WAVE = 64  # chunks under way at once, which bounds the memory for encoded images
_NAMED = 20  # unreadable images that one message names


@dataclass(frozen=True)
class Encoded:
    """An image as it is stored.

    Attributes:
        data: Its bytes, or the file that has them.
        where: What to call it in an error message.
    """

    data: bytes | Path
    where: str


def decode_images(
    images: Iterable[Encoded],
    total: int,
    *,
    mode: str,
    size: int | None = None,
    title: str = "decoding images",
    most: int | None = None,
) -> torch.Tensor:
    """Decode images of one size into a uint8 tensor [N, C, H, W].

    Args:
        images: The encoded images.
        total: How many there are.
        mode: "RGB" or "L" (grey), to which every image is converted.
        size: Shorter side to resize to, with a square cut from the centre; if `None`, all images
            must have the same size already.
        title: What the progress bar says.
        most: Bytes that all of them together may take, where a few could stand for many.

    Returns:
        The pixels, in the order of `images`.

    Raises:
        TaskError: An image cannot be read, or differs in size from the first.

    Example:
        >>> grey = io.BytesIO(b"P5 2 1 255 " + bytes([7, 9]))
        >>> decode_images([Encoded(grey.getvalue(), "row 0")], 1, mode="L").tolist()
        [[[[7, 9]]]]
    """

    def decode(chunk: Sequence[Encoded]) -> list[NDArray[np.uint8]]:
        like = None if size is not None or pixels is None else pixels.shape
        return [_decode(image, mode, size, like) for image in chunk]

    # Holding the interpreter lock costs more than it gives for small images: threads pay for files.
    workers = 1 if size is None else os.cpu_count() or 1
    pixels: NDArray[np.uint8] | None = None
    done = 0
    with bar(title, total) as advance, _quiet_pillow():
        source = iter(images)
        for chunk, decoded in _map_in_threads(decode, _chunks(source, _CHUNK), workers):
            if pixels is None:
                pixels = _allocate(total, decoded[0].shape, chunk[0].where, most)
            if done + len(decoded) > total:
                raise TaskError(f"{title}: got more than {total} images; get the files again")
            pixels[done : done + len(decoded)] = np.stack(decoded)
            done += len(decoded)
            advance(len(decoded))
    if pixels is None or done != total:
        raise TaskError(f"{title}: got {done} of {total} images; get the files again")
    return torch.from_numpy(pixels)


def name_unreadable(
    images: Iterable[Encoded], total: int, *, mode: str, size: int | None = None
) -> TaskError | None:
    """Decode images once more, all of them, and return an error that names those that cannot be read.

    Args:
        images: The encoded images.
        total: How many there are.
        mode: "RGB" or "L", as for `decode_images`.
        size: Shorter side to resize to.

    Returns:
        The error, which names the first 20; None if all can be read.

    Example:
        >>> images = [Encoded(b"", "row 0"), Encoded(b"P5 1 1 255 7", "row 1"), Encoded(b"", "row 2")]
        >>> print(name_unreadable(images, 3, mode="L"))  # doctest: +ELLIPSIS
        2 images cannot be read: row 0, row 2 (the first: cannot identify ...); replace or remove them
    """

    def look(chunk: Sequence[Encoded]) -> list[tuple[str, TaskError]]:
        faults = ((image.where, _find_fault(image, mode, size)) for image in chunk)
        return [(printable(where), fault) for where, fault in faults if fault]

    workers = 1 if size is None else os.cpu_count() or 1
    bad: list[tuple[str, TaskError]] = []
    with bar("looking for others", total) as advance, _quiet_pillow():
        for chunk, found in _map_in_threads(look, _chunks(iter(images), _CHUNK), workers):
            bad += found
            advance(len(chunk))
    if len(bad) < 2:
        return bad[0][1] if bad else None
    names = ", ".join(where for where, _ in bad[:_NAMED])
    more = f" and {len(bad) - _NAMED:,} more" if len(bad) > _NAMED else ""
    return TaskError(
        f"{len(bad):,} images cannot be read: {names}{more} (the first: {bad[0][1].reason}); replace"
        " or remove them"
    )


def _find_fault(image: Encoded, mode: str, size: int | None) -> TaskError | None:
    try:
        _decode(image, mode, size, None)
    except TaskError as fault:
        return fault
    return None


def _decode(
    image: Encoded, mode: str, size: int | None, like: tuple[int, ...] | None
) -> NDArray[np.uint8]:
    """Return the pixels [C, H, W] of one image, which has to be as large as those of shape `like`."""
    from PIL import Image, ImageOps

    try:
        source: io.BytesIO | Path
        if isinstance(image.data, bytes):
            source, length = io.BytesIO(image.data), len(image.data)
        else:
            source, length = image.data, image.data.stat().st_size
        with Image.open(source, formats=_FORMATS) as opened:
            width, height = opened.size
            if width * height > min(LARGEST_IMAGE, _FLOOR + _FACTOR * length):
                raise ValueError(f"{width} × {height} pixels are too many for {length:,} bytes")
            if like is not None and (height, width) != like[-2:]:
                raise TaskError(
                    f"{printable(image.where)}: the image has {width} × {height} pixels where the"
                    f" first one has {like[-1]} × {like[-2]}; all must be alike"
                )
            if size is not None:
                opened.draft(None, (2 * size, 2 * size))  # a large JPEG is decoded reduced
            picture = _convert(opened if size is None else ImageOps.exif_transpose(opened), mode)
            if size is not None:
                picture = ImageOps.fit(picture, (size, size), Image.Resampling.BILINEAR)
            values = np.asarray(picture, dtype=np.uint8)
    except TaskError:
        raise
    # Pillow's readers let many kinds of exception through when the bytes are damaged.
    except Exception as error:
        reason = printable(error).partition("<_io")[0].strip()[:200] or type(error).__name__
        raise TaskError(
            f"{printable(image.where)}: the image cannot be read ({reason}); replace or remove it",
            reason,
        ) from None
    return values[np.newaxis] if values.ndim == 2 else values.transpose(2, 0, 1)


def _convert(picture: "Image", mode: str) -> "Image":
    """Return the picture in `mode`, with 16-bit greys scaled instead of cut off."""
    from PIL import Image

    if picture.mode == mode:
        return picture
    if picture.mode.startswith("I"):
        grey = np.asarray(picture).astype(np.int64) >> 8
        picture = Image.fromarray(grey.clip(0, 255).astype(np.uint8))
    return picture.convert(mode)


def _map_in_threads(
    function: Callable[[Sequence[Encoded]], T], chunks: Iterator[Sequence[Encoded]], workers: int
) -> Iterator[tuple[Sequence[Encoded], T]]:
    """Yield every chunk with its result, in order; a single worker needs no thread."""
    if workers == 1:
        for chunk in chunks:
            yield chunk, function(chunk)
        return
    pool = ThreadPoolExecutor(workers)
    try:
        while wave := list(itertools.islice(chunks, _WAVE)):
            yield from zip(wave, pool.map(function, wave), strict=True)
    finally:
        pool.shutdown(cancel_futures=True)


def _chunks(items: Iterator[T], length: int) -> Iterator[Sequence[T]]:
    """Yield lists of items; the first of a single one, which says how large all others must be."""
    chunk = list(itertools.islice(items, 1))
    while chunk:
        yield chunk
        chunk = list(itertools.islice(items, length))


@contextmanager
def _quiet_pillow() -> Iterator[None]:
    """Keep Pillow from printing about odd metadata, and make its size warning an error."""
    from PIL import Image

    # Set once around all threads: these filters belong to the whole process.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def _allocate(
    total: int, shape: tuple[int, ...], where: str, most: int | None
) -> NDArray[np.uint8]:
    try:
        if most is not None and total * math.prod(shape) > most:
            raise MemoryError
        return np.empty((total, *shape), dtype=np.uint8)
    except MemoryError:
        raise TaskError(
            f"{printable(where)}: {total} images of {_describe(shape)} pixels do not fit into memory,"
            " or not into their file; use smaller or fewer ones"
        ) from None


def _describe(shape: tuple[int, ...]) -> str:
    return f"{shape[2]} × {shape[1]}"
