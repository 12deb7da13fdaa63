"""Starting a run from anywhere: a fresh launcher process does the forking.

Ranks are forked from a parent that has imported torch and has one thread. The caller may have many (a progress display,
pytest), so the parent is always a process of its own, ``python -m hicache_doctor.runtime.launch SPEC.json``; with ``-``
it takes one run after the other, a JSON document a line, and imports torch only once. It prints JSON lines.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any

from hicache_doctor.errors import DoctorError, InputError, UsageError
from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.outcome import RunReport
from hicache_doctor.runtime.spec import MAIN, Options, Spec
from hicache_doctor.runtime.world import Tape

Progress = Callable[[dict[str, Any]], None]
_ERRORS: dict[str, type[DoctorError]] = {"UsageError": UsageError, "InputError": InputError}


def run(
    config: Config,
    out_dir: Path,
    *,
    replay: Mapping[int, Tape] | None = None,
    main: str = MAIN,
    on_progress: Progress | None = None,
    options: Options | None = None,
) -> RunReport:
    """Run ``main(world, config)`` on every rank of ``config.topo``; files go under ``out_dir``, which must be empty.

    ``on_progress`` gets ``{"type": "started", "pids"}`` and ``{"type": "progress", "states", "steps"}``.

    Raises:
        UsageError: the topology is impossible or the folder is in use.
        InputError: a rank died at its start, torch is missing, or the disk is full.
        KeyboardInterrupt: after everything was ended and cleaned up.
    """
    with Launcher() as launcher:
        return launcher.run(config, out_dir, replay=replay, main=main, on_progress=on_progress, options=options)


class Launcher:
    """A launcher process for several runs; a context manager. Not for two threads at once."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._complaints: IO[bytes] | None = None

    def __enter__(self) -> Launcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(
        self,
        config: Config,
        out_dir: Path,
        *,
        replay: Mapping[int, Tape] | None = None,
        main: str = MAIN,
        on_progress: Progress | None = None,
        options: Options | None = None,
    ) -> RunReport:
        """As :func:`run`."""
        path = tuple(p or os.getcwd() for p in sys.path)
        spec = Spec(config, Path(out_dir).absolute(), main, options or Options(), replay, path)
        spec.check()
        process = self._started()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(spec.to_json()).encode() + b"\n")
            process.stdin.flush()
            for said in self._lines(process):
                if said["type"] == "report":
                    return RunReport.load(spec.out)
                if said["type"] == "error":
                    raise _ERRORS.get(said["class"], DoctorError)(said["text"])
                if on_progress is not None:
                    on_progress(said)
        except BrokenPipeError:
            pass
        except BaseException:
            self.close()
            raise
        text = self._last_complaint()
        self.close()
        raise InputError(f"the launcher ended without a report{': ' + text if text else ''}")

    def close(self) -> None:
        """End the launcher, and with it every rank: it sees its input close."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None and process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.stdout.close()
            process.wait()
        if self._complaints is not None:
            self._complaints.close()
            self._complaints = None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            # One thread in the parent: OpenBLAS and OpenMP would start their pools when torch is imported.
            env = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            package = str(Path(__file__).resolve().parents[2])
            env["PYTHONPATH"] = os.pathsep.join(filter(None, (package, env.get("PYTHONPATH"))))
            self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the launcher
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hicache_doctor.runtime.launch", "-"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._complaints, env=env,
            )  # fmt: skip
        return self._process

    @staticmethod
    def _lines(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(b"{"):
                yield json.loads(line)

    def _last_complaint(self) -> str:
        if self._complaints is None:
            return ""
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


# -- the launcher process -----------------------------------------------------------------------------------------


class _Wish:
    """Whether somebody wants the run to end: a signal, or the caller's end of the pipe is closed."""

    def __init__(self, *, watch_input: bool) -> None:
        self.stopped = False
        self._watch = watch_input
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.stopped = True

    def __call__(self) -> bool:
        # A caller writes the next run only after the report of this one: anything to read now is the end.
        if self._watch and not self.stopped and select.select([0], [], [], 0)[0]:
            self.stopped = True
        return self.stopped


def _say(words: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody listens any more; the run ends by its input
        os.write(1, json.dumps(words).encode() + b"\n")


@contextlib.contextmanager
def _with_service(spec: Spec) -> Iterator[tuple[Spec, Callable[[], str]]]:
    """Mooncake's master for the length of the run, in a network of its own: its clients listen on every address.

    Yields the run, and what tells whether its service is still there (empty), or how it ended."""
    if spec.config.l3 != "mooncake":
        yield spec, str
        return
    from hicache_doctor.runtime.storage.mooncake_service import MooncakeService, enter_namespace, missing

    spec.check()
    for reason in (missing(), enter_namespace()):
        if reason:
            raise UsageError(reason)
    with tempfile.TemporaryDirectory(prefix="hicache-doctor-l3-") as folder, MooncakeService(folder) as service:
        yield dataclasses.replace(spec, config=spec.config.but(l3_path=service.address)), service.how_it_ended


def _one(document: str, wish: _Wish) -> int:
    try:
        from hicache_doctor.runtime.supervise import supervise

        with _with_service(Spec.from_json(json.loads(document))) as (spec, how_it_ended):
            report = supervise(spec, _say, wish)
            if ended := how_it_ended():
                report.notes.append(ended)
                report.save()
    except DoctorError as e:
        _say({"type": "error", "class": type(e).__name__, "text": str(e)})
        return e.exit_code
    except ValueError as e:
        _say({"type": "error", "class": "UsageError", "text": f"launch: not a description of a run: {e}"})
        return 2
    _say({"type": "report", "out": str(report.out), "outcome": report.outcome})
    return report.exit_code


def _inputs(wish: _Wish) -> Iterator[str]:
    """Documents from standard input, unbuffered: what is buffered would hide from ``select``."""
    data = b""
    while not wish.stopped:
        line, newline, rest = data.partition(b"\n")
        if newline:
            data = rest
            yield line.decode()
            continue
        if not select.select([0], [], [], 0.5)[0]:
            continue  # a signal cannot interrupt a read, so look whether one came
        more = os.read(0, 1 << 16)
        if not more:
            return
        data += more


def serve(arguments: list[str]) -> int:
    """The launcher's command line: a file name, or ``-``; returns the exit code."""
    if len(arguments) != 1:
        print("usage: python -m hicache_doctor.runtime.launch SPEC.json | -", file=sys.stderr)
        return 2
    wish = _Wish(watch_input=arguments[0] == "-")
    try:
        import torch

        torch.set_num_threads(1)
    except ImportError as e:
        text = f"torch cannot be imported ({e}); install it with: pip install 'hicache-doctor[runtime]'"
        _say({"type": "error", "class": "InputError", "text": text})
        return 3
    if arguments[0] != "-":
        try:
            return _one(Path(arguments[0]).read_text(), wish)
        except OSError as e:
            _say({"type": "error", "class": "InputError", "text": f"{arguments[0]}: {e.strerror}"})
            return 3
    code = 0
    for document in _inputs(wish):
        code = _one(document, wish)
        if wish.stopped:
            break
    return code


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:]))
