"""The app of the parcel environment: one route more, one route less, and a middleware."""

import functools
import os

from fastapi import Request

try:
    from openenv.core.env_server import create_app
except ImportError:
    from openenv_core.env_server import create_app

try:
    from ..models import ParcelAction, ParcelObservation
    from .parcel_env_environment import ROUTES, ParcelEnvironment
except ImportError:
    from models import ParcelAction, ParcelObservation
    from server.parcel_env_environment import ROUTES, ParcelEnvironment

SMALL_LIMIT_KG = float(os.getenv("PARCEL_SMALL_LIMIT_KG", "10"))

make_environment = functools.partial(ParcelEnvironment, small_limit_kg=SMALL_LIMIT_KG)

app = create_app(
    make_environment,
    ParcelAction,
    ParcelObservation,
    env_name="parcel_env",
    max_concurrent_envs=int(os.getenv("MAX_CONCURRENT_ENVS", "40")),
)

# Our own page about the environment stands in for the usual one.
app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", None) != "/metadata"]


@app.get("/metadata")
def metadata():
    return {"name": "parcel_env", "description": "Parcels to be sorted into vans", "vans": ["small", "large"]}


@app.get("/depots")
def depots():
    return sorted({task["depot"] for tasks in ROUTES.values() for task in tasks})


@app.middleware("http")
async def stamp(request: Request, call_next):
    response = await call_next(request)
    response.headers["X-Parcel-Office"] = "open"
    return response


def main():
    import uvicorn

    uvicorn.run(app, host="0.0.0.0", port=int(os.getenv("PORT", "8000")))


if __name__ == "__main__":
    main()
