"""Sessions of the proxy: found by their key, each with a file, and in memory as long as there is room."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import tempfile
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from .._files import BINARY, lock_folder
from ..errors import InvalidArgument, JournalFailed, JournalInUse, UnreadableRecord
from ..recording.storage import JSONL
from .dialects.base import EngineAnswer, ModelCall, RequestRefused
from .graph import SessionGraph, TurnRecord
from .upstream import CaptureLevel

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,199}")
_BY_KEY = "s-"  # begins the id of a session that has a key of its own
_STEM = 40
# Files that stay open; the others are opened for each line.
_MOST_FILES = 512
_encode = msgspec.json.Encoder().encode


class SessionOpened(msgspec.Struct, tag="session", omit_defaults=True):
    """The first line of a session's file. It has no key.

    Attributes:
        session_id: Id of the session.
        time: Unix time at which it was opened.
        metadata: Facts of the caller.
        purpose: `train`, `eval` or `auto`.
        max_model_calls: Most calls, failures included; 0 for no limit.
        max_output_tokens: Most tokens of one answer; 0: as the proxy.
        max_sampled_tokens: No call begins after that many sampled tokens; 0 for no limit. Needs token ids.
        sampling: Fields that every request of the session gets in place of its own.
        llm_url, model: The engine, and the name of the model there; empty: those of the proxy.
        capture_level: What the engine returns.
    """

    session_id: str = ""
    time: float = 0.0
    metadata: dict[str, Any] = {}
    purpose: str = "auto"
    max_model_calls: int = 0
    max_output_tokens: int = 0
    max_sampled_tokens: int = 0
    sampling: dict[str, Any] = {}
    llm_url: str = ""
    model: str = ""
    capture_level: CaptureLevel = "tokens"


class SessionNote(msgspec.Struct, tag="note", omit_defaults=True):
    """Something that happened to a session beside its turns: `upstream_error`, `budget_stop`, `finding`."""

    what: str
    text: str = ""


_decode_line = msgspec.json.Decoder(SessionOpened | TurnRecord | SessionNote).decode


class CaptureSession:
    """One session in memory.

    Args:
        opened: How it was opened.
        path: Its file.

    Attributes:
        graph: Its turns.
        calls: Calls in flight; the session stays in memory as long as there are some.
        answered: Turn of each idempotency key.
        undelivered: Turns that were recorded after their client had disconnected.
        overtaking: Turns of retries that arrived before their first attempt, which has not arrived yet.
        notes: What happened beside.
        engine_key, engine_header: The key of its own engine, and the header; never on disk.
        touched: Unix time of the latest call.
        sampled_tokens: Number of sampled token ids.
    """

    def __init__(self, opened: SessionOpened, path: Path):
        self.opened = opened
        self.path = path
        self.graph = SessionGraph()
        self.calls: list[Any] = []
        self.answered: dict[str, int] = {}
        self.undelivered: set[int] = set()
        self.overtaking: set[int] = set()
        self.notes: list[SessionNote] = []
        self.engine_key, self.engine_header = "", "Authorization"
        self.touched = opened.time
        self.sampled_tokens = 0
        self.deleted = False
        self._file = -1

    def close(self) -> None:
        """Closes the file until the next line."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    @property
    def session_id(self) -> str:
        return self.opened.session_id

    @property
    def rollout_type(self) -> str:
        """`train` if the session's turns can be trained on, else `eval`."""
        return rollout_type_for(self.opened.purpose, self.opened.capture_level)

    @property
    def model_calls(self) -> int:
        """Calls so far, those in flight and those that failed included."""
        return len(self.graph.turns) + self.count("upstream_error") + len(self.calls)

    @property
    def spent(self) -> bool:
        """Whether it may sample no more tokens."""
        return 0 < self.opened.max_sampled_tokens <= self.sampled_tokens

    def count(self, what: str) -> int:
        """How often something happened."""
        return sum(note.what == what for note in self.notes)

    def write(self, record: SessionOpened | TurnRecord | SessionNote) -> None:
        """Appends a line to the file, before anyone uses what it says.

        Raises:
            JournalFailed: The disk is full, or the file cannot be written; it has no part of the line.
        """
        line = _encode(record) + b"\n"
        try:
            if self._file < 0:
                self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | BINARY, 0o600)
            written = os.write(self._file, line)
            if written != len(line):
                os.ftruncate(self._file, os.fstat(self._file).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise JournalFailed(
                f"session {self.session_id} cannot be recorded in {self.path.parent}: {error.strerror}; make room "
                "there, and send the call again"
            ) from error

    def add(self, turn: TurnRecord, call: ModelCall, answer: EngineAnswer) -> int:
        """Records a turn, on disk first. Returns its number. Raises `JournalFailed`."""
        self.graph.record(turn, call.messages, call.ends, answer.prompt_ids, answer.completion_ids)
        self.write(turn)
        number = self.graph.take(turn, answer.logprobs)
        self._answer(turn, number)
        return number

    def note(self, what: str, text: str = "") -> None:
        """Records something beside the turns. Raises `JournalFailed`."""
        note = SessionNote(what, text[:1000])
        self.write(note)
        self.notes.append(note)

    def take(self, line: TurnRecord | SessionNote) -> None:
        """Takes a line of the file."""
        if isinstance(line, SessionNote):
            self.notes.append(line)
        else:
            for name in ("message", "head", "params", "sent"):  # they would keep the whole line in memory
                setattr(line, name, getattr(line, name).copy())
            self._answer(line, self.graph.take(line))

    def _answer(self, turn: TurnRecord, number: int) -> None:
        self.touched = max(self.touched, turn.time)
        self.sampled_tokens += self.graph.n_completion(number)
        if turn.call:
            self.answered[turn.call] = number


def rollout_type_for(purpose: str, capture_level: str) -> str:
    """`train` or `eval`.

    Raises:
        ValueError: Training is asked for, and the engine gives no token ids with log probabilities.
    """
    if purpose not in ("auto", "train", "eval"):
        raise InvalidArgument(f"purpose must be auto, train or eval, not {purpose!r}")
    if purpose == "train" and capture_level != "tokens":
        raise InvalidArgument(
            f"purpose=train needs an engine that returns token ids, and this one returns {capture_level}"
        )
    return "train" if capture_level == "tokens" and purpose != "eval" else "eval"


class SessionStore:
    """The sessions of a proxy.

    Args:
        folder: Folder of their files, which a later process goes on with; None: one that ends with the store.
        memory_mb: Sessions that were used least recently leave the memory beyond that; their files stay.
        lock: Whether the folder must belong to this process alone; the workers of one proxy share it.

    Raises:
        JournalInUse: Another process has the folder.
        JournalFailed: The folder cannot be made.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, memory_mb: float = 512.0, lock: bool = True):
        self._own = None if folder is not None else tempfile.mkdtemp(prefix="openenv-capture-")
        self.folder = Path(folder or self._own or "")
        self._most = int(memory_mb * 2**20)
        self._used = 0
        self._sizes: dict[str, int] = {}
        self._sessions: OrderedDict[str, CaptureSession] = OrderedDict()
        self._open: OrderedDict[str, CaptureSession] = OrderedDict()
        self._lock: int | None = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = lock_folder(self.folder) if lock else None
            if lock and self._lock is None:
                raise JournalInUse(
                    f"another proxy records into {self.folder}: end that one, or choose another folder"
                )
        except OSError as error:
            if isinstance(error, JournalInUse):
                raise
            raise JournalFailed(
                f"cannot record into {self.folder}: {error.strerror}; choose another folder"
            ) from error

    def __len__(self) -> int:
        return sum(1 for _ in self.folder.glob(f"*{JSONL}"))

    def create(self, opened: SessionOpened | str = "", key: str | None = None) -> CaptureSession:
        """Opens a session. Its id is its key, unless it has one of its own.

        Args:
            opened: Its facts, with an id, or without one to get one; or its id alone.
            key: The key that its agent sends; the id then follows from it.

        Raises:
            RequestRefused: The id is malformed, or there is such a session already.
            JournalFailed: Its file cannot be written.
        """
        if isinstance(opened, str):
            opened = SessionOpened(opened)
        if key is not None:
            if opened.session_id or len(key) < 8:
                raise RequestRefused(400, "give either session_id, or a key of at least 8 characters")
            opened.session_id = _BY_KEY + _stem_of(key)
        elif not opened.session_id:
            opened.session_id = secrets.token_urlsafe(18).replace("-", "_").lstrip("_") or secrets.token_hex(12)
        elif not _NAME.fullmatch(opened.session_id) or opened.session_id.startswith(_BY_KEY):
            raise RequestRefused(
                400,
                f"session_id {opened.session_id!r:.80} must have 1 to 200 letters, digits and . _ : @ -, and not "
                f"begin with {_BY_KEY}",
            )
        stem = self.stem(opened.session_id)
        session = CaptureSession(opened, self._path(stem))
        if session.path.exists():
            raise RequestRefused(409, f"session {opened.session_id} exists: choose another session_id, or delete it")
        opened.time = session.touched = time.time()
        session.write(opened)
        self._keep(stem, session)
        return session

    def with_key(self, key: str) -> CaptureSession | None:
        """The session of an agent's key; None if there is none. Raises `UnreadableRecord`."""
        return self._load(_stem_of(key))

    def get(self, session_id: str) -> CaptureSession | None:
        """The session of an id; None if there is none. Raises `UnreadableRecord`."""
        return self._load(self.stem(session_id))

    def stem(self, session_id: str) -> str:
        """The name of a session's file, without its suffix. The owner of a session follows from it."""
        rest = session_id.removeprefix(_BY_KEY)
        return rest if rest != session_id and re.fullmatch(r"[0-9a-f]{40}", rest) else _stem_of(session_id)

    def changed(self, session: CaptureSession) -> None:
        """Notes that a session has grown, and frees memory beyond the bound."""
        stem = session.path.stem
        if not session.deleted:
            self._keep(stem, session)
        for old in list(self._sessions) if self._used > self._most else ():
            if self._used <= self._most or old == stem:
                break
            if not self._sessions[old].calls and not self._sessions[old].engine_key:
                self._sessions.pop(old).close()
                self._open.pop(old, None)
                self._used -= self._sizes.pop(old)

    def delete(self, session: CaptureSession) -> None:
        """Removes a session and its file."""
        session.deleted = True
        session.close()
        self._sessions.pop(session.path.stem, None)
        self._open.pop(session.path.stem, None)
        self._used -= self._sizes.pop(session.path.stem, 0)
        session.path.unlink(missing_ok=True)

    def all(self) -> Iterator[CaptureSession]:
        """Every session, those that are not in memory included."""
        for path in sorted(self.folder.glob(f"*{JSONL}")):
            session = self._sessions.get(path.stem) or self._read(path)
            if session is not None:
                yield session

    def close(self) -> None:
        """Gives up the folder; removes it if it ends with the store."""
        for session in self._sessions.values():
            session.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)

    def _path(self, stem: str) -> Path:
        return self.folder / f"{stem}{JSONL}"

    def _keep(self, stem: str, session: CaptureSession) -> None:
        size = session.graph.size + 2000
        self._used += size - self._sizes.get(stem, 0)
        self._sizes[stem] = size
        self._sessions[stem] = session
        self._sessions.move_to_end(stem)
        self._open[stem] = session
        self._open.move_to_end(stem)
        if len(self._open) > _MOST_FILES:
            self._open.popitem(last=False)[1].close()

    def _load(self, stem: str) -> CaptureSession | None:
        session = self._sessions.get(stem)
        if session is None:
            session = self._read(self._path(stem), owned=True)
            if session is not None:
                self.changed(session)
        return session

    def _read(self, path: Path, owned: bool = False) -> CaptureSession | None:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        *lines, torn = content.split(b"\n")
        if torn and owned:  # the process was killed while it wrote; that line was not used
            os.truncate(path, len(content) - len(torn))
        session = None
        for number, line in enumerate(lines, 1):
            try:
                record = _decode_line(line)
            except msgspec.DecodeError as error:
                raise UnreadableRecord(f"{path}, line {number}: {error}; restore the file, or delete it") from error
            if isinstance(record, SessionOpened):
                session = CaptureSession(record, path)
            elif session is not None:
                session.take(record)
        return session


def _stem_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:_STEM]
