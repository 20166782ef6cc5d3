"""The client in TypeScript: in node, in a browser, and with the types of real environments."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Route
from playwright.sync_api import Page as BrowserPage
from pydantic import create_model

from openenv.protocol.contract import Contract
from openenv.protocol.json_schema import schema_of
from openenv.protocol.typescript import typescript_of

from ..chaos.proxy import Proxy
from ..cli.process import serving
from ..docs.page import Page
from ..ports import held_port
from ..protocol.test_typescript import CASES
from .built import LIMIT_S, ROOT
from .conftest import Enter

PACKAGE = ROOT / "typescript"
TSC = PACKAGE / "node_modules/.bin/tsc"
KEY = "a-key-for-tests-0123456789"
PROJECTS = sorted(path.parent for path in (ROOT / "envs").glob("*/openenv.yaml"))
CONNECTING = """([url, key]) => client.connect(url, {key, connectTimeoutS: 60})
    .then(env => { window.env = env; }, error => error.name)"""
# Two modules for a program that uses the types of a bundled environment.
PROGRAM = """
import type { Contract } from './gridworld.ts';
import type { Contract as Shop } from './tool_shop.ts';
export const move: Contract['action'] = { move: 'up' };
export const call: Shop['action'] = { tool_name: 'finish', arguments: {} };
// @ts-expect-error: not a direction
export const wrong: Contract['action'] = { move: 'sideways' };
export const rows = (seen: Contract['observation']): number => seen.rows.length + seen.position[1];
// @ts-expect-error: the reward is beside the observation
export const reward = (seen: Contract['observation']) => seen.reward;
"""


@pytest.fixture(scope="module")
def dist() -> Path:
    """The package as npm builds it."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm in PATH: install Debian's package of that name")
    if not TSC.exists():
        subprocess.run([npm, "ci", "--silent"], cwd=PACKAGE, check=True, timeout=LIMIT_S)
    subprocess.run([npm, "run", "build", "--silent"], cwd=PACKAGE, check=True, timeout=LIMIT_S)
    return PACKAGE / "dist"


def test_in_node(dist: Path) -> None:
    variables = {**os.environ, "OPENENV_PYTHON": sys.executable}
    run = subprocess.run(
        ["npm", "test", "--silent"],
        cwd=PACKAGE,
        env=variables,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_generated_types_compile(dist: Path, tmp_path: Path) -> None:
    commands = [["contract", "types", str(each), "-o", str(tmp_path / f"{each.name}.ts")] for each in PROJECTS]
    run_all = f"from openenv.cli.main import app\nfor each in {commands}: app(each, standalone_mode=False)"
    subprocess.run([sys.executable, "-c", run_all], check=True, timeout=LIMIT_S)
    made: Any = {f"field_{number}": (kind, ...) for number, (kind, _) in enumerate(CASES)}
    schemas = dict.fromkeys(("action", "observation", "state"), schema_of(create_model("Made", **made)))
    (tmp_path / "made.ts").write_text(typescript_of(schemas, Contract(schemas).hash))
    (tmp_path / "program.ts").write_text(PROGRAM)
    options = ("--strict", "--noEmit", "--target", "es2022", "--allowImportingTsExtensions")
    run = subprocess.run(
        [TSC, *options, *tmp_path.glob("*.ts")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    assert len(PROJECTS) > 1


def test_the_programs_of_the_documents(dist: Path, tmp_path: Path) -> None:
    names = [block.title for block in Page("docs/how-to/typescript.md").blocks if block.title]
    for block in Page("docs/how-to/typescript.md").blocks:
        if block.title:
            (tmp_path / block.title).write_text(block.source)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    packages = tmp_path / "node_modules"
    packages.mkdir()
    for name in ("ws", "@types"):
        (packages / name).symlink_to(PACKAGE / "node_modules" / name)
    (packages / "openenv").symlink_to(PACKAGE)
    run_types = [sys.executable, "-m", "openenv", "contract", "types", "echo", "-o", "echo.ts"]
    subprocess.run(run_types, cwd=tmp_path, check=True, timeout=LIMIT_S)
    options = ("--strict", "--target", "es2022", "--module", "nodenext", "--rewriteRelativeImportExtensions")
    compiled = subprocess.run(
        [TSC, *options, *names], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert compiled.returncode == 0, compiled.stdout
    with serving("echo") as server:
        printed = [
            subprocess.run(
                ["node", str(name).replace(".ts", ".js")],
                cwd=tmp_path,
                env={**os.environ, "URL": server.url},
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=True,
            ).stdout
            for name in names
        ]
    assert printed == ["hello 0.5\n1\n", "0 1 2 3\n"]


def open_page(enter: Enter, url: str, dist: Path) -> BrowserPage:
    """A page of a server's own origin, with the client as its module `client`."""
    page = enter(refusals=True).page

    def answer(route: Route) -> None:
        name = route.request.url.rpartition("/")[2]
        if name == "page":
            route.fulfill(content_type="text/html", body="<!doctype html><title>client</title>")
        else:
            route.fulfill(content_type="text/javascript", path=dist / name)

    page.route(f"{url}/client/*", answer)
    page.goto(f"{url}/client/page")
    page.evaluate("async () => { window.client = await import('/client/index.js'); }")
    return page


def test_in_a_browser_over_a_bad_network(browser: Browser, dist: Path, enter: Enter) -> None:
    with serving("environment:app", cwd=PACKAGE / "test") as server:
        with Proxy(int(server.url.rpartition(":")[2])) as proxy:
            page = open_page(enter, proxy.url, dist)
            page.evaluate(CONNECTING, [proxy.url, None])
            page.evaluate("env.reset().then(() => null)")
            page.evaluate(
                "() => { window.steps = Promise.all(Array.from({length: 60}, (_, value) => env.step({value}))); }"
            )
            proxy.cut_all()
            proxy.cut_all()
            results = page.evaluate("async () => (await steps).map(each => each.observation)")
            assert [each["total"] for each in results] == list(range(1, 61))
            assert [each["value"] for each in results] == list(range(60))
            page.evaluate("env.close()")


def test_errors_in_a_browser(browser: Browser, dist: Path, enter: Enter) -> None:
    with held_port() as number:
        options = ("environment:app", "--port", str(number))
        with serving(*options, cwd=PACKAGE / "test", OPENENV_API_KEYS=KEY) as server:
            page = open_page(enter, server.url, dist)
            assert page.evaluate(CONNECTING, [server.url, "no-such-key"]) == "Unauthorized"
            assert page.evaluate(CONNECTING, [f"{server.url}/nowhere", KEY]) == "ConnectionFailed"
            page.evaluate(CONNECTING, [server.url, KEY])
            assert page.evaluate("env.reset({start: 98}).then(begun => begun.reward)") == 98
            page.evaluate("() => { window.hung = env.step({kind: 'hang'}).catch(error => error.name); }")
            server.end(signal.SIGKILL)
        with serving(*options, cwd=PACKAGE / "test", OPENENV_API_KEYS=KEY):
            assert page.evaluate("hung") == "SessionLost"
            assert page.evaluate("env.reset().then(() => env.step({amount: 100})).then(last => last.done)") is True
            page.evaluate("env.close()")
