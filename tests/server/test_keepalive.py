from __future__ import annotations

import asyncio

from openenv.server.timers import AppKeepalive, Keepalive


class Patient:
    def __init__(self):
        self.heard = True
        self.pings = 0
        self.cuts = 0

    def silent(self):
        heard, self.heard = self.heard, False
        return not heard

    def ping(self):
        self.pings += 1

    def cut(self):
        self.cuts += 1


def beating(scenario, interval=60.0):
    async def run():
        keepalive = Keepalive(interval)
        await scenario(keepalive)

    asyncio.run(run())


def test_a_silent_connection_is_cut_at_the_second_beat():
    async def scenario(keepalive):
        patient = Patient()
        keepalive.watch(patient)
        keepalive.beat()
        assert (patient.pings, patient.cuts) == (1, 0)
        keepalive.beat()
        assert (patient.pings, patient.cuts) == (1, 1)
        keepalive.beat()
        assert patient.cuts == 1

    beating(scenario)


def test_a_connection_that_answers_lives_on():
    async def scenario(keepalive):
        patient = Patient()
        keepalive.watch(patient)
        for beats in range(1, 6):
            keepalive.beat()
            patient.heard = True
            assert (patient.pings, patient.cuts) == (beats, 0)

    beating(scenario)


def test_a_forgotten_connection_hears_nothing_and_the_timer_ends_with_the_last():
    async def scenario(keepalive):
        patient, other = Patient(), Patient()
        keepalive.watch(patient)
        keepalive.watch(other)
        keepalive.forget(patient)
        assert keepalive._timer is not None
        keepalive.beat()
        assert (patient.pings, other.pings) == (0, 1)
        keepalive.forget(other)
        keepalive.forget(other)
        assert keepalive._timer is None

    beating(scenario)


def test_the_timer_beats_by_itself_and_stops_when_nobody_is_left():
    async def scenario(keepalive):
        cut = asyncio.Event()
        patient = Patient()
        patient.cut = cut.set
        keepalive.watch(patient)
        await asyncio.wait_for(cut.wait(), 20)
        assert patient.pings == 1
        assert keepalive._timer is None

    beating(scenario, interval=0.005)


def test_without_an_interval_nothing_is_watched():
    async def scenario(keepalive):
        patient = Patient()
        keepalive.watch(patient)
        assert keepalive._timer is None
        keepalive.beat()
        assert patient.pings == 0

    beating(scenario, interval=None)


def test_words_are_missed_after_seven_quarters_of_two_periods():
    async def scenario(keepalive):
        patient = Patient()
        app_keepalive = AppKeepalive(patient.silent, lambda: setattr(patient, "cuts", patient.cuts + 1))
        keepalive.watch(app_keepalive)
        for _ in range(8):
            assert patient.cuts == 0
            keepalive.beat()
        assert patient.cuts == 1

    async def run():
        await scenario(Keepalive.of_app(60.0))

    asyncio.run(run())


def test_a_word_at_any_time_begins_the_count_anew():
    async def run():
        keepalive = Keepalive.of_app(60.0)
        patient = Patient()
        app_keepalive = AppKeepalive(patient.silent, lambda: setattr(patient, "cuts", patient.cuts + 1))
        keepalive.watch(app_keepalive)
        for beat in range(40):
            patient.heard = beat % 7 == 0
            keepalive.beat()
        assert patient.cuts == 0
        keepalive.forget(app_keepalive)
        assert keepalive._timer is None

    asyncio.run(run())


def test_one_that_ends_together_with_another_is_not_cut():
    async def scenario(keepalive):
        first, second = Patient(), Patient()
        first.heard = second.heard = False
        first.cut = lambda: keepalive.forget(second)
        keepalive.watch(first)
        keepalive.watch(second)
        keepalive.beat()
        assert second.cuts == 0

    beating(scenario)
