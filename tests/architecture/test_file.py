import json
import random
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file

from aprune.architecture import Architecture
from aprune.architecture.file import _checksum
from aprune.architecture.shape import fingerprint
from aprune.errors import ArchitectureError, FileError


def small(provenance=None):
    masks = {
        "features.0.weight": torch.arange(2 * 3 * 3 * 3).view(2, 3, 3, 3) % 3 == 0,
        "a.head": torch.tensor([[True, False, True], [False, False, True]]),
    }
    return Architecture(masks, provenance or {"method": "ap", "seed": 3, "rates": [0.1, 1e-4]})


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "small.arch.safetensors"
    small().save(path)
    return path


def split(content):
    size = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def join(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def rewrite(path, *, data=None, tensors=None, drop=(), **metadata):
    """Change a file and make the checksum fit, so that nothing but the change is wrong."""
    header, old = split(path.read_bytes())
    data = old if data is None else data
    notes = header.pop("__metadata__") | metadata
    notes["checksum"] = _checksum(notes["tensors"], notes["provenance"], [data])
    notes = {key: value for key, value in notes.items() if key not in drop}
    path.write_bytes(join({"__metadata__": notes} | (tensors or header), data))


def refusal(path):
    """Load what must not load; return the sentence without the path."""
    with pytest.raises(ArchitectureError) as caught:
        Architecture.load(path)
    message = str(caught.value)
    assert message.startswith(f"cannot load {path}: ")
    assert "\n" not in message
    assert len(message) < len(str(path)) + 200
    return message.removeprefix(f"cannot load {path}: ")


@given(
    shapes=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
            lambda name: name != "__metadata__"
        ),
        st.lists(st.integers(1, 6), min_size=1, max_size=4),
        min_size=1,
        max_size=4,
    ),
    seed=st.integers(0, 1000),
    provenance=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False),
    ),
)
def test_what_is_saved_is_loaded(tmp_path_factory, shapes, seed, provenance):
    generator = torch.Generator().manual_seed(seed)
    masks = {name: torch.rand(shape, generator=generator) < 0.5 for name, shape in shapes.items()}
    arch = Architecture(masks, provenance)
    path = tmp_path_factory.mktemp("saved") / "x.arch.safetensors"
    arch.save(path)
    loaded = Architecture.load(path)
    assert loaded == arch
    assert loaded.names == tuple(shapes)
    assert loaded.provenance == arch.provenance == provenance
    assert loaded.kept == arch.kept


def test_the_file_by_hand(saved):
    with safe_open(saved, framework="numpy") as file:
        notes = file.metadata()
    assert notes["format"] == "aprune.architecture"
    assert notes["version"] == "1"
    assert notes["fingerprint"] == small().fingerprint
    assert json.loads(notes["tensors"]) == [["features.0.weight", [2, 3, 3, 3]], ["a.head", [2, 3]]]
    assert json.loads(notes["provenance"]) == {"method": "ap", "seed": 3, "rates": [0.1, 1e-4]}
    tensors = load_file(saved)
    # Every third of 54 connections: 01001001 … from the lowest bit on; then x.x..x.
    assert tensors["features.0.weight"].tolist() == [73, 146, 36, 73, 146, 36, 9]
    assert tensors["a.head"].tolist() == [0b100101]


def test_equal_architectures_make_equal_files(tmp_path, saved):
    small().save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == saved.read_bytes()


