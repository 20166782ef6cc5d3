"""The app behind `openenv episodes view`: a page with the rollouts of a folder, as lists and as conversations."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Annotated, Any

import msgspec
from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse

from ..errors import MissingExtra, UnreadableRecord, UsageError
from ..server.auth import NO_KEYS, Authenticator
from ..server.middleware import error_response, install_error_handlers, request_head
from ..server.page import files
from ..settings import ServerSettings
from .chat_template import Tokenizer
from .index import RolloutIndex, RolloutSummary
from .listing import (
    GroupListing,
    RolloutFilter,
    RolloutListing,
    SearchListing,
    TextSearch,
    groups_of,
    ordered,
    runs_of,
)
from .records import RolloutOutcome

NOT_FOUND = 404
# Seconds that an answer waits for a reading of the index: for the one underway, then for the one after it. A page
# shows what is indexed by then, and asks again.
PATIENCE_S = 1.0
MOST_FOUND = 500
MOST_FAULTS = 20
_SEARCHED_TOGETHER = 64
# Bytes of a character in UTF-8. A token is at least one of them.
_MOST_BYTES = 4
# The page of a server may show pictures of any address; a model could send what it knows to one.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

Offset = Annotated[int, Query(ge=0)]


def load_tokenizer(name: str) -> Tokenizer:
    """Loads a tokenizer of the `transformers` library from a folder, or by its name on the Hub.

    Raises:
        MissingExtra: The library is not installed.
        UsageError: There is no such tokenizer.
    """
    try:
        from transformers import AutoTokenizer
    except ModuleNotFoundError:
        raise MissingExtra("transformers", "transformers") from None
    try:
        loaded: Tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the tokenizer {name!r} cannot be loaded, give a folder or a name on the Hub: {error}"
        ) from None
    return loaded


def viewer_app(
    folder: str | os.PathLike[str], settings: ServerSettings | None = None, tokenizer: Tokenizer | None = None
) -> FastAPI:
    """The app that shows the rollouts of a folder to every client on this machine.

    Args:
        folder: A folder with rollouts, or one file.
        settings: Names of hosts and origins that may use the app in addition to those of loopback.
        tokenizer: Shows tokens as text; without it, they are shown as ids.

    Raises:
        UnreadableRecord: There is no such folder or file.
    """
    viewer = RolloutViewer(RolloutIndex(folder), tokenizer)
    authenticator = Authenticator(settings or ServerSettings(api_keys=NO_KEYS), time.monotonic)

    async def admit(request: Request) -> None:
        authenticator.admit(request_head(request.scope))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        viewer.refresh()
        yield

    async def page(request: Request) -> Response:
        return files.document(request, "rollouts.html", _POLICY)

    app = FastAPI(openapi_url=None, lifespan=lifespan, dependencies=[Depends(admit)])
    install_error_handlers(app)
    app.get("/")(lambda: RedirectResponse("web"))
    app.get("/web")(page)
    app.get("/web/assets/{name}")(files.asset)
    for name in ("runs", "groups", "rows", "rollout", "tokens", "search"):
        app.get(f"/rollouts/{name}")(getattr(viewer, name))
    return app


class RolloutViewer:
    """The endpoints of the page. A rollout is named by its file and the byte at which its line begins.

    Args:
        index: The index of the rollouts.
        tokenizer: As for `viewer_app`.
    """

    def __init__(self, index: RolloutIndex, tokenizer: Tokenizer | None):
        self._index = index
        self._tokenizer = tokenizer
        self._reading: asyncio.Task[None] | None = None

    def refresh(self) -> asyncio.Task[None]:
        """Starts to read what was written since the last time, unless it is being read."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(asyncio.to_thread(self._index.refresh))
        return self._reading

    async def runs(self) -> Response:
        """The runs, after reading what is written by now; the state of that; files and lines that are no rollouts."""
        underway = self._reading
        if underway is not None:  # it has passed by what was written since it began
            await asyncio.wait([underway], timeout=PATIENCE_S)
        reading = self.refresh()
        if reading is not underway:
            await asyncio.wait([reading], timeout=PATIENCE_S)
        done = reading.done()
        if done:
            reading.result()
        index, faults = self._index, self._index.faults()
        return _json(
            {
                "folder": str(index.folder.resolve()),
                "read": 1.0 if done else index.read_bytes / max(1, index.total_bytes),
                "reading": not done,
                "faults": faults[:MOST_FAULTS]
                + [f"and {len(faults) - MOST_FAULTS} more"] * (len(faults) > MOST_FAULTS),
                "outcomes": {outcome.value: outcome.has_return for outcome in RolloutOutcome},
                "runs": runs_of(index.summaries()),
            }
        )

    async def groups(self, listing: Annotated[GroupListing, Query()]) -> Response:
        """Groups of the rollouts that a filter leaves."""
        return _json(listing.part(groups_of(await self._chosen(listing)), listing.sort))

    async def rows(self, listing: Annotated[RolloutListing, Query()]) -> Response:
        """Summaries of the rollouts that a filter leaves."""
        return _json(listing.part(await self._chosen(listing), listing.sort))

    async def rollout(self, file: str, offset: Offset) -> Response:
        """A whole rollout, with counts in place of its token ids, and its run."""
        try:
            found = await asyncio.to_thread(self._index.read, file, offset)
        except UnreadableRecord as error:
            return error_response(error, NOT_FOUND)
        tokens = []
        for turn in found.turns:
            mean = statistics.fmean(turn.logprobs) if turn.logprobs else None
            counts = {"prompt": len(turn.prompt_ids or ()), "completion": len(turn.completion_ids or ())}
            tokens.append({**counts, "logprob": mean})
            turn.prompt_ids = turn.completion_ids = turn.logprobs = None
        return _json({"rollout": found, "run": self._index.run_of(file), "tokens": tokens})

    async def tokens(self, file: str, offset: Offset, turn: Offset) -> Response:
        """The tokens of a completion: ids, logprobs, and texts if there is a tokenizer."""
        try:
            found = await asyncio.to_thread(self._index.read, file, offset)
            if turn >= len(found.turns):
                raise UnreadableRecord(f"rollout {found.rollout_id} has no turn {turn}: it has {len(found.turns)}")
        except UnreadableRecord as error:
            return error_response(error, NOT_FOUND)
        shown = found.turns[turn]
        ids = shown.completion_ids or []
        texts = None if self._tokenizer is None else _token_texts(self._tokenizer, ids)
        return _json({"source": shown.tokens, "ids": ids, "logprobs": shown.logprobs, "texts": texts})

    async def search(self, listing: Annotated[SearchListing, Query()]) -> Response:
        """The rollouts that contain a text, as lines of JSON: `row` and `match` of each, and the progress."""
        summaries = ordered(await self._chosen(listing), listing.sort, listing.descending)
        lines = self._matches(TextSearch(listing.text), summaries)
        return StreamingResponse(lines, headers=_HEADERS, media_type="application/x-ndjson")

    async def _matches(self, search: TextSearch, summaries: list[RolloutSummary]) -> AsyncIterator[bytes]:
        searched = found = 0
        for first in range(0, len(summaries), _SEARCHED_TOGETHER):
            some = summaries[first : first + _SEARCHED_TOGETHER]
            matches = await asyncio.to_thread(self._search, search, some)
            searched, found = searched + len(some), found + len(matches)
            facts = {"searched": searched, "of": len(summaries)}
            yield b"".join(msgspec.json.encode(line) + b"\n" for line in (*matches, facts))
            if found >= MOST_FOUND:
                return

    def _search(self, search: TextSearch, summaries: Iterable[RolloutSummary]) -> list[dict[str, Any]]:
        found = []
        for summary in summaries:
            try:
                match = search.find(self._index.line(summary.file, summary.offset))
            except (UnreadableRecord, msgspec.DecodeError):  # the file was replaced: the next list is without it
                continue
            if match is not None:
                found.append({"row": summary, "match": match})
        return found

    async def _chosen(self, wanted: RolloutFilter) -> list[RolloutSummary]:
        if self._reading is None:
            await asyncio.wait([self.refresh()], timeout=PATIENCE_S)
        return list(filter(wanted.matches, self._index.summaries()))


def _token_texts(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """The text of each token. A character of several tokens is the text of its last one."""
    texts: list[str] = []
    part: list[int] = []
    for number, token in enumerate(ids):
        part.append(token)
        text = tokenizer.decode(part, skip_special_tokens=False)
        whole = not text.endswith("\ufffd") or len(part) == _MOST_BYTES or number == len(ids) - 1
        texts.append(text if whole else "")
        if whole:
            part.clear()
    return texts


def _json(content: Any) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json", headers=_HEADERS)
