"""The environment that jobs run."""

from __future__ import annotations

from openenv.bench.holder import Hold, Holder


def test_a_step_takes_the_memory_and_gives_it_back() -> None:
    holder = Holder()
    holder.reset()
    first = holder.step(Hold(megabytes=1, seconds=0))
    held = holder.step(Hold(megabytes=64, seconds=0))
    assert held.peak_rss_bytes >= first.peak_rss_bytes
    assert held.peak_rss_bytes > 64 * 2**20
    assert held.allocation_s > 0
    assert holder.state.step_count == 2


def test_no_memory_is_one_page() -> None:
    assert Holder().step(Hold(megabytes=0, seconds=0)).peak_rss_bytes > 0
