"""A stand-in of the Hub's Jobs API: real HTTP on loopback, and jobs that are real processes. Misbehaves on request.

It speaks what huggingface_hub 2.4 sends and reads (`HfApi.run_job`, `inspect_job`, `cancel_job`, `list_jobs`,
`fetch_job_logs`, `whoami`), and checks it: unknown fields, labels the Hub would not take, and missing tokens are
refused. The gate in front of a job's port asks for the token, as that of the Hub does.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..ports import held_port
from .standin import Gate, Refused, Request, StandIn

TOKEN = "hf_stand_in_token_of_a_user"
USER = "tester"
_LABEL = re.compile(r"^[A-Za-z0-9_-]{1,100}$")
_NAME = re.compile(r"^[A-Za-z0-9._-]{1,100}$")
_FIELDS = {
    "command", "arguments", "environment", "flavor", "secrets", "timeoutSeconds", "labels", "expose", "dockerImage",
    "spaceId", "attempts",
}  # fmt: skip


@dataclass
class Run:
    """A job.

    Attributes:
        body: What it was asked for with.
        secrets: Which nobody is told.
        port: What its process listens on; everywhere else, that is a port of its own container.
        held: What keeps that port for it.
    """

    id: str
    body: dict[str, Any]
    secrets: dict[str, str]
    stage: str = "SCHEDULING"
    message: str | None = None
    process: subprocess.Popen[str] | None = None
    port: int = 0
    gate: Gate | None = None
    lines: list[str] = field(default_factory=list)
    reader: threading.Thread | None = None
    held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    created: str = field(default_factory=lambda: _now())


class Hub(StandIn):
    """The stand-in.

    Attributes:
        jobs: Every job there ever was, by its id.
        schedules: Whether jobs get a machine.
        stage: What jobs get instead of a machine, with its message; None: a machine.
        lost: Jobs that every request is told not to exist.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, Run] = {}
        self.schedules = True
        self.stage: tuple[str, str] | None = None
        self.lost: set[str] = set()
        self._count = 0
        super().__init__()

    @property
    def alive(self) -> list[Run]:
        """Jobs whose stage is none of the last ones."""
        return [run for run in self.jobs.values() if run.stage in {"SCHEDULING", "RUNNING"}]

    def close(self) -> None:
        """Ends all jobs, and itself."""
        for run in self.jobs.values():
            self.end(run, "DELETED")
            run.held.close()
        super().close()

    def kill(self, run: Run) -> None:
        """The machine of a job fails."""
        assert run.process is not None
        self.end(run, "ERROR", "the machine failed")  # which is said before its reader says how the process ended

    def end(self, run: Run, stage: str, message: str | None = None) -> None:
        """A job ends."""
        with self.lock:
            if run.stage in {"SCHEDULING", "RUNNING"}:
                run.stage, run.message = stage, message
        if run.process is not None:
            run.process.kill()
            run.process.wait()
        if run.reader is not None and run.reader is not threading.current_thread():
            run.reader.join()
        if run.gate is not None:
            run.gate.close()

    # What requests do.

    def run(self, body: dict[str, Any]) -> Run:
        unknown = body.keys() - _FIELDS
        labels = body.get("labels", {})
        bad = [pair for pair in labels.items() if not _fits(*pair)]
        wrong = [key for key in body.get("environment", {}) if not isinstance(body["environment"][key], str)]
        if unknown or bad or wrong or not body.get("command") or not (body.get("dockerImage") or body.get("spaceId")):
            raise Refused(400, f"invalid job: {sorted(unknown)} {bad} {wrong}")
        with self.lock:
            self._count += 1
            secrets = body.pop("secrets", {})
            run = Run(f"6870{self._count:020x}", body, secrets)
            self.jobs[run.id] = run
        if self.stage is not None:
            run.stage, run.message = self.stage
        elif self.schedules:
            self._place(run)
        return run

    def respond(self, request: Request) -> tuple[int, Any]:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise Refused(401, "Invalid credentials")
        match request.parts, request.method:
            case ["api", "whoami-v2"], "GET":
                return 200, {"name": USER, "type": "user"}
            case ["api", "jobs", whose], "POST" if whose == USER:
                return 200, self.told(self.run(request.data))
            case ["api", "jobs", whose], "GET" if whose == USER:
                labels = dict(label.split("=", 1) for label in request.queries.get("label", []))
                found = [run for run in self.jobs.values() if labels.items() <= run.body.get("labels", {}).items()]
                return 200, [self.told(run) for run in found]
            case ["api", "jobs", whose, job, *rest], method if whose == USER:
                run = self.jobs.get(job)
                if run is None or job in self.lost:
                    raise Refused(404, "Job not found")
                return self._do_with(run, rest, method, request.query)
        raise Refused(403, f"not for {USER}: {request.method} {request.path}")

    def _do_with(self, run: Run, rest: list[str], method: str, query: dict[str, str]) -> tuple[int, Any]:
        if not rest and method == "GET":
            return 200, self.told(run)
        if rest == ["cancel"] and method == "POST":
            if run.stage not in {"SCHEDULING", "RUNNING"}:
                raise Refused(400, "Job is not running")
            self.end(run, "CANCELED")
            return 200, {}
        if rest == ["logs"] and method == "GET":
            lines = run.lines[-int(query["tail"]) :] if "tail" in query else run.lines
            told = (json.dumps({"data": line, "timestamp": run.created}) for line in lines)
            return 200, ("text/event-stream", "".join(f"data: {each}\n\n" for each in told).encode())
        raise Refused(404, "no such route")

    def _place(self, run: Run) -> None:
        run.port = run.held.enter_context(held_port())
        ports = run.body.get("expose", {}).get("ports", [])
        variables = {**run.body["environment"], **run.secrets}
        image = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "HOME": os.environ["HOME"]}
        if ports:
            assert variables.get("PORT") == str(ports[0]), "the server does not listen on what is exposed"
            variables |= {"PORT": str(run.port), "HOST": "127.0.0.1"}
        try:
            run.process = subprocess.Popen(
                [*run.body["command"], *run.body["arguments"]],
                env={**image, **variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        except OSError as error:
            run.stage, run.message = "ERROR", str(error)
            return
        if ports:
            run.gate = Gate(lambda head: run.port if f"authorization: bearer {TOKEN}\r\n" in head else None)
        with self.lock:
            cancelled, run.stage = run.stage != "SCHEDULING", run.stage if run.stage != "SCHEDULING" else "RUNNING"
        run.reader = threading.Thread(target=self._read, args=(run,), name=f"job-{run.id}", daemon=True)
        run.reader.start()
        if cancelled:
            self.end(run, run.stage)

    def _read(self, run: Run) -> None:
        assert run.process is not None
        assert run.process.stdout is not None
        with run.process.stdout as log:
            for line in log:
                run.lines.append(line.rstrip("\n"))
        code = run.process.wait()
        with self.lock:
            if run.stage == "RUNNING":
                run.stage, run.message = (
                    ("COMPLETED", None) if code == 0 else ("ERROR", f"Job failed with exit code: {code}")
                )
        if run.gate is not None:
            run.gate.close()

    def told(self, run: Run) -> dict[str, Any]:
        """A job, as the Hub tells it."""
        urls = [f"http://127.0.0.1:{run.gate.port}"] if run.gate is not None and run.stage == "RUNNING" else None
        return {
            "id": run.id,
            "createdAt": run.created,
            "dockerImage": run.body.get("dockerImage"),
            "spaceId": run.body.get("spaceId"),
            "command": run.body["command"],
            "arguments": run.body["arguments"],
            "environment": run.body["environment"],
            "secrets": dict.fromkeys(run.secrets, ""),
            "flavor": run.body["flavor"],
            "labels": run.body.get("labels", {}),
            "status": {"stage": run.stage, "message": run.message, "exposeUrls": urls},
            "owner": {"id": "1", "name": USER, "type": "user"},
            "expose": run.body.get("expose"),
        }


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A stand-in, until the block is left."""
    hub = Hub()
    try:
        yield hub
    finally:
        hub.close()


def _fits(name: str, value: str) -> bool:
    return bool(_LABEL.match(name)) and bool((_NAME if name == "name" else _LABEL).match(value))


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
