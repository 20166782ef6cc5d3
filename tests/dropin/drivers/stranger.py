"""Drives a server of the parcel environment with clients of the harbor."""

from __future__ import annotations

import warnings

from checks import check, fails, main
from harbor_env import HarborAction, HarborEnv, HarborObservation, HarborState

from openenv.client import EnvClient
from openenv.errors import SchemaMismatch


class Derived(EnvClient[HarborAction, HarborObservation, HarborState]):
    """Leaves everything to its types."""


@check
def a_warning_names_the_first_field_that_differs(url: str) -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with fails("vans"):
            with Derived(base_url=url).sync() as env:
                env.reset()
    told = [warning for warning in heard if issubclass(warning.category, SchemaMismatch)]
    assert len(told) == 1, heard
    assert "berth" in str(told[0].message) or "van" in str(told[0].message), told[0].message


@check
def a_strict_client_is_refused(url: str) -> None:
    with fails("action"):
        with Derived(base_url=url, strict=True).sync() as env:
            env.reset()


@check
def a_client_that_parses_for_itself_fails_at_the_field_that_it_lacks(url: str) -> None:
    with fails("vans"):
        with HarborEnv(base_url=url).sync() as env:
            env.reset()


@check
def the_right_client_hears_no_warning(url: str) -> None:
    from parcel_env import ParcelAction, ParcelEnv, ParcelObservation, ParcelState

    class Right(EnvClient[ParcelAction, ParcelObservation, ParcelState]):
        """Of the environment itself."""

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for client_type in (ParcelEnv, Right):
            with client_type(base_url=url, strict=True).sync() as env:
                env.reset(parcels=1)
                assert env.step(ParcelAction(van="large")).done
                assert env.state().step_count == 1


if __name__ == "__main__":
    main()