@pytest.mark.parametrize("shapes", [{"a": (100, 1000)}, {"a": (3, 3), "b": (8, 8, 3, 3)}])
def test_a_connection_takes_a_bit(tmp_path, shapes):
    Architecture({k: torch.ones(s, dtype=torch.bool) for k, s in shapes.items()}).save(
        tmp_path / "x"
    )
    content = (tmp_path / "x").read_bytes()
    data = split(content)[1]
    assert len(data) == sum(-(-torch.Size(s).numel() // 8) for s in shapes.values())
    assert len(content) - len(data) < 1000
    assert (len(content) - len(data)) % 8 == 0


def test_saving_makes_the_folder_and_adds_no_suffix(tmp_path):
    small().save(tmp_path / "new" / "deep" / "name")
    assert [x.name for x in (tmp_path / "new" / "deep").iterdir()] == ["name"]
    assert Architecture.load(str(tmp_path / "new" / "deep" / "name")) == small()


def test_saving_where_nothing_can_be_written(tmp_path, saved):
    with pytest.raises(FileError, match="cannot write"):
        small().save(saved / "below-a-file")
    with pytest.raises(FileError, match="cannot write"):
        small().save(tmp_path)
    assert list(tmp_path.iterdir()) == [saved]


def test_no_file(tmp_path):
    assert refusal(tmp_path / "absent") == (
        "there is no such file; expected a file that `aprune find` wrote"
    )
    assert refusal(tmp_path) == "it is a folder; expected a file that `aprune find` wrote"
    assert refusal(tmp_path / ("long" * 100))
    assert refusal(tmp_path / "nul\0")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 7,
        b"PK\x03\x04 some archive",
        b"\xff" * 100,
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 100_000_001) + b"{}",
        join(b"{}", b"")[:-1],
        join(b"[1]", b""),
        join(b"[" * 100_000, b""),
        join(b'{"a":' * 100_000, b""),
        join(b"\xff\xfe{}", b""),
        join({"a": {"dtype": "U8", "shape": [-1], "data_offsets": [0, 1]}}, b"x"),
        join({"a": {"dtype": "U8", "shape": [2**40, 2**40], "data_offsets": [0, 1]}}, b"x"),
        join({"a": {"dtype": "U8", "shape": [2**50], "data_offsets": [0, 2**50]}}, b"x"),
        join({"a": {"dtype": "object", "shape": [1], "data_offsets": [0, 1]}}, b"x"),
    ],
)
def test_not_safetensors(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    assert refusal(tmp_path / "x") == "it is truncated, damaged, or no safetensors file at all"


def test_every_truncation(saved):
    content = saved.read_bytes()
    for length in range(0, len(content), 7):
        saved.write_bytes(content[:length])
        refusal(saved)
    saved.write_bytes(content + b"\0")
    refusal(saved)


def test_foreign_safetensors(saved):
    for metadata in ({}, {"format": "pt"}):
        saved.write_bytes(join({"__metadata__": metadata}, b""))
        assert refusal(saved) == "it is a safetensors file, but not of an architecture"
    saved.write_bytes(join({}, b""))
    assert refusal(saved) == "it is a safetensors file, but not of an architecture"


def test_newer_version(saved):
    rewrite(saved, version="2")
    assert refusal(saved) == "written by a newer aprune (format 2); this one reads 1: upgrade"


@pytest.mark.parametrize("version", ["0", "-1", "1.0", "", "²", "9" * 5000, "one\ntwo"])
def test_no_version(saved, version):
    rewrite(saved, version=version)
    assert refusal(saved).startswith("the file is damaged: its version is ")


@pytest.mark.parametrize("key", ["fingerprint", "tensors", "provenance", "checksum"])
def test_missing_metadata(saved, key):
    rewrite(saved, drop=[key])
    assert refusal(saved) == f"the file is damaged: it has no {key}"


def test_wrong_fingerprint(saved):
    rewrite(saved, fingerprint="0" * 64)
    assert refusal(saved) == "the file is damaged: its shapes do not have its fingerprint"


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ("", "its shapes cannot be read"),
        ("{", "its shapes cannot be read"),
        ("3", "its shapes cannot be read"),
        ("[" * 100_000, "its shapes cannot be read"),
        ('[["a", 3]]', "its shapes cannot be read"),
        ('[[["a"], [3]]]', "its shapes cannot be read"),
        ('[["a", [1], 2]]', "its shapes cannot be read"),
        (f'[["a", [{"9" * 5000}]]]', "its shapes cannot be read"),
        ('[["a", [2]], ["a", [2]]]', "a name appears twice"),
        ('[["a", [2.0]]]', "a size is not a whole number"),
        ('[["a", [true]]]', "a size is not a whole number"),
        ('[["a", ["2"]]]', "a size is not a whole number"),
        ('[["a", [NaN]]]', "a size is not a whole number"),
        ('{"ab": 1}', "a size is not a whole number"),
        ("[]", "there is no mask"),
        ("{}", "there is no mask"),
        ('[["a", []]]', "has 0 dimensions"),
        (json.dumps([["a", [1] * 5000]]), "has 5000 dimensions"),
        ('[["a", [0]]]', "is 0: expected sizes of 1 or more"),
        ('[["a", [4, -4]]]', "is 4×-4: expected sizes of 1 or more"),
        (f'[["a", [{2**40}, {2**40}]]]', "expected fewer connections"),
        (f'[["a", [{"9" * 4000}]]]', "is …: expected fewer connections"),
        ("[[3, [3]]]", "a mask is called 3"),
        ('[["__metadata__", [3]]]', "a mask is called"),
        ('[["\\ud800", [3]]]', "a mask is called"),
    ],
)
def test_absurd_shapes(saved, tensors, reason):
    header, data = split(saved.read_bytes())
    header["__metadata__"]["tensors"] = tensors
    saved.write_bytes(join(header, data))
    assert reason in refusal(saved)


