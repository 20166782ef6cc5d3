"""Importing the package loads what is used, and no more."""

from __future__ import annotations

import json
import subprocess
import sys

SERVER_SIDE = {"server", "encoding", "messages", "errors", "coercion"}


def loaded_by(program):
    """Names of the modules of the package that a fresh interpreter has loaded after a program."""
    told = "; import json, sys; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program + told], capture_output=True, text=True, check=True)
    return {name.rpartition(".")[2] for name in json.loads(done.stdout) if name.startswith("openenv.protocol.")}


def test_the_package_alone():
    assert loaded_by("import openenv.protocol") == set()


def test_a_client_does_not_load_the_server():
    client, codecs = "from openenv.protocol.client import *", "from openenv.protocol.codecs import *"
    loaded = loaded_by(
        f"{client}; {codecs}; [ClientProtocolV2(codec_of(name)).request('open', {{}}) for name in SUBPROTOCOLS]"
    )
    assert {"client", "codecs"} <= loaded
    assert not loaded & SERVER_SIDE
