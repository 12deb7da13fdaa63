"""A Mooncake master on loopback for the length of a run.

Its metadata server listens on all addresses whatever it is told, and so do the clients' transfer ports. So that nobody
outside can reach them, a launcher calls :func:`enter_namespace` first: the service that it starts and the ranks that it
forks then live in a network of their own that has nothing but loopback (gloo needs ``GLOO_SOCKET_IFNAME=lo`` there).
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib.util
import os
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path
from types import TracebackType

from hicache_doctor.errors import UsageError
from hicache_doctor.runtime import executables

CLONE_NEWUSER = 0x1000_0000
CLONE_NEWNET = 0x4000_0000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
PR_SET_PDEATHSIG = 1
HOST = "127.0.0.1"
MASTER = "mooncake_master"
UP_WITHIN = 20.0
DOWN_WITHIN = 5.0


def missing() -> str | None:
    """What Mooncake lacks on this machine, in one line; None if nothing."""
    if importlib.util.find_spec("mooncake") is None:
        return "mooncake is not installed: pip install mooncake-transfer-engine-non-cuda"
    try:
        ctypes.CDLL("libibverbs.so.1")
    except OSError:
        return "mooncake needs libibverbs.so.1, even over TCP: apt-get install libibverbs1"
    if executables.find(MASTER) is None:
        return "mooncake_master is not on PATH: it comes with pip install mooncake-transfer-engine-non-cuda"
    return None


def enter_namespace() -> str | None:
    """Move this thread, and whatever it forks or starts from now on, into a network with nothing but loopback.

    Call it first thing in a launcher process, while it has one thread; there is no way back. Returns None, or why it
    cannot be done (then the ports are open to whoever reaches this machine).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWNET) != 0:
        if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
            return f"no network namespace of its own: {os.strerror(ctypes.get_errno())}"
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as f:
                f.write(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        request = struct.pack("16sh22x", b"lo", 0)
        (flags,) = struct.unpack("16xh22x", fcntl.ioctl(s, SIOCGIFFLAGS, request))
        fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | IFF_UP))
    return None


def free_ports(n: int) -> list[int]:
    """Ports of loopback that nobody listens on."""
    held = [socket.socket() for _ in range(n)]
    try:
        for s in held:
            s.bind((HOST, 0))
        return [s.getsockname()[1] for s in held]
    finally:
        for s in held:
            s.close()


class MooncakeService:
    """``mooncake_master`` with its metadata server. A context manager; its log goes to ``folder``.

    The master ends with :meth:`stop`, and also when the thread that started it dies: the kernel sees to that.
    """

    def __init__(self, folder: str | Path) -> None:
        self.log = Path(folder) / "mooncake_master.log"
        self.address = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def start(self) -> str:
        """Start it and wait until it answers; returns the address for ``l3_path``.

        Raises:
            UsageError: something is missing, or the master doesn't come up.
        """
        lacking = missing()
        if lacking:
            raise UsageError(lacking)
        rpc, metadata, metrics = free_ports(3)
        command = [
            str(executables.find(MASTER)),
            f"--rpc_address={HOST}",
            "--rpc_interface=",
            f"--rpc_port={rpc}",
            "--enable_http_metadata_server=true",
            f"--http_metadata_server_host={HOST}",
            f"--http_metadata_server_port={metadata}",
            f"--metrics_host={HOST}",
            f"--metrics_port={metrics}",
        ]
        with open(self.log, "wb") as log:
            # A launcher has one thread when it starts a service, so code between fork and exec is safe.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_end_with_parent,  # noqa: PLW1509
            )
        self._owner = os.getpid()
        try:
            for port in (rpc, metadata):
                self._wait_for(port)
        except BaseException:
            self.stop()
            raise
        self.address = f"{HOST}:{rpc}/{metadata}"
        return self.address

    def stop(self) -> None:
        """End it; does nothing in a forked child, or the second time."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(DOWN_WITHIN)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def how_it_ended(self) -> str:
        """One line when the master is gone although nobody stopped it; empty otherwise."""
        code = None if self._process is None else self._process.poll()
        if code is None:
            return ""
        why = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"mooncake_master (pid {self.pid}) ended during the run, by {why}: L3 was down from then on"

    @property
    def pid(self) -> int:
        """The master's process; 0 while there is none."""
        return self._process.pid if self._process is not None else 0

    def _wait_for(self, port: int) -> None:
        assert self._process is not None
        end = time.monotonic() + UP_WITHIN
        while time.monotonic() < end:
            if self._process.poll() is not None:
                break
            try:
                socket.create_connection((HOST, port), 0.2).close()
                return
            except OSError:
                time.sleep(0.02)
        last = self.log.read_text(errors="replace").strip().splitlines()[-1:]
        raise UsageError(f"mooncake_master does not come up (see {self.log}): {' '.join(last) or 'it says nothing'}")

    def __enter__(self) -> MooncakeService:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