@pytest.mark.parametrize(
    "provenance",
    [
        "",
        "[]",
        "null",
        "3",
        "{",
        '{"a": 1, "a": 2}',
        '{"x": {"a": 1, "a": 2}}',
        '{"a": NaN}',
        '{"a": 1e999}',
        '{"a": "\\ud800"}',
        '{"a": ' * 100_000,
        f'{{"a": {"9" * 5000}}}',
    ],
)
def test_provenance_that_is_no_object(saved, provenance):
    rewrite(saved, provenance=provenance)
    assert "provenance" in refusal(saved)


def entry(begin, end, dtype="U8", shape=None):
    return {"dtype": dtype, "shape": shape or [end - begin], "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"features.0.weight": entry(0, 8)}, "its masks are not those that it names"),
        (
            {"features.0.weight": entry(0, 7), "other": entry(7, 8)},
            "its masks are not those that it names",
        ),
        (
            {"features.0.weight": entry(0, 6), "a.head": entry(6, 8)},
            "the mask of 'features.0.weight' is not 7 bytes",
        ),
        (
            {"features.0.weight": entry(0, 7, "I8"), "a.head": entry(7, 8)},
            "the mask of 'features.0.weight' is not 7 bytes",
        ),
        (
            {"features.0.weight": entry(0, 7), "a.head": entry(7, 8, "BOOL")},
            "the mask of 'a.head' is not 1 bytes",
        ),
        (
            {"features.0.weight": entry(0, 7, shape=[7, 1]), "a.head": entry(7, 8)},
            "the mask of 'features.0.weight' is not 7 bytes",
        ),
    ],
)
def test_masks_that_do_not_fit(saved, tensors, reason):
    rewrite(saved, tensors=tensors)
    assert reason in refusal(saved)


@pytest.mark.parametrize("shape", [[10**12], [10**6, 10**6], [2**62], [9]])
def test_a_few_bytes_do_not_make_many_connections(saved, shape):
    tensors = json.dumps([["a", shape]], separators=(",", ":"))
    mask = {"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
    rewrite(
        saved,
        data=b"\0",
        tensors=mask,
        **{"fingerprint": fingerprint({"a": tuple(shape)})},
    )
    header, data = split(saved.read_bytes())
    header["__metadata__"]["tensors"] = tensors
    saved.write_bytes(join(header, data))
    assert "the mask of 'a' is not " in refusal(saved)


def test_bits_after_the_last_connection(saved):
    data = split(saved.read_bytes())[1]
    rewrite(saved, data=data[:-1] + bytes([data[-1] | 0b1000000]))
    assert refusal(saved) == (
        "the file is damaged: the mask of 'a.head' has bits after its last connection"
    )


def test_one_flipped_connection(saved):
    content = saved.read_bytes()
    saved.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert refusal(saved) == "the file is damaged: its content does not have its checksum"


def mutate(content, rng):
    """Damage a file: flip, cut, repeat, overwrite, or change the text of its header."""
    damaged = bytearray(content)
    size = struct.unpack("<Q", content[:8])[0]
    kind = rng.randrange(5)
    place = rng.randrange(8 + size) if rng.random() < 0.8 else rng.randrange(len(content))
    if kind == 0:
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del damaged[place : place + rng.randint(1, 40)]
    elif kind == 2:
        damaged[place:place] = damaged[place : place + rng.randint(1, 40)]
    elif kind == 3:
        damaged[place] = rng.choice(b'{}[]",:0129-.eE\\untfal \x00\xff')
    else:
        header = content[8 : 8 + size]
        digits = [i for i in range(size) if header[i : i + 1].isdigit()]
        header = bytearray(header)
        header[rng.choice(digits)] = rng.choice(b"0123456789")
        return join(bytes(header), content[8 + size :])
    if kind in (1, 2) and rng.random() < 0.5:
        # With a length that fits, so that the damage gets past the first check.
        damaged[:8] = struct.pack("<Q", size + len(damaged) - len(content))
    return bytes(damaged)


def test_any_damage_is_refused_or_harmless(saved):
    content, arch, rng = saved.read_bytes(), small(), random.Random(0)
    messages = []
    for _ in range(600):
        saved.write_bytes(mutate(content, rng))
        try:
            loaded = Architecture.load(saved)
        except ArchitectureError as error:
            messages.append(str(error))
        else:
            assert loaded == arch
            assert loaded.provenance == arch.provenance
    assert all(message.startswith(f"cannot load {saved}: ") for message in messages)
    assert not any("\n" in message for message in messages)
    # The damage reaches every depth of the checks, and little of it is harmless.
    assert len(set(messages)) > 8
    assert len(messages) > 500
