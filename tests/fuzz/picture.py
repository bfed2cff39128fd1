"""Seeded damage of images: declared sizes, chunks with checksums that fit, and bombs."""

import random
import struct
import zlib
from collections.abc import Sequence

from fuzz.mutate import damage

_PNG = b"\x89PNG\r\n\x1a\n"
_SIDES = (0, 1, 2, 9, 255, 4000, 8000, 16_383, 20_000, 50_000, 65_535, 2**20, 2**31 - 1, 2**32 - 1)


def damage_image(rng: random.Random, content: bytes) -> bytes:
    """Change an image: its declared size, its chunks if it is a PNG, or any bytes; or make a bomb."""
    if content.startswith(_PNG) and rng.random() < 0.6:
        return _damage_png(rng, content)
    if rng.random() < 0.3:
        return _declare_size(rng, content)
    if rng.random() < 0.01:
        return make_bomb(rng)
    return damage(rng, content)


def split_png(content: bytes) -> list[tuple[bytes, bytes]]:
    """Return kind and content of each chunk."""
    chunks, place = [], len(_PNG)
    while place + 12 <= len(content):
        (size,) = struct.unpack(">I", content[place : place + 4])
        kind = content[place + 4 : place + 8]
        chunks.append((kind, content[place + 8 : place + 8 + size]))
        place += 12 + size
    return chunks


def join_png(chunks: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Put a PNG together, with lengths and checksums that are right."""
    return _PNG + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def make_png(width: int, height: int, data: bytes, depth: int = 8, colour: int = 0) -> bytes:
    """Make a PNG of one IDAT, which need not hold as much as the header says."""
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return join_png([(b"IHDR", head), (b"IDAT", data), (b"IEND", b"")])


def make_bomb(rng: random.Random) -> bytes:
    """Make a small PNG that really holds many pixels: a bit each, and all of them equal."""
    width, height = rng.choice(((7_000, 7_000), (60_000, 1_000), (8_000, 8_000)))
    rows = bytes((width // 8 + 1) * height)
    return make_png(width, height, zlib.compress(rows, 9), depth=1)


def _damage_png(rng: random.Random, content: bytes) -> bytes:
    chunks = split_png(content)
    place = rng.randrange(len(chunks))
    kind, data = chunks[place]
    which = rng.randrange(7)
    if which <= 1:
        width, height = rng.choice(_SIDES), rng.choice(_SIDES)
        depth, colour = rng.choice((1, 2, 4, 8, 16, 3, 255)), rng.choice((0, 2, 3, 4, 6, 5))
        if rng.random() < 0.5:
            depth, colour = content[24], content[25]
        rest = rng.choice((bytes(3), bytes([0, 0, 1]), rng.randbytes(3)))
        chunks[0] = (b"IHDR", struct.pack(">IIBB", width, height, depth, colour) + rest)
    elif which == 2:
        chunks[place] = (kind, damage(rng, data))
    elif which == 3:
        del chunks[place]
    elif which == 4:
        chunks.insert(place, rng.choice(chunks))
    elif which == 5:
        chunks.insert(rng.choice((1, place)), _odd_chunk(rng))
    else:
        chunks[place] = (rng.choice((b"IDAT", b"PLTE", b"tRNS", b"acTL", b"eXIf", b"zzZz")), data)
    return join_png(chunks)


def _odd_chunk(rng: random.Random) -> tuple[bytes, bytes]:
    packed = zlib.compress(
        bytes(rng.choice((10, 10_000, 30_000_000 if rng.random() < 0.05 else 9)))
    )
    return rng.choice(
        (
            (b"iCCP", b"name\0\0" + packed),
            (b"zTXt", b"name\0\0" + packed),
            (b"iTXt", b"name\0\1\0\0\0" + packed),
            (b"tEXt", b"XML:com.adobe.xmp\0" + bytes(100)),
            (b"acTL", struct.pack(">II", rng.choice((0, 1, 2**31 - 1)), 0)),
            (b"fcTL", struct.pack(">IIIIIHHBB", 0, 2**31, 2**31, 9, 9, 0, 0, 0, 0)),
            (b"eXIf", b"MM\0*\0\0\0\x08" + rng.randbytes(40)),
            (b"gAMA", bytes(4)),
            (b"pHYs", bytes(3)),
            (b"tRNS", rng.randbytes(rng.choice((0, 1, 2, 6, 300)))),
            (b"PLTE", rng.randbytes(rng.choice((0, 1, 3, 768, 771)))),
        )
    )


def _declare_size(rng: random.Random, content: bytes) -> bytes:
    """Write another width and height where the format has them."""
    width, height = rng.choice(_SIDES), rng.choice(_SIDES)
    small = struct.pack("<HH", width & 0xFFFF, height & 0xFFFF)
    if content[:4] == b"GIF8":
        return content[:6] + small + content[10:]
    if content[:2] == b"BM":
        return content[:18] + struct.pack("<II", width, height) + content[26:]
    if content[:2] == b"\xff\xd8":
        places = [content.find(bytes([0xFF, mark])) for mark in (0xC0, 0xC1, 0xC2)]
        place = max(places)
        sides = struct.pack(">HH", height & 0xFFFF, width & 0xFFFF)
        return content[: place + 5] + sides + content[place + 9 :]
    if content[:4] == b"RIFF" and content[12:16] == b"VP8X":
        sides = struct.pack("<I", width)[:3] + struct.pack("<I", height)[:3]
        return content[:24] + sides + content[30:]
    if content[:4] == b"RIFF" and content[12:16] == b"VP8L":
        bits = (width & 0x3FFF) | (height & 0x3FFF) << 14
        return content[:21] + struct.pack("<I", bits) + content[25:]
    if content[:4] == b"RIFF":
        return content[:26] + small + content[30:]
    if content[:2] in (b"II", b"MM"):
        return _change_tag(rng, content)
    if content[:1] == b"P":
        return content[:2] + f" {width} {height} {rng.choice(_SIDES)}\n".encode() + content[12:]
    return damage(rng, content)


def _change_tag(rng: random.Random, content: bytes) -> bytes:
    """Give one tag of a TIFF another type, number or value."""
    order = "<" if content[:2] == b"II" else ">"
    (first,) = struct.unpack(order + "I", content[4:8])
    (number,) = struct.unpack(order + "H", content[first : first + 2])
    place = first + 2 + 12 * rng.randrange(max(1, number))
    tag, kind, count, value = struct.unpack(order + "HHII", content[place : place + 12])
    which = rng.randrange(4)
    absurd = rng.choice(_SIDES) & 0xFFFFFFFF
    kind = rng.choice((1, 2, 3, 4, 5, 11, 12, 16, 99)) if which == 0 else kind
    count = absurd if which == 1 else count
    value = absurd if which == 2 else value
    tag = rng.choice((256, 257, 258, 259, 277, 322, 323, 339, 700, 34_665)) if which == 3 else tag
    changed = struct.pack(order + "HHII", tag, kind, count, value)
    return content[:place] + changed + content[place + 12 :]
