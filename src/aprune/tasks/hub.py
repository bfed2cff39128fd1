"""Where a known data set is: under `$APRUNE_DATA`, in the Hub's cache, or on the Hub."""

import os
from pathlib import Path

from aprune.errors import TaskError
from aprune.tasks.parquet import ParquetSet, find_shards

_PATIENCE = 5.0  # seconds to wait for the Hub's first answer


def locate(known: ParquetSet) -> Path | None:
    """Return the folder with the files of a data set if it is on this machine.

    Args:
        known: The data set.

    Returns:
        The folder, or `None`; the network is not asked.

    Raises:
        TaskError: Some of its files are there, but not all.
    """
    places = []
    if os.environ.get("APRUNE_DATA"):
        places.append(Path(os.environ["APRUNE_DATA"]) / known.name / known.config)
    downloaded = _ask_hub(known, fetch=False)
    if isinstance(downloaded, Path):
        places.append(downloaded)
    for place in places:
        train, test = find_shards(place, "train"), find_shards(place, "test")
        if train and test:
            return place
        if train or test:
            lacking = "test" if train else "train"
            raise TaskError(f"{place} has no {lacking}-*.parquet; get {known.name} again")
    return None


def obtain(known: ParquetSet) -> Path:
    """Return the folder with the files of a data set, fetched from the Hub if need be.

    Args:
        known: The data set.

    Returns:
        The folder.

    Raises:
        TaskError: It is neither here nor can it be fetched; says what to do.
    """
    place = locate(known)
    if place is not None:
        return place
    fetched = _ask_hub(known, fetch=True)
    if isinstance(fetched, Path) and find_shards(fetched, "train") and find_shards(fetched, "test"):
        return fetched
    root = os.environ.get("APRUNE_DATA")
    layout = f"{known.name}/{known.config}"
    here = f"APRUNE_DATA={root} has no {layout}" if root else "APRUNE_DATA is not set"
    reason = "the files are not there" if isinstance(fetched, Path) else fetched
    raise TaskError(
        f"{known.name} is not on this machine ({here}) and cannot be fetched from the Hugging Face"
        f" Hub ({known.repository}: {reason}); set APRUNE_DATA to a folder that holds"
        f" {layout}/train-*.parquet and test-*.parquet, or connect to the network"
    )


def _ask_hub(known: ParquetSet, *, fetch: bool) -> Path | str:
    """Return the folder with what came from the Hub, or the reason why there is none."""
    from huggingface_hub import HfApi, snapshot_download

    try:
        if fetch:
            # Asked first with a time limit, because the download itself would wait for ever.
            HfApi().dataset_info(known.repository, timeout=_PATIENCE)
        snapshot = snapshot_download(
            known.repository,
            repo_type="dataset",
            allow_patterns=[f"{known.config}/*.parquet"],
            etag_timeout=_PATIENCE,
            local_files_only=not fetch,
        )
    # Which exceptions come through depends on the HTTP library beneath and its version.
    except Exception as error:
        return _shorten(error)
    return Path(snapshot) / known.config


def _shorten(error: Exception) -> str:
    """Return the first line of an error message."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(". ") if lines else type(error).__name__
