"""The program of a Slurm task: starts a server on its node, reports its address, and passes signals on.

It needs only Python's standard library. The batch script for `sbatch` ends with this source and a call of `main` with
the plan, which has no secrets, and the job's environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import hmac
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VARIABLES = "OPENENV_TASK_VARIABLES"
"""Variable with the server's variables as JSON, if they are not in a shared folder."""
SECRETS = "OPENENV_TASK_SECRETS"
"""Variable with the secrets among their values, as JSON, the longest first: reports mask them."""
TOKEN = "OPENENV_TASK_TOKEN"  # noqa: S105 - its name
"""Variable with the token by which the trainer authenticates a task."""
TAIL_LINES, LONGEST_LINE, CHUNK = 50, 2000, 65536
# Seconds between two reports of new log lines, if the log is not in a file; and for one attempt to report.
REPORT_EVERY_S, DIAL_S = 1.0, 5.0
LAST_ATTEMPTS = 3
LISTENING = re.compile(r"\bon https?://\[?[\w.:]+?\]?:(\d+)")


def main(plan: dict[str, Any], environ: Mapping[str, str]) -> None:
    """Runs the server of this task until it ends, and exits with its exit code."""
    sys.exit(_Task(plan, dict(environ)).run())


def proof(token: str, challenge: str, said: str) -> str:
    """HMAC that proves knowledge of the token without sending it."""
    return hmac.new(token.encode(), f"{challenge}\n{said}".encode(), hashlib.sha256).hexdigest()


