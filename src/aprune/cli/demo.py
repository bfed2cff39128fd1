"""`aprune demo`: the whole story on digits and the CPU, in under a minute."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aprune.cli import option
from aprune.cli.output import output_folder, print_table, say

if TYPE_CHECKING:
    from aprune.experiments.comparison import Comparison, TaskChoice

EXAMPLE = "Example: aprune demo --out aprune-demo"


def demo(
    out: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="For figure, table and runs; what is there stays."),
    ] = Path("aprune-demo"),
    fresh: option.Fresh = False,
) -> None:
    """See it work on digits, in under a minute.

    Searches architectures on five digits, carries them to the other five with few images, and
    compares AP with random connections and iterative magnitude pruning over several seeds.
    """
    from aprune.experiments.demo import SETTING, demo

    with output_folder(out):
        say(_tell_setting(SETTING))
        result = demo(out, fresh=fresh)
    print_table(result.table.header, result.table.rows, left=("method",))
    say(result.sentence)
    say(f"Figure: {result.png} and {result.pdf.name}")


def _tell_setting(setting: "Comparison") -> str:
    new = setting.new_task
    return (
        f"Architectures are searched in the parent {setting.parent} on {_name(setting.search_task)},"
        f" get fresh weights, are retrained on {new.images} images of {_name(new)}, and are judged on"
        f" the test images of those; {len(setting.seeds)} seeds."
    )


def _name(task: "TaskChoice") -> str:
    return f"{task.name} {','.join(map(str, task.classes))}"  # type: ignore[arg-type]
