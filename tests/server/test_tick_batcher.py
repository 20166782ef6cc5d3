from __future__ import annotations

import asyncio
import logging

from openenv.server.transports.context import MOST_BYTES, MOST_REPLIES, MOST_REQUESTS, TickBatcher


class Taker:
    """Answers each request at once, or breaks."""

    def __init__(self, batcher, log, name, breaks=False):
        self.batcher, self.log, self.name, self.breaks = batcher, log, name, breaks

    def receive(self, frame):
        if self.breaks:
            raise ZeroDivisionError(self.name)
        self.log.append(("handled", self.name, frame))
        self.batcher.reply(self.sent, frame)

    def sent(self, frame):
        self.log.append(("sent", self.name, frame))

    def failed(self):
        self.log.append(("failed", self.name))


def in_turn(scenario):
    log: list = []

    async def run():
        batcher = TickBatcher()
        await scenario(batcher, log)

    asyncio.run(run())
    return log


async def next_turn():
    for _ in range(3):
        await asyncio.sleep(0)


def test_all_are_handled_before_the_first_reply_leaves():
    async def scenario(batcher, log):
        for name in "ab":
            batcher.request(Taker(batcher, log, name), b"1")
        assert log == []
        await next_turn()

    assert [entry[:2] for entry in in_turn(scenario)] == [
        ("handled", "a"), ("handled", "b"), ("sent", "a"), ("sent", "b"),
    ]  # fmt: skip


def test_the_requests_of_one_connection_keep_their_order():
    async def scenario(batcher, log):
        handler = Taker(batcher, log, "a")
        for number in range(200):
            batcher.request(handler, b"%d" % number)
        await next_turn()

    log = in_turn(scenario)
    for what in ("handled", "sent"):
        assert [entry[2] for entry in log if entry[0] == what] == [b"%d" % number for number in range(200)]


def test_requests_do_not_pile_up():
    async def scenario(batcher, log):
        for number in range(MOST_REQUESTS):
            assert log == []
            batcher.request(Taker(batcher, log, str(number)), b"")
        assert len(log) == 2 * MOST_REQUESTS
        batcher.request(Taker(batcher, log, "next"), b"")
        await next_turn()

    log = in_turn(scenario)
    assert [entry[0] for entry in log[:-2]] == ["handled"] * MOST_REQUESTS + ["sent"] * MOST_REQUESTS
    assert [entry[:2] for entry in log[-2:]] == [("handled", "next"), ("sent", "next")]


def test_replies_do_not_pile_up():
    async def scenario(batcher, log):
        class Talkative(Taker):
            def receive(self, frame):
                for _ in range(MOST_REPLIES + 1):
                    super().receive(frame)

        batcher.request(Talkative(batcher, log, "a"), b"")
        await next_turn()

    log = in_turn(scenario)
    first_sent = next(index for index, entry in enumerate(log) if entry[0] == "sent")
    assert first_sent == MOST_REPLIES


def test_large_replies_do_not_pile_up():
    async def scenario(batcher, log):
        for name in "abc":
            batcher.request(Taker(batcher, log, name), bytes(MOST_BYTES // 2))
        await next_turn()

    assert [entry[:2] for entry in in_turn(scenario)] == [
        ("handled", "a"), ("handled", "b"), ("sent", "a"), ("sent", "b"), ("handled", "c"), ("sent", "c"),
    ]  # fmt: skip


def test_a_reply_that_ends_its_connection_is_overtaken_by_none():
    async def scenario(batcher, log):
        handler = Taker(batcher, log, "a")

        def send_and_close(frame):
            handler.sent(frame)
            batcher.finish()

        for number in range(4):
            batcher.reply(send_and_close if number == 1 else handler.sent, b"%d" % number)
        await next_turn()

    assert [entry[2] for entry in in_turn(scenario)] == [b"0", b"1", b"2", b"3"]


def test_a_reply_that_cannot_be_sent_takes_no_other_along():
    raised = []

    async def scenario(batcher, log):
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: raised.append(context["exception"]))

        def broken(frame):
            raise ZeroDivisionError

        handler = Taker(batcher, log, "good")
        batcher.reply(broken, b"1")
        batcher.reply(handler.sent, b"2")
        await next_turn()

    assert in_turn(scenario) == [("sent", "good", b"2")]
    assert [type(error) for error in raised] == [ZeroDivisionError]


def test_a_reply_from_elsewhere_leaves_by_itself():
    async def scenario(batcher, log):
        handler = Taker(batcher, log, "late")
        batcher.reply(handler.sent, b"1")
        await next_turn()
        batcher.reply(handler.sent, b"2")
        await next_turn()

    assert in_turn(scenario) == [("sent", "late", b"1"), ("sent", "late", b"2")]


def test_one_that_breaks_takes_no_other_along(caplog):
    caplog.set_level(logging.ERROR, "openenv.server")

    async def scenario(batcher, log):
        batcher.request(Taker(batcher, log, "bad", breaks=True), b"")
        batcher.request(Taker(batcher, log, "good"), b"")
        await next_turn()

    assert [entry[:2] for entry in in_turn(scenario)] == [("failed", "bad"), ("handled", "good"), ("sent", "good")]
    assert "ZeroDivisionError" in caplog.text


def test_finishing_while_requests_are_handled_executes_none_twice():
    async def scenario(batcher, log):
        class Closing(Taker):
            def receive(self, frame):
                super().receive(frame)
                self.batcher.finish()

        for name in "abc":
            batcher.request(Closing(batcher, log, name), b"")
        await next_turn()

    log = in_turn(scenario)
    assert sorted(entry[1] for entry in log if entry[0] == "handled") == ["a", "b", "c"]
    assert sorted(entry[1] for entry in log if entry[0] == "sent") == ["a", "b", "c"]


def test_what_comes_afterwards_comes_when_the_replies_have_left():
    async def scenario(batcher, log):
        class Asking(Taker):
            def receive(self, frame):
                batcher.afterwards(lambda: log.append(("after", self.name)))
                super().receive(frame)

        for name in "ab":
            batcher.request(Asking(batcher, log, name), b"1")
        await next_turn()
        batcher.afterwards(lambda: log.append(("after", "nobody")))
        await next_turn()

    assert [entry[:2] for entry in in_turn(scenario)] == [
        ("handled", "a"), ("handled", "b"), ("sent", "a"), ("sent", "b"),
        ("after", "a"), ("after", "b"), ("after", "nobody"),
    ]  # fmt: skip


def test_what_comes_afterwards_comes_though_a_reply_could_not_be_sent():
    class Cut(Taker):
        def receive(self, frame):
            self.batcher.afterwards(lambda: self.log.append("afterwards"))
            self.batcher.reply(self.sent, frame)

        def sent(self, frame):
            raise ConnectionResetError

    async def scenario(batcher, log):
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: log.append("raised"))
        batcher.request(Cut(batcher, log, "a"), b"1")
        await next_turn()

    assert sorted(in_turn(scenario)) == ["afterwards", "raised"]
