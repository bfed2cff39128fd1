"""Reading the table of rows that a comparison writes."""

from pathlib import Path
from typing import TYPE_CHECKING

from aprune.errors import FileError
from aprune.files import printable
from aprune.tasks.pages import check_whole, opened

if TYPE_CHECKING:
    import pandas as pd


def read_rows(path: Path) -> "pd.DataFrame":
    """Read a table of rows as a comparison writes it.

    Raises:
        FileError: It is no table, or declares more than its size allows.

    Example:
        >>> import tempfile
        >>> import pandas as pd
        >>> path = Path(tempfile.mkdtemp()) / "rows.parquet"
        >>> pd.DataFrame({"seed": [0, 1]}).to_parquet(path)
        >>> read_rows(path).seed.tolist()
        [0, 1]
    """
    import pyarrow as pa

    try:
        check_whole(path)
        with opened(path, ()) as file:
            # without what the file says on how pandas had it, which could be anything
            return file.read().to_pandas(ignore_metadata=True)
    except (ValueError, TypeError, OSError, pa.ArrowException) as error:
        raise FileError(
            f"{printable(path)} cannot be read as rows ({printable(error)[:200]}): expected a parquet"
            " file as `aprune compare` writes it"
        ) from error
