"""Prompt texts, one file each."""

from __future__ import annotations

from importlib.resources import files


def prompt(name: str) -> str:
    """The text of ``NAME.txt``, without white space around it."""
    return files(__package__).joinpath(f"{name}.txt").read_text(encoding="utf-8").strip()
