"""The first process of the sandbox: starts the interpreter, stops it at its time limit, and reports the result.

It needs only the standard library and the module `worker`. Untrusted code runs in processes that this one forks. They
cannot affect it: the kernel protects the first process of a namespace from signals from inside, and the forked
processes close its open files. It passes their output on as data.
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import struct
import sys
import time
import traceback

import worker

HEAD = struct.Struct("<I")
MOST_FRAME = 1024 * 1024
MOST_ANSWERS = 4 * MOST_FRAME
MOST_OUTPUT = 16 * 1024
TICK_S = 0.05
CHUNK = 64 * 1024
PLACES = ("/desk", "/tmp", "/dev/shm")  # noqa: S108 - the sandbox's own


class Interpreter:
    """One interpreter and the pipes to it."""

    def __init__(self, limits):
        self.requests, self.results, self.output = os.pipe(), os.pipe(), os.pipe()
        self.partial = b""
        self.pid = os.fork()
        if self.pid == 0:
            become(self, limits)
        for end in (self.requests[0], self.results[1], self.output[1]):
            os.close(end)
        for end in (self.requests[1], self.results[0], self.output[0]):
            os.set_blocking(end, False)

    def close(self):
        for end in (self.requests[1], self.results[0], self.output[0]):
            os.close(end)


def become(interpreter, limits):
    """Runs in the new process: closes the files of the parent, sets user and limits, and serves requests."""
    code = 1
    try:
        os.setsid()
        nothing = os.open("/dev/null", os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(interpreter.output[1], 1)
        os.dup2(interpreter.output[1], 2)
        os.dup2(interpreter.requests[0], 3)
        os.dup2(interpreter.results[1], 4)
        os.closerange(5, 1024)
        if limits["user"]:
            os.setgroups([])
            os.setresgid(limits["user"], limits["user"], limits["user"])
            os.setresuid(limits["user"], limits["user"], limits["user"])
        for name, most in limits["resources"].items():
            kind = getattr(resource, name)
            hard = resource.getrlimit(kind)[1]
            bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (bound, bound))
        os.chdir("/desk")
        worker.serve(3, 4)
        code = 0
    except BaseException:  # noqa: BLE001 - a copy of the supervisor must not continue here
        traceback.print_exc()
    finally:
        os._exit(code)


class Supervisor:
    """Executes requests one after the other. Between two requests, all other processes of the sandbox are stopped."""

    def __init__(self, limits):
        self.limits = limits
        self.interpreter = None
        self.started = 0

    def run(self):
        while True:
            head = read_exactly(HEAD.size)
            request = read_exactly(HEAD.unpack(head)[0])
            reply = json.dumps(self.handle(request, json.loads(request)["seconds"])).encode()
            write_all(HEAD.pack(len(reply)) + reply)

    def handle(self, request, seconds):
        if self.interpreter is None:
            self.interpreter = Interpreter(self.limits)
            self.started += 1
        interpreter = self.interpreter
        signal_all(signal.SIGCONT)
        task = Task(interpreter, request, time.monotonic() + seconds)
        task.follow()
        if task.status == "done":
            signal_all(signal.SIGSTOP)
            task.drain()
        else:
            self.end()
        return {
            "status": task.status,
            "reason": task.reason,
            "exit_code": task.exit_code,
            "answers": [answer.decode("utf-8", "replace") for answer in task.answers],
            "output": bytes(task.output[:MOST_OUTPUT]).decode("utf-8", "replace"),
            "output_cut": task.printed > MOST_OUTPUT,
            "started": self.started,
        }

    def end(self):
        """Kills all other processes of the sandbox."""
        signal_all(signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
        self.interpreter.close()
        self.interpreter = None


class Task:
    """One request to the interpreter, with its answers, its output and its end.

    `status` is "done" (an answer came), "timeout", "crashed" or "limit".
    """

    def __init__(self, interpreter, request, deadline):
        self.interpreter = interpreter
        self.unsent = HEAD.pack(len(request)) + request
        self.deadline = deadline
        self.status = ""
        self.reason = ""
        self.exit_code = None
        self.answers = []
        self.output = bytearray()
        self.printed = 0
        self.check_at = time.monotonic() + TICK_S

    def follow(self):
        it = self.interpreter
        while not self.status:
            writing = [it.requests[1]] if self.unsent else []
            readable, writable, _ = select.select([it.results[0], it.output[0]], writing, [], TICK_S)
            if writable:
                self.send()
            if it.output[0] in readable:
                self.read_output()
            if it.results[0] in readable:
                self.read_answers()
            if not self.status:
                self.check()

    def send(self):
        try:
            self.unsent = self.unsent[os.write(self.interpreter.requests[1], self.unsent) :]
        except BlockingIOError:
            pass
        except OSError:  # it closed the pipe, or has ended: the deadline and `check` find out which
            self.unsent = b""

    def read_output(self):
        data = os.read(self.interpreter.output[0], CHUNK)
        self.printed += len(data)
        if len(self.output) < MOST_OUTPUT:
            self.output += data
        if not data:  # every process has closed the pipe: no more output
            time.sleep(TICK_S / 10)
        return bool(data)

    def drain(self):
        """Reads the rest of the pipe. No process writes to it now."""
        with contextlib.suppress(BlockingIOError):
            while self.read_output():
                pass

    def read_answers(self):
        """Reads frames: a length, a letter (P: more will follow, D: the last), and text."""
        it = self.interpreter
        data = os.read(it.results[0], CHUNK)
        if not data:
            self.reap()
            time.sleep(TICK_S / 10)
        it.partial += data
        while len(it.partial) >= HEAD.size and not self.status:
            (length,) = HEAD.unpack_from(it.partial)
            if not 1 <= length <= MOST_FRAME or sum(map(len, self.answers)) + length > MOST_ANSWERS:
                self.finish("limit", f"its answer is empty or too large (more than {MOST_FRAME} bytes)")
                return
            if len(it.partial) < HEAD.size + length:
                return
            frame = it.partial[HEAD.size : HEAD.size + length]
            it.partial = it.partial[HEAD.size + length :]
            self.answers.append(frame[1:])
            if frame[:1] == b"D":
                self.finish("done")
                it.partial = b""

    def check(self):
        """Checks the deadline, the processes and the number of files."""
        now = time.monotonic()
        if now >= self.deadline:
            self.finish("timeout", "it took too long, and was stopped")
            return
        if now < self.check_at:
            return
        self.check_at = now + TICK_S
        self.reap()
        for place in PLACES:
            room = os.statvfs(place)
            if room.f_files - room.f_ffree > 4096:
                self.finish("limit", f"there are more than 4,096 files in {place}")

    def reap(self):
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.interpreter.pid:
                    self.exit_code = os.waitstatus_to_exitcode(status)
                    how = f"signal {-self.exit_code}" if self.exit_code < 0 else f"exit code {self.exit_code}"
                    self.finish("crashed", f"the interpreter ended with {how}")
                    with contextlib.suppress(BlockingIOError):
                        for _ in range(16):  # its last output; other processes may still write
                            if not self.read_output():
                                break

    def finish(self, status, reason=""):
        self.status, self.reason = status, reason


def signal_all(number):
    """Signals every process but this one with one call, so that no process can fork in between."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, number)


def read_exactly(count):
    data = b""
    while len(data) < count:
        more = os.read(0, min(count - len(data), CHUNK))
        if not more:  # the environment has ended
            os._exit(0)
        data += more
    return data


def write_all(data):
    while data:
        data = data[os.write(1, data) :]


def main():
    # No handler: the kernel does not deliver signals from inside that have no handler here.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: other processes of the user cannot read its memory
    write_all(b"!")
    Supervisor(json.loads(sys.argv[1])).run()


main()
