"""`aprune data`: which data sets are on this machine; fetching and checking them."""

from dataclasses import asdict
from typing import Annotated

import typer

from aprune.cli import option
from aprune.cli.output import print_json, print_table, say

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="digits, mnist, cifar10, cifar100, or folder:PATH of your own."
    ),
]


def make_app() -> typer.Typer:
    """Put the three together; without any of them the list is shown."""
    app = typer.Typer(rich_markup_mode=None)
    app.callback(invoke_without_command=True, epilog="Example: aprune data")(_start)
    app.command("list", epilog="Example: aprune data list --json")(list_data)
    app.command("fetch", epilog="Example: aprune data fetch cifar10")(fetch_data)
    app.command("check", epilog="Example: aprune data check folder:pictures")(check_data)
    return app


def _start(context: typer.Context) -> None:
    """List, fetch or check data sets.

    They are looked for under $APRUNE_DATA and in the cache of the Hugging Face Hub.
    """
    if context.invoked_subcommand is None:
        list_data()


def list_data(json: option.Json = False) -> None:
    """List the data sets known by name."""
    from aprune.tasks import describe_data

    known = describe_data()
    if json:
        print_json([asdict(entry) for entry in known])
        return
    print_table(
        ("name", "training images", "test images", "classes", "image", "where"),
        [
            (
                entry.name,
                _count(entry.train),
                _count(entry.test),
                _count(entry.classes),
                _shape(entry.shape),
                f"{entry.where}: {entry.problem}" if entry.problem else entry.where,
            )
            for entry in known
        ],
        left=("name", "where"),
    )
    say("Images of your own: folder:PATH, with one sub-folder for each class.")


def fetch_data(name: Name, json: option.Json = False) -> None:
    """Fetch a data set, unless it is here.

    It comes from the Hugging Face Hub.
    """
    from aprune.tasks import fetch

    where = fetch(name)
    if json:
        print_json({"name": name, "where": where})
    else:
        say(f"{name} is here: {where}")


def check_data(name: Name, json: option.Json = False) -> None:
    """Check every image of a data set.

    All are decoded anew and counted, and their checksum is computed. Files of a folder that are not
    read are counted too.
    """
    from aprune.tasks import check
    from aprune.tasks.layout import name_left_out

    found = check(name)
    if json:
        print_json(asdict(found))
        return
    print_table(
        ("class", "training images", "test images"),
        [
            (label, f"{count:,}", f"{found.test.get(label, 0):,}")
            for label, count in found.train.items()
        ],
        left=("class",),
    )
    say(
        f"{name} ({found.where}) is sound: {sum(found.train.values()):,} training and"
        f" {sum(found.test.values()):,} test images of {_shape(found.shape)}, SHA-256"
        f" {found.checksum}."
    )
    if found.left_out:
        say(f"Not read: {sum(found.left_out.values()):,} ({name_left_out(found.left_out)}).")


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _shape(shape: tuple[int, ...] | None) -> str:
    return "" if shape is None else "×".join(map(str, shape))
