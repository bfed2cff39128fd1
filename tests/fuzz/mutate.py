"""Seeded damage: of any bytes, of JSON, and of the formats that aprune reads.

A mutator takes a generator of random numbers and a good content, and returns a bad one. Those that know
the format put lengths and checksums right again, so that the damage gets past the first check.
"""

import contextlib
import json
import math
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Mutator = Callable[[random.Random, bytes], bytes]

NAMES = (
    "",
    ".",
    "..",
    "/etc/passwd",
    "../../stray",
    "..\\..\\stray",
    "a\nb",
    "a\0b",
    "\x1b[2J",
    "\ud800",
    "é" * 300,
    "os:system",
    "__metadata__",
    "__class__",
    "{0.__class__}",
    "%s%n",
    "x" * 5000,
)
NUMBERS = (
    *(-1, 0, 1, 2, 7, 8, 255, 256, 65_535, 2**24, 2**31 - 1, 2**31, 2**32, 2**40, 2**53 + 1),
    *(2**62, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63), 10**12),
    *(0.5, 1e308, -0.0, math.inf, -math.inf, math.nan),
)
DTYPES = (
    *("BOOL", "U8", "I8", "I16", "U16", "I32", "U32", "I64", "U64", "F16", "BF16", "F32", "F64"),
    *("F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "F6_E2M3", "F6_E3M2", "C64", "object", "", "f32"),
)
DEEP = "@deep@"  # becomes a value nested a hundred thousand deep, which `json.dumps` cannot write
TWICE = "@twice@"  # becomes a second entry of the same name


def damage(rng: random.Random, content: bytes) -> bytes:
    """Flip, cut, repeat or overwrite bytes anywhere, once or a few times."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        content = rng.choice(_ANYWHERE)(rng, content)
    return content


def _flip(rng: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8)) if content else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _cut(rng: random.Random, content: bytes) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _delete(rng: random.Random, content: bytes) -> bytes:
    place = rng.randrange(len(content) + 1)
    return content[:place] + content[place + rng.randint(1, 40) :]


def _repeat(rng: random.Random, content: bytes) -> bytes:
    place = rng.randrange(len(content) + 1)
    return content[:place] + content[place : place + rng.randint(1, 60)] + content[place:]


def _insert(rng: random.Random, content: bytes) -> bytes:
    place = rng.randrange(len(content) + 1)
    return content[:place] + rng.randbytes(rng.randint(1, 20)) + content[place:]


def _overwrite(rng: random.Random, content: bytes) -> bytes:
    """Put the bytes of an absurd number somewhere, in one of the ways that formats write them."""
    number = rng.choice([n for n in NUMBERS if isinstance(n, int)]) & (2**64 - 1)
    size = rng.choice((1, 2, 4, 8))
    written = (number & (2 ** (8 * size) - 1)).to_bytes(size, rng.choice(("little", "big")))
    if rng.random() < 0.2:
        written = varint(number)
    place = rng.randrange(len(content) + 1)
    return content[:place] + written + content[place + len(written) :]


def _zero(rng: random.Random, content: bytes) -> bytes:
    place, length = rng.randrange(len(content) + 1), rng.choice((1, 4, 16, 64))
    return content[:place] + bytes(length) + content[place + length :]


def _other_digit(rng: random.Random, content: bytes) -> bytes:
    """Change a number that is written as text."""
    places = [i for i in range(len(content)) if content[i : i + 1].isdigit()]
    if not places:
        return content
    place = rng.choice(places)
    digits = rng.choice((b"0", b"9", b"-1", b"1e999", b"99999999999", b"7" * 5000))
    return content[:place] + digits + content[place + 1 :]


_ANYWHERE: tuple[Mutator, ...] = (
    *(_flip, _flip, _flip, _cut, _delete, _repeat, _insert, _overwrite, _overwrite),
    *(_zero, _other_digit),
)


def varint(number: int) -> bytes:
    """Write a whole number as protocol buffers and Thrift do."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


# --- JSON ------------------------------------------------------------------------------------------


def odd_value(rng: random.Random) -> Any:
    """Return something that is seldom expected."""
    return rng.choice(
        (
            rng.choice(NUMBERS),
            rng.choice(NUMBERS),
            rng.choice(NAMES),
            *(None, True, False, [], {}, [[]], {"": {}}, "1", DEEP),
            [rng.choice(NUMBERS)] * rng.choice((1, 3, 100)),
            {str(n): n for n in range(3)},
            [["a", [1, 2]]],
        )
    )


def change_value(rng: random.Random, value: Any) -> Any:
    """Replace, drop, repeat or rename one part of a value that JSON can hold."""
    places = list(_walk(value))
    holder, key = rng.choice(places) if places else (None, None)
    if holder is None:
        return odd_value(rng)
    kind = rng.randrange(6)
    if kind <= 2:
        holder[key] = odd_value(rng)
    elif kind == 3:
        del holder[key]
    elif isinstance(holder, list):
        holder.extend([holder[key]] * rng.choice((1, 50)))
    elif kind == 4:
        holder[rng.choice(NAMES)] = holder.pop(key)
    else:
        holder[f"{TWICE}{key}"] = odd_value(rng)
    return value


def _walk(value: Any) -> Iterator[tuple[Any, Any]]:
    if not isinstance(value, dict | list):
        return
    for key, below in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        yield from _walk(below)


def dump(value: Any) -> bytes:
    """Write JSON, also what is no good JSON: not finite, nested too deep, names that come twice."""
    text = json.dumps(value).replace(TWICE, "")
    if DEEP in text:
        text = text.replace(f'"{DEEP}"', "[" * 100_000 + "]" * 100_000)
    return text.encode()


def damage_json(rng: random.Random, content: bytes) -> bytes:
    """Change a JSON document where it can be parsed, else its bytes."""
    try:
        value = json.loads(content)
    except ValueError:
        return damage(rng, content)
    for _ in range(rng.choice((1, 1, 2))):
        value = change_value(rng, value)
    return dump(value)


# --- safetensors -----------------------------------------------------------------------------------

Sign = Callable[[dict[str, Any], bytes], None]  # puts the checksums of a header right


def split_safetensors(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header and the data of a good file."""
    (size,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def join_safetensors(header: bytes, data: bytes, size: int | None = None) -> bytes:
    """Put a file together, with any length of the header declared."""
    return struct.pack("<Q", len(header) if size is None else size & (2**64 - 1)) + header + data


def damage_safetensors(rng: random.Random, content: bytes, sign: Sign) -> bytes:
    """Change the header, a note in it, a tensor's entry, the data, or any bytes."""
    header, data = split_safetensors(content)
    notes = header.get("__metadata__", {})
    names = [name for name in header if name != "__metadata__"]
    kind = rng.randrange(9)
    if kind <= 1:
        return damage(rng, content)
    if kind == 2:
        key = rng.choice(sorted(notes))
        notes[key] = _damage_note(rng, notes[key])
    elif kind == 3:
        key = rng.choice([key for key in sorted(notes) if notes[key][:1] in "{["] or sorted(notes))
        text = damage_json(rng, notes[key].encode())
        notes[key] = text.decode(errors="replace")
    elif kind == 4:
        _damage_entry(rng, header, rng.choice(names))
    elif kind == 5:
        data = rng.choice((damage(rng, data), data + bytes(8), data * 3, b""))
        _fit_offsets(header, names, len(data))
    elif kind == 6:
        header = change_value(rng, header)
    elif kind == 7:
        size = rng.choice([n for n in NUMBERS if isinstance(n, int)])
        return join_safetensors(dump(header), data, size)
    else:
        one, other = rng.choice(names), rng.choice(names)
        header[one], header[other] = header[other], header[one]
    if rng.random() < 0.7 and isinstance(header, dict):
        with contextlib.suppress(Exception):  # there may be nothing left that could be signed
            sign(header, data)
    return join_safetensors(dump(header), data)


def _damage_note(rng: random.Random, text: str) -> str:
    if rng.random() < 0.5:
        return damage(rng, text.encode()).decode(errors="replace")
    return str(rng.choice((*NAMES, *NUMBERS, "[" * 100_000, '{"a":' * 100_000)))


def _damage_entry(rng: random.Random, header: dict[str, Any], name: str) -> None:
    entry = header[name]
    kind = rng.randrange(6)
    if kind == 0:
        entry["dtype"] = rng.choice(DTYPES)
    elif kind == 1:
        entry["shape"] = [rng.choice(NUMBERS) for _ in range(rng.choice((0, 1, 2, 4, 100)))]
    elif kind == 2:
        entry["data_offsets"] = [rng.choice(NUMBERS), rng.choice(NUMBERS)]
    elif kind == 3:
        begin, end = entry["data_offsets"]
        dtype, width = rng.choice((("U8", 1), ("I8", 1), ("BOOL", 1), ("F16", 2), ("I64", 8)))
        number = max(0, end - begin) // width
        entry["dtype"], entry["shape"] = dtype, rng.choice(([number], [1, number], [number, 1]))
    elif kind == 4:
        header[rng.choice(NAMES)] = header.pop(name)
    else:
        begin, _ = entry["data_offsets"]
        entry["shape"], entry["data_offsets"] = [0], [begin, begin]


def _fit_offsets(header: dict[str, Any], names: Sequence[str], size: int) -> None:
    """Let the last tensor end where the data do, so that the library opens the file."""
    last = max(names, key=lambda name: header[name]["data_offsets"][1])
    begin = min(header[last]["data_offsets"][0], size)
    header[last]["data_offsets"] = [begin, size]
    header[last]["shape"] = [size - begin]
    header[last]["dtype"] = "U8"


# --- parquet ---------------------------------------------------------------------------------------


def damage_parquet(rng: random.Random, content: bytes) -> bytes:
    """Change the footer with its length put right, a page, the length itself, or any bytes."""
    (size,) = struct.unpack("<I", content[-8:-4])
    body, footer = content[: -8 - size], content[-8 - size : -8]
    kind = rng.randrange(6)
    if kind <= 1:
        footer = damage(rng, footer)
    elif kind == 2:
        place = rng.randrange(len(footer))
        number = rng.choice([n for n in NUMBERS if isinstance(n, int)]) & (2**64 - 1)
        # Thrift writes signed numbers in zigzag, so the absurd ones are even
        footer = footer[:place] + varint(2 * number) + footer[place + rng.randint(0, 3) :]
    elif kind == 3:
        body = body[:4] + damage(rng, body[4:])
    elif kind == 4:
        absurd = rng.choice((0, 1, 7, 2**31 - 1, 2**31, 2**32 - 1, size + 1, size - 1, 2 * size))
        return content[:-8] + struct.pack("<I", absurd) + content[-4:]
    else:
        return damage(rng, content)
    return body + footer + struct.pack("<I", len(footer)) + content[-4:]
