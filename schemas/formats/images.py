"""Paths of images that a reader should not follow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath, PureWindowsPath

from schemas.formats.format import Remarks
from schemas.trajectory import AnyItem, ImageObservation, WebObservation


def image_remarks(content: Sequence[AnyItem]) -> Remarks:
    """``missing_image_path`` for an empty one, ``unsafe_image_path`` for one that leads out of the data set's folder.

    Addresses with a scheme (``https:``, ``data:``) are no paths.
    """
    remarks = Remarks()
    for item in content:
        image = item.image_observation if isinstance(item, WebObservation) else item
        if isinstance(image, ImageObservation):
            remarks["missing_image_path"] += not image.content
            remarks["unsafe_image_path"] += _leads_out(image.content)
    return +remarks


def _leads_out(path: str) -> bool:
    scheme, colon, _ = path.partition(":")
    if colon and len(scheme) > 1 and scheme.isalpha() and scheme != "file":
        return False
    parts = (PurePosixPath(path), PureWindowsPath(path))
    return scheme == "file" or any(".." in each.parts or each.is_absolute() or each.drive for each in parts)
