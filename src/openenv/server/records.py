"""What a server records of its sessions, if it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..environment import Environment, metadata_of
from ..execution import class_of
from ..metrics import METER
from ..recording import Limits, Recorder, Subject
from ..settings import ServerSettings

if TYPE_CHECKING:
    from .environment_server import HTTPEnvServer

__all__ = ["recorder_of", "subject_of"]

_MIB = 1024 * 1024


def recorder_of(settings: ServerSettings) -> Recorder | None:
    """What records as the settings say; None: nothing is to be recorded.

    Raises:
        InvalidArgument: Nothing can be written in the folder.
    """
    if settings.record is None:
        return None
    most = settings.record_max_mb
    limits = Limits(
        share=settings.record_share,
        file_bytes=int(settings.record_file_mb * _MIB),
        folder_bytes=None if most is None else int(most * _MIB),
    )
    return Recorder(settings.record, limits, METER)


def subject_of(server: HTTPEnvServer) -> Subject:
    """What a server's sessions are sessions of. The version is known where the class alone tells it."""
    cls = class_of(server.env_factory)
    told = cls is not None and getattr(cls, "get_metadata", None) is Environment.get_metadata
    return Subject(server.env_name, metadata_of(cls).version if cls and told else None, server.contract.hash)
