from __future__ import annotations

import itertools
import resource
import socket

import pytest

from openenv.server.workers import supervisor
from openenv.server.workers.pipe import MessageKind, Pipe
from openenv.server.workers.supervisor import BATCH, Acceptor

LIMIT_S = 10.0


class Place:
    """A worker's two ends of its channel, without a process."""

    def __init__(self):
        self.near, self.far = Pipe.pair()
        self.load = 0
        self.taken = []

    def hand(self, sockets):
        sent = self.near.send(MessageKind.CONNECTIONS, bytes([len(sockets)]), sockets)
        if sent:
            self.load += len(sockets)
        return sent

    def stuff(self):
        """Fills its pipe."""
        while self.near.send(MessageKind.FREE, bytes(1000)):
            pass

    def take(self):
        """Takes in what was handed over; returns who is at the other end of each connection."""
        callers = []
        while (message := self.far.receive()) is not None:
            for descriptor in message.sockets:
                connection = socket.socket(fileno=descriptor)
                callers.append(connection.getpeername())
                self.taken.append(connection)
        return callers

    def close(self):
        self.near.close()
        self.far.close()
        for connection in self.taken:
            connection.close()


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
        yield listener


@pytest.fixture
def acceptor(listener):
    acceptor = Acceptor(listener)
    yield acceptor
    acceptor.close()


@pytest.fixture
def places():
    places = [Place() for _ in range(3)]
    yield places
    for place in places:
        place.close()


@pytest.fixture
def call(listener):
    """Connects a number of callers; returns their addresses."""
    callers = []

    def call(count):
        new = [socket.create_connection(listener.getsockname(), timeout=LIMIT_S) for _ in range(count)]
        callers.extend(new)
        return [caller.getsockname() for caller in new]

    yield call
    for caller in callers:
        caller.close()


def taken(places):
    """Everybody who was handed to one of the places."""
    return list(itertools.chain(*(place.take() for place in places)))


def test_nobody_is_there(acceptor, places):
    acceptor.accept()
    assert not acceptor.crowded
    acceptor.hand_out(places)
    assert [place.take() for place in places] == [[], [], []]


def test_everybody_gets_somewhere_and_all_places_alike(acceptor, places, call):
    callers = call(100)
    acceptor.accept()
    acceptor.hand_out(places)
    shares = [place.take() for place in places]
    assert sorted(map(len, shares)) == [33, 33, 34]
    assert sorted(itertools.chain(*shares)) == sorted(callers)
    assert not acceptor.crowded


def test_the_least_loaded_place_comes_first(acceptor, places, call):
    places[0].load, places[1].load, places[2].load = 5, 0, 3
    call(4)
    acceptor.accept()
    acceptor.hand_out(places)
    assert [place.load for place in places] == [5, 4, 3] or [place.load for place in places] == [5, 3, 4]


def test_more_than_a_batch_waits_for_the_next_time(acceptor, places, call):
    callers = call(BATCH + 10)
    shares = []
    for expected in (BATCH, 10):
        acceptor.accept()
        acceptor.hand_out(places)
        shares.append(taken(places))
        assert len(shares[-1]) == expected
    assert sorted(itertools.chain(*shares)) == sorted(callers)


def test_a_place_without_room_is_left_out(acceptor, places, call):
    places[0].stuff()
    callers = call(20)
    acceptor.accept()
    acceptor.hand_out(places)
    assert places[0].load == 0
    assert sorted(places[1].take() + places[2].take()) == sorted(callers)


def test_without_any_room_all_wait_and_nobody_is_lost(acceptor, places, call):
    for place in places:
        place.stuff()
    callers = call(50)
    acceptor.accept()
    acceptor.hand_out(places)
    assert acceptor.crowded
    for place in places:
        place.take()
    acceptor.hand_out(places)
    assert not acceptor.crowded
    assert sorted(taken(places)) == sorted(callers)


def test_so_many_are_handed_out_and_the_others_wait_their_turn(acceptor, places, call):
    callers = call(10)
    acceptor.accept()
    acceptor.hand_out(places, 4)
    assert sorted(taken(places)) == sorted(callers[:4])
    assert acceptor.holding
    assert not acceptor.crowded
    acceptor.hand_out(places, 0)
    assert taken(places) == []
    acceptor.hand_out(places)
    assert sorted(taken(places)) == sorted(callers[4:])
    assert not acceptor.holding


def test_nobody_waits_for_long(acceptor, places, call, monkeypatch):
    callers = call(5)
    acceptor.accept()
    monkeypatch.setattr(supervisor, "UNDECIDED_S", 0.0)
    acceptor.hand_out(places, 0)
    assert sorted(taken(places)) == sorted(callers)


def test_without_any_place_all_wait(acceptor, places, call):
    callers = call(3)
    acceptor.accept()
    acceptor.hand_out([])
    assert acceptor.crowded
    acceptor.hand_out(places[:1])
    assert sorted(places[0].take()) == sorted(callers)


def test_those_whose_worker_died_come_again(acceptor, places, call):
    callers = call(4)
    acceptor.accept()
    acceptor.hand_out(places[:1])
    message = places[0].far.receive()
    acceptor.take_back(message.sockets)
    acceptor.hand_out(places[1:])
    assert sorted(places[1].take() + places[2].take()) == sorted(callers)


def test_a_door_that_closes_hangs_up_on_those_who_wait(listener):
    acceptor = Acceptor(listener)
    address = listener.getsockname()
    caller = socket.create_connection(address, timeout=LIMIT_S)
    acceptor.accept()
    assert acceptor.holding
    acceptor.close()
    with caller:
        assert caller.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=LIMIT_S)


def test_a_caller_that_hung_up_while_it_waited_harms_nobody(acceptor, places, listener, call):
    gone = socket.create_connection(listener.getsockname(), timeout=LIMIT_S)
    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    gone.close()
    callers = call(2)
    acceptor.accept()
    acceptor.hand_out(places)
    assert sum(place.load for place in places) >= len(callers)


def test_no_room_for_another_file(acceptor, places, call):
    call(2)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            acceptor.accept()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    acceptor.accept()
    acceptor.hand_out(places)
    assert sum(place.load for place in places) == 2
