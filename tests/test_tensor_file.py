"""Files of tensors: what the library reads is what was written, and equal tensors are equal files."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from aprune.errors import FileError
from aprune.tensor_file import _KINDS, pieces_of

ODD = {
    "an odd number of bytes": torch.arange(7, dtype=torch.uint8),
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "a part": torch.arange(24.0).view(4, 6)[:, ::2],
    "one number": torch.tensor(2.5, dtype=torch.float64),
    "none": torch.zeros(0, 3),
    'quoted "Ä"': torch.tensor([True, False, True]),
    "parameter": torch.nn.Parameter(torch.ones(2)),
    **{str(kind): torch.ones(3, dtype=kind) for kind in _KINDS},
}


def test_all_kinds_and_shapes_come_back(tmp_path: Path) -> None:
    path = tmp_path / "odd.safetensors"
    with path.open("wb") as file:
        file.writelines(pieces_of({"b": "1", "a": 'two "words"'}, ODD))
    with safe_open(path, framework="pt") as read:
        assert read.metadata() == {"b": "1", "a": 'two "words"'}
        assert set(read.keys()) == set(ODD)
        for name, tensor in ODD.items():
            back = read.get_tensor(name)
            assert back.dtype == tensor.dtype
            assert torch.equal(back, tensor), name


def test_equal_tensors_make_equal_files() -> None:
    again = {name: tensor.detach().clone() for name, tensor in ODD.items()}
    first, second = (b"".join(map(bytes, pieces_of({"a": "1"}, part))) for part in (ODD, again))
    assert first == second


def test_two_names_for_one_tensor_are_stored_twice(tmp_path: Path) -> None:
    shared = torch.arange(3.0)
    path = tmp_path / "shared.safetensors"
    path.write_bytes(b"".join(map(bytes, pieces_of({}, {"a": shared, "b": shared}))))
    with safe_open(path, framework="pt") as read:
        assert torch.equal(read.get_tensor("a"), read.get_tensor("b"))


def test_a_type_that_no_file_can_hold_is_named() -> None:
    with pytest.raises(FileError, match=r"'wave', a tensor of torch\.complex128"):
        list(pieces_of({}, {"wave": torch.ones(2, dtype=torch.complex128)}))
