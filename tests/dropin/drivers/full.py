"""Drives a server of the parcel environment that has room for three sessions."""

from __future__ import annotations

import json

from checks import check, fails, http, main, websocket
from parcel_env import ParcelAction, ParcelEnv


@check
def the_fourth_session_is_refused_and_the_next_gets_the_free_slot(url: str) -> None:
    envs = [ParcelEnv(base_url=url) for _ in range(3)]
    for env in envs:
        env.reset(parcels=3)
    with fails("3"):
        with ParcelEnv(base_url=url).sync() as late:
            late.reset()
    with websocket(url) as socket:
        refused = json.loads(socket.recv(timeout=30))
        assert refused["data"]["code"] == "CAPACITY_REACHED"
        assert refused["data"]["active_sessions"] == 3
        assert refused["data"]["max_sessions"] == 3
    refused = http("POST", url + "/sessions", {})
    assert refused.status == 503, refused
    created = http("POST", url + "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create"}).json
    assert created["error"]["code"] in {-32000, -32601}
    envs.pop().close()
    with ParcelEnv(base_url=url).sync() as env:
        env.reset(parcels=1)
        assert env.step(ParcelAction(van="large")).done
    for env in envs:
        assert env.step(ParcelAction(van="large")).reward == 1.0
        env.close()


if __name__ == "__main__":
    main()
