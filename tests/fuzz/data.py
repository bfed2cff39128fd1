"""What aprune reads to learn from: images, parquet files, folders of images, the cache."""

import io
import json
import os
import random
import tempfile
import zlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from aprune.architecture import Architecture
from aprune.errors import TaskError
from aprune.tasks import load_task
from aprune.tasks.cache import remember
from aprune.tasks.dataset import DataSet
from aprune.tasks.decode import Encoded, decode_images
from aprune.tasks.library import KNOWN
from aprune.tasks.parquet import count_rows, find_shards, read_parquet, read_shape
from aprune.tasks.subset import make_task
from aprune.tasks.task import Augment
from fuzz import mutate, picture
from fuzz.picture import make_png
from fuzz.target import LOADED, SET_ASIDE, Case, Link, Pipe, Target, saved, settle


def encode(kind: str, mode: str = "RGB", side: int = 9, **more: Any) -> bytes:
    """Encode a small picture."""
    values = (np.arange(side * side * 4) * 7 % 256).astype(np.uint8).reshape(side, side, 4)
    picture = Image.fromarray(values, "RGBA")
    if mode == "I;16":
        picture = Image.fromarray(values.astype(np.uint16)[..., 0] * 256)
    elif mode != "RGBA":
        picture = picture.convert("RGB").convert(mode)
    if more.pop("frames", 0):
        more |= {"save_all": True, "append_images": [picture.rotate(90), picture.rotate(180)]}
    stream = io.BytesIO()
    picture.save(stream, kind, **more)
    return stream.getvalue()


def make_images() -> list[bytes]:
    """Make images of every format and of many modes."""
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a description"
    return [
        encode("PNG"),
        encode("PNG", "P"),
        encode("PNG", "1"),
        encode("PNG", "I;16"),
        encode("PNG", "RGBA", exif=exif),
        encode("PNG", frames=3),
        encode("JPEG", exif=exif),
        encode("JPEG", "CMYK"),
        encode("JPEG", "L", progressive=True),
        encode("GIF", "P"),
        encode("GIF", "P", frames=3),
        encode("WEBP", lossless=True),
        encode("WEBP", "RGBA"),
        encode("WEBP", frames=3),
        encode("BMP"),
        encode("BMP", "P"),
        encode("TIFF"),
        encode("TIFF", "CMYK", compression="tiff_lzw"),
        encode("TIFF", "1", compression="group4"),
        encode("TIFF", "F"),
        encode("TIFF", compression="jpeg"),
        encode("TIFF", compression="tiff_adobe_deflate", exif=exif),
        encode("PPM"),
        encode("PPM", "1"),
        b"P3 2 2 255\n1 2 3 4 5 6 7 8 9 10 11 12\n",
    ]


class EncodedImage(Target):
    name = "image"

    @cached_property
    def good(self) -> Case:
        return {"x": encode("PNG")}

    @cached_property
    def _all(self) -> list[bytes]:
        return make_images()

    def damage(self, rng: random.Random) -> Case:
        return {"x": picture.damage_image(rng, rng.choice(self._all))}

    def load(self, folder: Path) -> str:
        content = (folder / "x").read_bytes()
        outcomes: list[Exception] = []
        for mode, size in (("RGB", None), ("L", 8)):
            try:
                decode_images([Encoded(content, "x")], 1, mode=mode, size=size)
            except TaskError as error:
                outcomes.append(error)
        if outcomes:
            raise outcomes[0]
        return LOADED


class ParquetData(Target):
    name = "parquet data"

    @cached_property
    def good(self) -> Case:
        return {
            "train-00000-of-00001.parquet": self._write(),
            "test-00000-of-00001.parquet": self._write(),
        }

    @cached_property
    def _others(self) -> list[bytes]:
        """Files that pyarrow writes and that are not what is expected."""
        picture = encode("PNG")
        many = pa.array([0] * 2_000_000, pa.int64())
        wide = make_png(1_000, 1_000, zlib.compress(bytes(126_000)), depth=1)
        return [
            self._write(compression="gzip", use_dictionary=True),
            self._write(compression="zstd", data_page_version="2.0"),
            self._write(labels=pa.array([0.0, 1.0, 0.5])),
            self._write(labels=pa.array(["0", "1", "x"])),
            self._write(labels=pa.array([0, None, 1])),
            self._write(labels=pa.array([[0], [1], [2]])),
            self._write(labels=pa.array([0, 1, 2**63], pa.uint64())),
            self._write(labels=pa.array([0, 1, 0]).dictionary_encode()),
            self._write(images=pa.array([[picture]] * 3)),
            self._write(images=pa.array([{"bytes": [1, 2]}] * 3)),
            self._write(images=pa.array([{"bytes": None}] * 3)),
            self._write(images=pa.array([None, picture, b""])),
            self._write(images=pa.array(["text"] * 3)),
            # what takes no room in the file takes much in memory
            self._write(images=pa.nulls(len(many), pa.binary()), labels=many),
            self._write(images=pa.array([bytes(30_000_000), picture, picture]), compression="zstd"),
            self._write(images=pa.array([picture + bytes(1_000_000)] * 300), labels=many[:300]),
            self._write(images=pa.array([wide] * 64), labels=many[:64]),
            self._write(images=pa.array([picture] + [wide] * 63), labels=many[:64]),
            self._write(names="[" * 100_000),
            self._write(names='{"info": ' * 100_000),
            self._write(names=self._name_classes(mutate.NAMES)),
        ]

    @staticmethod
    def _name_classes(names: Sequence[str]) -> str:
        return json.dumps({"info": {"features": {"label": {"names": list(names)}}}})

    def _write(
        self, images: Any = None, labels: Any = None, names: str | None = None, **more: Any
    ) -> bytes:
        table = pa.table(
            {
                "image": pa.array(
                    [{"bytes": encode("PNG"), "path": None}] * 3,
                    pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
                )
                if images is None
                else images,
                "label": pa.array([0, 1, 0]) if labels is None else labels,
            }
        )
        header = names or self._name_classes(("a", "b"))
        table = table.replace_schema_metadata({"huggingface": header})
        more = {"compression": "none", "use_dictionary": True, **more}
        return saved(lambda path: pq.write_table(table, path, **more))

    def damage(self, rng: random.Random) -> Case:
        case = dict(self.good)
        name = rng.choice(list(case))
        kind = rng.randrange(20)
        content = rng.choice((case[name], *self._others)) if kind < 4 else case[name]
        assert isinstance(content, bytes)
        if kind == 0:
            case[name] = content
        elif kind == 1:
            case[name] = rng.choice((Pipe(), None, Link("../../outside"), Link("/dev/zero")))
        elif kind == 2:
            part, number = (
                rng.choice(("train", "test")),
                rng.choice(("9" * 11, "9" * 200, "0", "²")),
            )
            case[f"{part}-00000-of-{number}.parquet"] = case.pop(name)
        else:
            case[name] = mutate.damage_parquet(rng, content)
        return case

    def load(self, folder: Path) -> str:
        known = KNOWN["mnist"]
        shards = find_shards(folder, "train")
        try:
            count_rows(shards)
            for shard in shards[:1]:
                read_shape(known, shard)
        except TaskError:
            pass  # the same that the next line finds
        read_parquet(known, folder)
        return LOADED