class _Task:
    """One server of a deployment, on its node.

    Args:
        plan: `command`, with placeholders `{host}` and `{port}`; `port`: 0 if the server chooses a port and logs it,
            None for a free one; `announced`: "address" or "hostname"; `trainers`: hosts that connect to
            the server; `folder`: a folder that all nodes see, or `listener`: the port of those hosts that takes
            reports.
        environ: Environment variables of the job.
    """

    server: subprocess.Popen[bytes]

    def __init__(self, plan: dict[str, Any], environ: dict[str, str]):
        self.plan = plan
        self.environ = environ
        self.token = environ.pop(TOKEN, "")
        self.secrets: list[str] = json.loads(environ.pop(SECRETS, "[]"))
        # The last host is the controller, which is usually in the trainer's network.
        parts = environ.get("SLURM_WORKING_CLUSTER", "").split(":")
        hosts = [*plan["trainers"], environ.get("SLURM_SUBMIT_HOST", ""), parts[1] if len(parts) == 5 else ""]
        self.trainers = [host for host in dict.fromkeys(hosts) if host]
        self.host = _address(self.trainers)
        array = environ.get("SLURM_ARRAY_JOB_ID") or environ.get("SLURM_JOB_ID", "0")
        self.facts: dict[str, Any] = {
            "task": f"{array}_{environ.get('SLURM_ARRAY_TASK_ID', '0')}",
            "restart": int(environ.get("SLURM_RESTART_COUNT") or 0),
        }
        self.lines: deque[str] = deque(maxlen=TAIL_LINES)
        # Whether a report is due, and when the last attempt began.
        self.due = False
        self.tried = 0.0
        self.call: threading.Thread | None = None
        self.asked = False
        self.folder = None if plan.get("folder") is None else Path(plan["folder"])

    def run(self) -> int:
        if sys.platform == "win32":  # no node of Slurm
            raise OSError("a Slurm task runs on Linux")
        port = self.plan["port"]
        if port is None:
            with socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET) as finder:
                finder.bind((self.host, 0))
                port = int(finder.getsockname()[1])
        places = {"{host}": self.host, "{port}": str(port)}
        command = [places.get(part, part) for part in self.plan["command"]]
        # The variables that only the server gets.
        kept = "{}" if self.folder is None else (self.folder / "variables.json").read_text(encoding="utf-8")
        given: dict[str, str] = json.loads(self.environ.pop(VARIABLES, kept))
        variables = {**self.environ, **given, "HOST": self.host, "PORT": str(port)}
        signals, writer = os.pipe()  # carries the numbers of received signals
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)  # the wakeup fd has written its number to the pipe
        try:
            self.server = subprocess.Popen(  # noqa: S603 - the command of the specification
                command,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # The kernel kills the server when this process ends, for any reason. It has no threads yet.
                preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0),  # noqa: PLW1509
            )
        except OSError as error:
            return self.ended(127, f"{command[0]} could not be started: {error.strerror}")
        if port:
            self.announce(port)
        self.follow(signals)
        self.kill()
        code = self.server.wait()
        return self.ended(code if code >= 0 else 128 - code)

    def follow(self, signals: int) -> None:
        """Forwards the log until its end, finds the port in it, and handles signals."""
        assert self.server.stdout is not None
        output, rest = self.server.stdout.fileno(), b""
        while True:
            waits = self.due or self.calling
            ready = select.select([output, signals], [], [], REPORT_EVERY_S if waits else None)[0]
            if signals in ready:
                self.handle_signals(os.read(signals, 64))
            if output in ready:
                data = os.read(output, CHUNK)
                if not data:
                    if rest:
                        self.note(rest.decode(errors="replace"))
                    return
                _say(data)
                *lines, rest = (rest + data).split(b"\n")
                rest = rest[:CHUNK]  # much longer than a report, so that no secret is cut before it is masked
                for line in lines:
                    self.note(line.decode(errors="replace"))
            if self.due and time.monotonic() - self.tried >= REPORT_EVERY_S:
                self.report()

    def note(self, line: str) -> None:
        """Keeps a line of the log for reports, and looks for the port in it."""
        for secret in self.secrets:
            line = line.replace(secret, "***")
        self.lines.append(line[:LONGEST_LINE])
        self.due = self.due or self.folder is None
        found = None if "url" in self.facts else LISTENING.search(line)
        if found is not None:
            self.announce(int(found[1]))

    def handle_signals(self, numbers: bytes) -> None:
        """Handles signals: SIGTERM makes the server drain and end; SIGUSR1 kills it."""
        if sys.platform == "win32":
            return
        self.asked = self.asked or bool({signal.SIGTERM, signal.SIGUSR1} & set(numbers))
        if signal.SIGUSR1 in numbers or self.server.poll() is not None:
            self.kill()  # its children, too: they would keep its log open
        elif signal.SIGTERM in numbers:
            self.server.terminate()

    def kill(self) -> None:
        if sys.platform == "win32":
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.server.pid, signal.SIGKILL)

    def announce(self, port: int) -> None:
        at = socket.gethostname() if self.plan["announced"] == "hostname" else self.host
        self.facts["url"] = f"http://{f'[{at}]' if ':' in at else at}:{port}"
        self.report()

    def ended(self, code: int, why: str = "") -> int:
        """Sends the last report. A server that was asked to end may be restarted elsewhere: Slurm decides."""
        if why:
            self.lines.append(why)
            _say(f"{why}\n".encode())
        self.facts["ended"] = "as asked" if self.asked else f"ended with exit code {code}"
        self.facts.pop("url", None)
        for _ in range(1 if self.asked else LAST_ATTEMPTS):
            self.wait_for_call()
            self.report()
            self.wait_for_call()
            if not self.due:
                break
            time.sleep(REPORT_EVERY_S)
        return code

    def report(self) -> None:
        """Reports the state of this task. A report that does not arrive is sent again."""
        try:
            if self.folder is not None:
                path = self.folder / "notices" / f"{self.facts['task']}.{self.facts['restart']}"
                draft = path.with_name(f".{path.name}")
                draft.write_text(json.dumps(self.facts), encoding="utf-8")
                draft.rename(path)
                self.due = False
            else:
                self.due = self.calling
                if not self.due:
                    said = json.dumps({**self.facts, "log": list(self.lines)}, ensure_ascii=False)
                    # On a thread: a trainer that does not answer must not delay log lines or signals.
                    self.call = threading.Thread(target=self.dial, args=(said,), daemon=True)
                    self.call.start()
        except OSError as error:
            # The folder was removed: its owner reads no more reports.
            self.due = False
            _say(f"the report cannot be written: {error}\n".encode())
        self.tried = time.monotonic()

    @property
    def calling(self) -> bool:
        return self.call is not None and self.call.is_alive()

    def wait_for_call(self) -> None:
        if self.call is not None:
            self.call.join()

    def dial(self, said: str) -> None:
        """Reports to the trainer. Sets `due` if no trainer takes the report."""
        for host in self.trainers:
            with contextlib.suppress(OSError, ValueError):
                connection = socket.create_connection((host, self.plan["listener"]), DIAL_S)
                with connection, connection.makefile("rw", encoding="utf-8") as stream:
                    challenge = stream.readline().strip()
                    stream.write(f"{proof(self.token, challenge, said)} {said}\n")
                    stream.flush()
                    if stream.readline() == "heard\n":
                        return
        self.due = True


def _say(data: bytes) -> None:
    with contextlib.suppress(OSError):  # a full disk must not end the server
        os.write(1, data)


def _address(trainers: list[str]) -> str:
    """This node's address on the route to one of these hosts; loopback, if there is no other."""
    for host in [*trainers, socket.gethostname()]:
        with contextlib.suppress(OSError):
            family, kind, _, _, there = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as route:
                route.connect(there)  # sends nothing
                address = str(route.getsockname()[0])
            if not address.startswith("127.") and address != "::1":
                return address
    return "127.0.0.1"
