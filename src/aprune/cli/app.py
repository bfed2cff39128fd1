"""The command `aprune`: its table of verbs, and how it ends when something goes wrong."""

import os
import signal
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Annotated, TextIO

import typer

from aprune.cli import bound, compare, data, demo, find, methods, reproduce, show, transfer
from aprune.cli.output import complain, one_line
from aprune.errors import ApruneError, ApruneWarning, SettingError

UNEXPECTED, WRONG_INPUT, INTERRUPTED, UNREAD, TERMINATED = 1, 2, 130, 141, 143
TOGETHER = ("find", "transfer")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Args:
        arguments: What follows `aprune`; those of this process by default.

    Returns:
        0 if all went well; 2 if the input was wrong, 1 if something broke, 130 if it was interrupted
        and 143 if it was asked to end (SIGTERM), each with one line on stderr; 141, and no line, if
        whoever read the output has gone.

    Example:
        >>> main(["data", "check", "digits", "--json"])  # doctest: +ELLIPSIS
        {...}
        0
    """
    is_process = arguments is None
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given or os.environ.get("APRUNE_DEBUG", "0") not in ("", "0")
    for stream in (sys.stdout, sys.stderr):
        # A terminal that knows no bars and no ± shall see a substitute rather than an error.
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    ending = _Ending(active=is_process)
    command = typer.main.get_command(make_app())
    quiet = _is_told_by_another(None)
    try:
        # Wherever it stands: who saw an error adds it at the end of the line.
        arguments = [word for word in given if word != "--debug"] or ["--help"]
        with warnings.catch_warnings():
            warnings.showwarning = partial(_show_warning, set())
            status = command.main(arguments, prog_name="aprune", standalone_mode=False) or 0
        sys.stdout.flush()
    except _Terminated as error:
        ending.take_no_more()
        status, quiet = TERMINATED, _is_told_by_another(error)
    except KeyboardInterrupt:
        status = INTERRUPTED
    except SystemExit as error:  # libraries make that of a closed pipe, with the status 1
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        return _close_quietly()
    except Exception as error:
        if not ending.status:
            if isinstance(error, BrokenPipeError):
                return _close_quietly()
            if debug and not _is_usage(error):
                raise
            return _report(error, quiet=_is_told_by_another(error))
        status = ending.status
    if status in (INTERRUPTED, TERMINATED):
        what = "interrupted" if status == INTERRUPTED else "terminated"
        if not quiet:
            complain(f"{what}; nothing was half-written")
        if is_process:
            # An interrupt while a library is loading leaves a mark in Python by which it would end
            # itself with a signal after all.
            sys.stderr.flush()
            os._exit(int(status))
    return int(status)


def make_app() -> typer.Typer:
    """Put the verbs together.

    Example:
        >>> len(make_app().registered_commands)
        7
    """
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(epilog="Begin with: aprune demo")(_start)
    app.command("demo", epilog=demo.EXAMPLE)(demo.demo)
    app.command("find", epilog=find.EXAMPLE)(find.find)
    app.command("transfer", epilog=transfer.EXAMPLE)(transfer.transfer)
    app.command("compare", epilog=compare.EXAMPLE)(compare.compare)
    app.command("show", epilog=show.EXAMPLE)(show.show)
    app.command("methods", epilog=methods.EXAMPLE)(methods.methods)
    app.command("bound", epilog=bound.EXAMPLE)(bound.bound)
    app.add_typer(reproduce.make_app(), name="reproduce")
    app.add_typer(data.make_app(), name="data")
    return app


class _Terminated(BaseException):
    """Somebody wants the process to end, by SIGTERM."""


class _Ending:
    """Remembers that somebody asked the process to end, and how.

    A library that is loading when that happens may make any error of it, and lose the reason.

    Attributes:
        status: The exit status that belongs to it; 0 as long as nobody asked.
    """

    def __init__(self, *, active: bool) -> None:
        self.status = 0
        if active:
            signal.signal(signal.SIGTERM, self._terminate)
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if ignored
                signal.signal(signal.SIGINT, self._interrupt)

    def take_no_more(self) -> None:
        """Say the last word in peace: launchers ask twice."""
        if signal.getsignal(signal.SIGTERM) == self._terminate:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def _terminate(self, *_: object) -> None:
        self.status = TERMINATED
        raise _Terminated

    def _interrupt(self, *_: object) -> None:
        self.status = INTERRUPTED
        raise KeyboardInterrupt


_show_other = warnings.showwarning


def _show_warning(
    told: set[str],
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if issubclass(category, ApruneWarning):
        text = one_line(message)
        if text not in told and not _is_told_by_another(None):
            complain(text)
        told.add(text)  # a task may be loaded many times
    else:
        _show_other(message, category, filename, lineno, file, line)


def _print_version(wanted: bool) -> None:
    if wanted:
        from aprune import __version__

        print(f"aprune {__version__}")
        raise typer.Exit()


def _start(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Say which version this is."
        ),
    ] = False,
    debug: Annotated[  # taken out by `main`; here for --help
        bool, typer.Option("--debug", help="Show where an error came from; or APRUNE_DEBUG=1.")
    ] = False,
) -> None:
    """Find small architectures inside large networks and carry them to new tasks."""
    del version, debug  # seen to by now
    verb = context.invoked_subcommand
    if os.environ.get("WORLD_SIZE", "1") != "1" and verb not in TOGETHER:
        raise SettingError(
            f"aprune {verb} was started by torchrun: only {' and '.join(TOGETHER)} can be done by"
            " several processes together; start it alone"
        )


def _report(error: Exception, *, quiet: bool) -> int:
    status, text = _explain(error)
    if not quiet:
        complain(text)
    return status


def _explain(error: Exception) -> tuple[int, str]:
    """Return the exit status and the line that belong to an error."""
    if isinstance(error, ApruneError):
        return WRONG_INPUT, one_line(error)
    if _is_usage(error):
        context = getattr(error, "ctx", None)
        place = context.command_path if context else "aprune"
        message = one_line(error.format_message()).rstrip(".")  # type: ignore[attr-defined]
        see = " See" if message.endswith("?") else "; see"
        return WRONG_INPUT, f"{message[:1].lower()}{message[1:]}{see} {place} --help"
    reason = one_line(f"{type(error).__name__}: {error}").rstrip(": ")
    return (
        UNEXPECTED,
        f"something unexpected broke ({reason}); run it with --debug to see where",
    )


def _is_told_by_another(error: BaseException | None) -> bool:
    """Tell whether another of several processes says what has happened (see `training.ranks`)."""
    one_of_several = os.environ.get("WORLD_SIZE", "1") != "1"
    later = one_of_several and os.environ.get("RANK", "0") != "0"
    return bool(getattr(error, "told_by_another", later))


def _is_usage(error: Exception) -> bool:
    """Tell Typer's own complaints by what they can do: their class moved between versions."""
    return hasattr(error, "format_message")


def _close_quietly() -> int:
    """Let the last flush go nowhere, and end as tools do that SIGPIPE has ended."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return UNREAD
