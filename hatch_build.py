"""The description of the package: README.md without links into this repository, which has no public address.

A page of a package index shows no file of the repository: a link there becomes the path in the source archive.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE = re.compile(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n\n?", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)([^)#]+)[^)]*\)")


class DescriptionHook(MetadataHookInterface):
    """Sets `readme`."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = _LINK.sub(lambda link: f"{link[1]} (`{link[2]}`)", _PICTURE.sub("", text))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
