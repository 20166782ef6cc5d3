"""Parcels to be sorted into vans."""

from .client import ParcelEnv
from .models import Parcel, ParcelAction, ParcelObservation, ParcelState, Van

__all__ = ["Parcel", "ParcelAction", "ParcelEnv", "ParcelObservation", "ParcelState", "Van"]
