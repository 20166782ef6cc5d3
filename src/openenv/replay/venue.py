"""Where episodes are played again: in this process, or at a server that runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..client import GenericEnvClient
from ..contract import Contract
from ..errors import ConnectionLost, MissingExtra, ProtocolViolation, SchemaMismatch, Unauthorized, UsageError
from ..testing.difference import SchemaNodes

__all__ = ["Venue", "app_venue", "schemas_at", "server_venue"]

ASK_S = 10.0
# A server of others may serve whoever it likes beside us.
WAIT_S = 30.0


class Venue:
    """An environment to play in.

    Args:
        name: What messages call it.
        schemas: Of its types, as `GET /schema` has them.
        contract: Of the same.
        sessions: How many it has room for; None: nobody knows.
        options: Of its clients: `app`, or `base_url` and what goes with it.

    Attributes:
        name: What messages call it.
        hash: Of its contract.
        sessions: How many it has room for; None: nobody knows.
    """

    def __init__(
        self,
        name: str,
        schemas: Mapping[str, Any],
        contract: Contract,
        sessions: int | None,
        **options: Any,
    ):
        self.name = name
        self.hash = contract.hash
        self.sessions = sessions
        self._options = options
        observation = SchemaNodes(schemas.get("observation"))
        self._observations = (
            SchemaNodes(schemas.get("reset_observation") or schemas.get("observation")),
            observation,
        )

    def client(self, timeout_s: float | None) -> GenericEnvClient:
        """A client of a session of its own, each call of which may take so many seconds."""
        return GenericEnvClient(message_timeout_s=timeout_s, wait_s=WAIT_S, **self._options)

    async def aclose(self) -> None:
        """Ends what was begun in this process; a server that runs is none of that."""
        app = self._options.get("app")
        if app is not None:
            await app.state.openenv.aclose()

    def observation(self, step: int) -> SchemaNodes:
        """What is said of the observation of a step; 0 is the reset."""
        return self._observations[bool(step)]

    def check(self, recorded: str | None, environment: str, versions: Mapping[str, Any]) -> None:
        """Whether a record was made with the schemas of this environment.

        Args:
            recorded: Hash of the record's; None: it says nothing, which is accepted.
            environment: Name of the record's.
            versions: Of openenv and of the environment, as the record has them.

        Raises:
            SchemaMismatch: They are others.
        """
        if recorded is None or recorded == self.hash:
            return
        version = versions.get("environment")
        was = f"{environment} {version}" if version else environment
        raise SchemaMismatch(
            f"the record is of {was} with schemas {recorded} (openenv {versions.get('openenv') or 'unknown'}), and "
            f"{self.name} has schemas {self.hash}: play it against the version that it was recorded with (--target, "
            "--base-url), or record anew",
            data={"recorded": recorded, "played": self.hash, "environment": environment, "versions": dict(versions)},
        )


def app_venue(target: str, app: Any) -> Venue:
    """An app in this process: no server, no socket.

    Raises:
        UsageError: `create_app` did not make it, so nobody can play in it.
    """
    server = getattr(getattr(app, "state", None), "openenv", None)
    if server is None:
        raise UsageError(
            f"{target} is an app that create_app did not make: serve it, and give its address (--base-url)"
        )
    return Venue(target, server.schemas, server.contract, server.max_concurrent_envs, app=app)


def server_venue(url: str, api_key: str | None) -> Venue:
    """A server that runs.

    Raises:
        ConnectionLost: It does not answer.
        Unauthorized: It wants another key.
        ProtocolViolation: It answers what is no schema.
        MissingExtra: httpx is not installed.
    """
    schemas = schemas_at(url, api_key)
    try:
        contract = Contract(schemas)
    except ValueError as error:
        raise ProtocolViolation(f"{url}/schema answers what is no schema: {error}") from None
    return Venue(url, schemas, contract, None, base_url=url, api_key=api_key)


def schemas_at(url: str, api_key: str | None) -> dict[str, Any]:
    """What `GET /schema` of a server answers. Raises as `server_venue`."""
    from ..client.url import http_url, websocket_url

    try:
        import httpx
    except ModuleNotFoundError:
        raise MissingExtra("httpx", "core") from None
    address = http_url(websocket_url(url))
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        answer = httpx.get(f"{address}/schema", headers=headers, timeout=ASK_S)
    except httpx.HTTPError as error:
        raise ConnectionLost(f"no answer from {address}: {str(error) or type(error).__name__}") from None
    if answer.status_code in {401, 403}:
        raise Unauthorized(f"{address} wants another key, or one at all: give it by --api-key")
    if answer.status_code != 200:
        raise ProtocolViolation(
            f"{address}/schema answers with status {answer.status_code}: is an environment there?"
        )
    try:
        schemas = answer.json()
    except ValueError as error:
        raise ProtocolViolation(f"{address}/schema answers what is no schema: {error}") from None
    return schemas if isinstance(schemas, dict) else {}
