from __future__ import annotations

import asyncio
import contextlib
import threading

from openenv.runtime.thread import Mailbox

from ..asynchronous import PATIENCE_S


class Bell:
    """An event loop as a mailbox sees one: it can be rung from any thread."""

    def __init__(self):
        self.rings = []

    def call_soon_threadsafe(self, callback):
        self.rings.append(callback)

    def answer(self):
        self.rings.pop(0)()


class TestMailbox:
    def test_letters_that_wait_together_ring_once(self):
        bell, heard = Bell(), []
        mailbox = Mailbox(bell)
        failure = ValueError("no")
        mailbox.post(lambda *letter: heard.append(letter), 1, None)
        mailbox.post(lambda *letter: heard.append(letter), None, failure)
        mailbox.post(lambda *letter: heard.append(letter), 3, None)
        assert len(bell.rings) == 1
        assert heard == []
        bell.answer()
        assert heard == [(1, None), (None, failure), (3, None)]

    def test_a_later_letter_rings_again(self):
        bell, heard = Bell(), []
        mailbox = Mailbox(bell)
        for number in range(3):
            mailbox.post(lambda result, _: heard.append(result), number, None)
            bell.answer()
        assert heard == [0, 1, 2]

    def test_a_letter_posted_during_delivery_arrives(self):
        bell, heard = Bell(), []
        mailbox = Mailbox(bell)
        mailbox.post(lambda *_: mailbox.post(lambda result, _: heard.append(result), "second", None), 1, None)
        while bell.rings:
            bell.answer()
        assert heard == ["second"]

    def test_a_reader_that_raises_does_not_keep_the_letters_of_others(self):
        bell, heard = Bell(), []
        mailbox = Mailbox(bell)

        def broken(result, error):
            raise LookupError("the reader's own fault")

        mailbox.post(broken, 1, None)
        mailbox.post(lambda result, _: heard.append(result), 2, None)
        rounds = 0
        while bell.rings and rounds < 5:
            rounds += 1
            with contextlib.suppress(LookupError):
                bell.answer()
        assert heard == [2]

    def test_what_a_closed_loop_cannot_take_waits_for_the_next(self):
        loop = asyncio.new_event_loop()
        loop.close()
        mailbox, heard, bell = Mailbox(loop), [], Bell()
        mailbox.post(lambda *letter: heard.append(letter), 1, None)
        mailbox.post(lambda *letter: heard.append(letter), 2, None)
        assert heard == []
        mailbox.move(bell)
        bell.answer()
        assert heard == [(1, None), (2, None)]

    def test_a_letter_that_the_old_loop_never_delivered_moves_too(self):
        old, new, heard = Bell(), Bell(), []
        mailbox = Mailbox(old)
        mailbox.post(lambda result, _: heard.append(result), 1, None)
        mailbox.move(new)
        mailbox.post(lambda result, _: heard.append(result), 2, None)
        while new.rings:
            new.answer()
        assert heard == [1, 2]

    def test_moving_an_empty_one(self):
        old, new, heard = Bell(), Bell(), []
        mailbox = Mailbox(old)
        mailbox.move(new)
        assert new.rings == []
        mailbox.post(lambda result, _: heard.append(result), 1, None)
        new.answer()
        assert (heard, old.rings) == ([1], [])

    async def test_letters_from_many_threads_all_arrive_once(self):
        mailbox, heard = Mailbox(asyncio.get_running_loop()), []
        complete = asyncio.Event()

        def read(result, _):
            heard.append(result)
            if len(heard) == 8 * 200:
                complete.set()

        def write(writer):
            for number in range(200):
                mailbox.post(read, (writer, number), None)

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(8)]
        for thread in threads:
            thread.start()
        await asyncio.wait_for(complete.wait(), PATIENCE_S)
        for thread in threads:
            thread.join()
        assert len(set(heard)) == len(heard) == 8 * 200
        for writer in range(8):
            assert [number for found, number in heard if found == writer] == list(range(200))
