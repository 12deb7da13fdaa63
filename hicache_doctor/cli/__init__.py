"""The command line: arguments, exit codes, wiring. One thin file a command, each imported only when it runs."""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import Any

import typer
import typer.main
from typer.core import TyperGroup

from hicache_doctor import __version__
from hicache_doctor.errors import DoctorError

# name → (module, one line for the top-level help). Kept here so that --help imports none of them.
COMMANDS = {
    "analyze": ("hicache_doctor.cli.analyze", "From crash artefacts to the signature, the first rank and the PR."),
    "query": ("hicache_doctor.cli.query", "Ask a kept incident database in SQL, read-only."),
    "kb": ("hicache_doctor.cli.kb", "Pull requests, releases, and which fix is in which release."),
    "rules": ("hicache_doctor.cli.rules", "List, show, check and test the rules that decide."),
    "reproduce": ("hicache_doctor.cli.reproduce", "Make a known incident, diagnose it, prove the diagnosis."),
    "runtime": ("hicache_doctor.cli.runtime", "Run the reference PP + L2/L3 cache runtime in real processes."),
}
LATER = {
    "live": "attach to a running deployment",
    "readiness": "the go/no-go report",
    "simulate": "explore schedules of the reference runtime",
    "scan": "which fixes an installed tree contains",
    "collect": "bundle the artefacts of a host",
    "diff": "compare two incidents",
    "trace": "export a timeline",
    "self-check": "check this installation",
}
EPILOG = """\b
Examples:
  hicache-doctor analyze crash.dump
  hicache-doctor analyze logs/ stacks/ metrics.prom --sglang 0.5.14
  kubectl logs prefill-0 | hicache-doctor analyze -
  hicache-doctor kb missing-in 0.5.16"""


# Newer typers carry a click of their own: its classes are reached through typer's, whichever it is.
_UsageError: Any = typer.BadParameter.__mro__[1]
_ClickException: Any = typer.BadParameter.__mro__[2]


class _Lazy(TyperGroup):
    """Commands by name; a module is imported when its command is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in LATER:
            raise _UsageError(f"'{cmd_name}' ({LATER[cmd_name]}) is not part of this version yet")
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


app = typer.Typer(
    cls=_Lazy,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    epilog=EPILOG,
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"hicache-doctor {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    """Forensics for SGLang with pipeline parallelism and HiCache: from what the crash left to the root-cause PR."""


def main(args: list[str] | None = None) -> Any:
    """Run the command line and exit with its code: 2 usage, 3 unreadable, 70 our own failure, 130 Ctrl-C."""
    _utf8(sys.stdout)
    _utf8(sys.stderr)
    try:
        code = app(args=args, standalone_mode=False)
        sys.stdout.flush()
        if code == 130:  # typer turns Ctrl-C into a silent exit
            _complain("interrupted")
        sys.exit(code if isinstance(code, int) else 0)
    except DoctorError as e:
        _complain(str(e))
        sys.exit(e.exit_code)
    except _UsageError as e:
        _misused(e)
        sys.exit(2)
    except _ClickException as e:
        e.show()
        sys.exit(e.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        _complain("interrupted")
        sys.exit(130)
    except BrokenPipeError:
        _reader_gone()
    except SystemExit as e:
        # Typer makes 1 of a closed pipe, which would say that a signature was found.
        if isinstance(e.__context__, BrokenPipeError):
            _reader_gone()
        raise
    except Exception as e:
        if os.environ.get("HICACHE_DOCTOR_TRACEBACK"):
            raise
        _complain(
            f"internal error: {type(e).__name__}: {e}; set HICACHE_DOCTOR_TRACEBACK=1 for the traceback and report it"
        )
        sys.exit(70)


def _misused(error: Any) -> None:
    """What is wrong with the command line and where to read on, in one line; no arguments at all is the help."""
    text = error.format_message()
    if "\n" in text:
        error.show()
        return
    path = error.ctx.command_path if error.ctx is not None else "hicache-doctor"
    path = path.replace("python -m hicache_doctor", "hicache-doctor")
    _complain(f"{text.rstrip('.')}; see {path} --help")


def _reader_gone() -> None:
    """The reader of a pipe went away (`| head`): not an error, but Python would complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)


def _complain(text: str) -> None:
    from hicache_doctor.report.clean import printable

    print(f"hicache-doctor: {printable(text)}", file=sys.stderr)


def _utf8(stream: Any) -> None:
    """The report holds characters that a C locale lacks."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")