class ImageFolder(Target):
    name = "image folder"

    @cached_property
    def good(self) -> Case:
        return {f"{c}/{n}.png": encode("PNG") for c in "ab" for n in range(2)}

    @cached_property
    def _all(self) -> list[bytes]:
        return make_images()

    def damage(self, rng: random.Random) -> Case:
        case = dict(self.good)
        name = rng.choice(list(case))
        kind = rng.randrange(8)
        if kind == 0:
            case[rng.choice((b"a/\xff.png", b"\xff\xfe/1.png", b"a/x\ny.png", b"x\ny/1.png"))] = (
                b"x"
            )
        elif kind == 1:
            folder = rng.choice((b"\xff", b"x\ny", b"\x1b[2J", "é" * 100, "..a", "-rf", "$(id)"))
            raw = os.fsencode(folder)
            case |= {raw + b"/1.png": encode("PNG"), raw + b"/2.png": encode("PNG")}
            if rng.random() < 0.5:
                case[raw + b"/3.png"] = b"no image"
        elif kind == 2:
            case[name] = rng.choice(
                (Link("../../../outside"), Link("/dev/zero"), Link("0.png"), Pipe(), None)
            )
        elif kind == 3:
            case[rng.choice(("train", "test", "c", "a/deep"))] = rng.choice(
                (Link(".."), Link("."), Link("/"), Link("a"), None, b"")
            )
        else:
            case[name] = picture.damage_image(rng, rng.choice(self._all))
        return case

    def load(self, folder: Path) -> str:
        task = load_task(f"folder:{folder}", size=8)
        # what a search would keep of it
        Architecture({"a": torch.ones(2, dtype=torch.bool)}, {"task": task.provenance})
        return LOADED


class Cache(Target):
    name = "cache"

    @cached_property
    def good(self) -> Case:
        with tempfile.TemporaryDirectory() as place:
            self._remember(Path(place))
            (path,) = Path(place).iterdir()
            return {path.name: settle(path)}

    def damage(self, rng: random.Random) -> Case:
        ((name, content),) = self.good.items()
        assert isinstance(content, bytes)
        if rng.random() < 0.03:
            return {name: rng.choice((Pipe(), None, Link("/dev/zero"), Link("../../outside")))}
        return {name: mutate.damage_safetensors(rng, content, self._sign)}

    @staticmethod
    def _sign(header: dict[str, Any], data: bytes) -> None:
        tensors = []
        for name in ("train_images", "train_labels", "test_images", "test_labels"):
            kind = {"U8": np.uint8, "I64": np.int64}[header[name]["dtype"]]
            part = np.frombuffer(data[slice(*header[name]["data_offsets"])], kind)
            tensors.append(torch.from_numpy(part.reshape(header[name]["shape"]).copy()))
        made = DataSet.__new__(DataSet)
        for field, value in zip(
            ("train_images", "train_labels", "test_images", "test_labels"), tensors, strict=True
        ):
            object.__setattr__(made, field, value)
        header["__metadata__"]["checksum"] = made.compute_checksum()

    def _remember(self, folder: Path) -> tuple[DataSet, bool]:
        if os.environ.get("APRUNE_CACHE") != str(folder):
            os.environ["APRUNE_CACHE"] = str(folder)
        made = []

        def make() -> DataSet:
            made.append(True)
            images = torch.arange(2 * 3 * 2 * 2).to(torch.uint8).view(2, 3, 2, 2)
            labels = torch.tensor([0, 1])
            more = images.clone(), labels.clone()
            return DataSet("tiny", images, labels, *more, ("a", "b"), Augment(True, 1))

        return remember("tiny", Path("/"), [], "", make), bool(made)

    def load(self, folder: Path) -> str:
        data, made = self._remember(folder)
        make_task(data)
        assert 0 <= data.augment.shift <= 1024
        return SET_ASIDE if made else LOADED
