from __future__ import annotations

import pytest

from openenv.protocol.codecs import SUBPROTOCOLS, choose, codec_of


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ([], None),
        (["openenv.v2.json"], "openenv.v2.json"),
        (["openenv.v2.json", "openenv.v2.msgpack"], "openenv.v2.json"),
        (["openenv.v2.msgpack", "openenv.v2.json"], "openenv.v2.msgpack"),
        (["chat", "openenv.v3.json", "openenv.v2.json"], "openenv.v2.json"),
        (["chat", "OPENENV.V2.JSON", ""], None),
    ],
)
def test_the_first_known_one_that_the_client_offers(offered, chosen):
    assert choose(iter(offered)) == chosen


@pytest.mark.parametrize("name", SUBPROTOCOLS)
def test_each_has_a_codec(name):
    codec = codec_of(name)
    assert codec.subprotocol == name
    assert codec.binary is (name == "openenv.v2.msgpack")
    assert codec_of(name) is codec


def test_another_has_none():
    with pytest.raises(ValueError, match=r"openenv\.v2\.msgpack and openenv\.v2\.json"):
        codec_of("openenv.v1")
