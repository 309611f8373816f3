"""What the hidden things of a coding problem are called."""

from __future__ import annotations

from typing import NamedTuple


class Theme(NamedTuple):
    """``noun`` and ``nouns`` name a thing and several, ``place`` where the agent is."""

    name: str
    keywords: str
    noun: str
    nouns: str
    place: str

    @property
    def about(self) -> str:
        """The first sentence of a problem."""
        return f"You work {self.place}."


THEMES = (
    Theme("kitchen", "restaurant kitchen dish cook bread food meal guest", "jar", "jars", "in the store of a kitchen"),
    Theme("depot", "warehouse parcel ship truck deliver crate boat harbour", "crate", "crates", "in a depot"),
    Theme("ward", "nurse patient medicine ward doctor health drug", "vial", "vials", "in the pharmacy of a ward"),
    Theme("archive", "book library letter archive contract shelf office", "folder", "folders", "in an archive"),
    Theme("station", "space station oxygen tank robot battery crew", "tank", "tanks", "on a space station"),
    Theme("farm", "farm vegetable soil water greenhouse harvest valve", "bed", "beds", "on a farm"),
    Theme("garage", "car engine mechanic bicycle tool part repair", "box", "boxes", "in a garage"),
    Theme("laboratory", "chemistry experiment sample flask heat mix", "flask", "flasks", "in a laboratory"),
    Theme("theatre", "stage school theatre orchestra concert instrument", "case", "cases", "behind a stage"),
    Theme("mine", "mine tunnel map tower door key puzzle", "chest", "chests", "in an old mine"),
)
