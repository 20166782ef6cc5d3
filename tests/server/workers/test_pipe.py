from __future__ import annotations

import os
import socket

import pytest

from openenv._sockets import can_pass_sockets
from openenv.server.workers.pipe import MOST_BYTES, MOST_SOCKETS, MessageKind, Pipe, PipeMessage

from .whereabouts import opened


@pytest.fixture
def ends():
    here, there = Pipe.pair()
    yield here, there
    here.close()
    there.close()


@pytest.fixture
def sockets():
    made = [socket.socket() for _ in range(MOST_SOCKETS)]
    yield [one.fileno() for one in made]
    for one in made:
        one.close()


def inode(descriptor):
    return os.fstat(descriptor).st_ino


def test_messages_arrive_whole_and_in_order(ends):
    here, there = ends
    assert here.send(MessageKind.DRAIN, b"1.5")
    assert here.send(MessageKind.FREE)
    assert there.receive() == PipeMessage(MessageKind.DRAIN, b"1.5", [])
    assert there.receive() == PipeMessage(MessageKind.FREE, b"", [])
    assert there.receive() is None


def test_the_largest_message_with_all_its_sockets(ends, sockets):
    here, there = ends
    assert here.send(MessageKind.ROUTED, b"x" * (MOST_BYTES - 1), sockets)
    message = there.receive()
    assert len(message.payload) == MOST_BYTES - 1
    assert [inode(received) for received in message.sockets] == [inode(sent) for sent in sockets]
    assert not any(os.get_inheritable(received) for received in message.sockets)
    for received in message.sockets:
        os.close(received)


def fill(pipe):
    """Sends until the pipe is full; how many messages that took."""
    count = 0
    while pipe.send(MessageKind.DRAIN, b"x" * 1000):
        count += 1
    return count


def test_a_full_pipe_takes_nothing_more(ends):
    here, there = ends
    count = fill(here)
    assert count > 0
    assert not here.full
    received = 0
    while there.receive() is not None:
        received += 1
    assert received == count


def test_what_is_posted_to_a_full_pipe_waits_for_its_turn(ends, sockets):
    here, there = ends
    count = fill(here)
    before = opened(os.getpid())
    here.post(MessageKind.CONNECTIONS, sockets=[os.dup(sockets[0])])
    here.post(MessageKind.FREE)
    assert here.full
    assert not here.send(MessageKind.FREE)
    for _ in range(count):
        assert there.receive().kind is MessageKind.DRAIN
    assert there.receive() is None
    here.flush()
    assert not here.full
    received = there.receive()
    assert (received.kind, inode(received.sockets[0])) == (MessageKind.CONNECTIONS, inode(sockets[0]))
    assert there.receive().kind is MessageKind.FREE
    os.close(received.sockets[0])
    assert not opened(os.getpid()) - before


def test_what_was_not_sent_is_closed_with_the_pipe(ends, sockets):
    here, _ = ends
    fill(here)
    before = opened(os.getpid())
    here.post(MessageKind.CONNECTIONS, sockets=[os.dup(sockets[0])])
    here.close()
    assert here.fileno() == -1
    assert not opened(os.getpid()) - before


@pytest.mark.parametrize("unread", [True, False])
def test_the_end_of_the_other_side(ends, unread):
    here, there = ends
    if unread:
        there.send(MessageKind.FREE)
        here.send(MessageKind.FREE)
    there.close()
    kinds = [message.kind for message in (here.receive(), here.receive()) if message is not None]
    assert MessageKind.END in kinds
    assert not here.send(MessageKind.FREE)


def test_a_platform_without_the_means(monkeypatch):
    assert can_pass_sockets()
    monkeypatch.delattr(socket, "send_fds")
    assert not can_pass_sockets()
