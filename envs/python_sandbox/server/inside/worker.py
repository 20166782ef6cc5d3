"""The interpreter: runs code, and reads and writes files, with the rights of the code."""

# Untrusted code runs here, and may raise any exception.
# ruff: noqa: BLE001, PTH103, PTH118, PTH120, PTH123, S102, S110, S307, SIM105, SIM115

import ast
import json
import linecache
import os
import random
import struct
import sys
import traceback
import types

HEAD = struct.Struct("<I")
MOST_VALUE = 8 * 1024
MOST_FILE = 64 * 1024
MOST_FILES = 200


class Interpreter:
    """Executes requests. Variables stay from one request to the next."""

    def __init__(self):
        self.main = types.ModuleType("__main__")
        sys.modules["__main__"] = self.main
        self.count = 0

    def run(self, request, say):
        """Executes code, and returns the value of an expression at its end, as at a prompt."""
        tree = self._parsed(request["code"])
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, self.name, "exec"), self.main.__dict__)
        if last is None:
            return {}
        value = eval(compile(ast.Expression(last.value), self.name, "eval"), self.main.__dict__)
        return {} if value is None else {"value": repr(value)[:MOST_VALUE]}

    def write(self, request, say):
        folder = os.path.dirname(request["path"])
        if folder:
            os.makedirs(folder, exist_ok=True)
        with open(request["path"], "w", encoding="utf-8", errors="surrogatepass") as file:
            return {"size": file.write(request["content"])}

    def read(self, request, say):
        with open(request["path"], "rb") as file:
            data = file.read(MOST_FILE + 1)
        return {"content": data[:MOST_FILE].decode("utf-8", "replace"), "cut": len(data) > MOST_FILE}

    def list(self, request, say):
        found = []
        for folder, folders, names in os.walk(request["path"] or "."):
            folders.sort()
            for name in sorted(names):
                if len(found) == MOST_FILES:
                    return {"files": found, "cut": True}
                found.append(os.path.normpath(os.path.join(folder, name)))
        return {"files": found}

    def grade(self, request, say):
        """Calls a function with each of the inputs, and sends its answers. The grader outside compares them."""
        exec(compile(self._parsed(request["code"]), self.name, "exec"), self.main.__dict__)
        function = self.main.__dict__[request["function"]]
        for index, arguments in enumerate(request["inputs"]):
            try:
                answer = json.dumps({"index": index, "answer": function(*arguments)})
            except Exception as error:
                traceback.print_exc(limit=-3)
                answer = json.dumps({"index": index, "error": type(error).__name__})
            say(b"P", answer)
        return {}

    def _parsed(self, code):
        self.count += 1
        self.name = f"<code {self.count}>"
        linecache.cache[self.name] = (len(code), None, code.splitlines(True), self.name)
        return ast.parse(code, self.name)


def serve(requests, results):
    """Answers requests until their pipe is closed."""
    sys.path[:] = [*(place for place in sys.path if place != os.path.dirname(__file__)), "/desk"]
    sys.argv = [""]
    sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    interpreter = Interpreter()
    me = os.getpid()

    def say(letter, text):
        data = letter + text.encode()
        data = HEAD.pack(len(data)) + data
        while data:
            data = data[os.write(results, data) :]

    while True:
        head = read_exactly(requests, HEAD.size)
        request = json.loads(read_exactly(requests, HEAD.unpack(head)[0]))
        if "seed" in request:
            random.seed(request["seed"])
        try:
            answer = getattr(interpreter, request["kind"])(request, say)
        except BaseException as error:
            answer = {"error": describe(error)}
            show(error)
        if os.getpid() != me:  # the code forked this process
            os._exit(0)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:  # the code closed or replaced the stream, and loses only its own output
                pass
        say(b"D", json.dumps(answer))


def describe(error):
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}"[:MOST_VALUE] if text else type(error).__name__


def show(error):
    """Prints the traceback, without the frames of this file."""
    try:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        sys.stderr.write("".join(traceback.format_exception(type(error), error, frames))[-MOST_VALUE:])
    except Exception:  # the answer already has the name of an error that cannot be printed
        pass


def read_exactly(descriptor, count):
    data = b""
    while len(data) < count:
        more = os.read(descriptor, count - len(data))
        if not more:
            os._exit(0)
        data += more
    return data
