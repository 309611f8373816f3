"""Which tables a toolbox has: a party, a thing and a record between them, and what chance adds around these."""

from __future__ import annotations

import random

from agentmill.synthesis.environments.toolbox.toolbox import Column
from agentmill.synthesis.generators.toolbox_procedural.draft import Draft, Entity
from agentmill.synthesis.generators.toolbox_procedural.vocabulary import CITIES, Theme

PRIORITIES = ("low", "normal", "high")
FLAGS = ("active", "blocked")


def entities(theme: Theme, chance: random.Random) -> Draft:
    """A draft with tables and no tools."""
    draft = Draft(theme)
    sketches = {"region": 0.25, "place": 0.5, "staff": 0.45, "account": 0.35, "stockpile": 0.4, "line": 0.35}
    sketches |= {"note": 0.4, "review": 0.25, "waiting": 0.25}
    drawn = {role for role, likely in sketches.items() if chance.random() < likely}
    drawn -= set() if "place" in drawn else {"region", "stockpile"}
    if "region" in drawn:
        _add(draft, "region", "region", chance.randint(3, 4))
    if "place" in drawn:
        _place(draft, chance)
    if "staff" in drawn:
        _staff(draft, chance)
    _party(draft, chance)
    _thing(draft, chance, counted="stockpile" not in drawn)
    if "account" in drawn:
        _account(draft, chance)
    if "stockpile" in drawn:
        _stockpile(draft, chance)
    _record(draft, chance, lines="line" in drawn)
    if "line" in drawn:
        line = _add(draft, "line", f"{theme.record} line", chance.randint(16, 24))
        _refer(draft, line, "record", "thing")
        line.add("counter", Column(name="quantity", type="integer", least=1, most=9))
    for role in ("note", "review", "waiting"):
        if role in drawn:
            _remark(draft, role, chance)
    return draft


def _add(draft: Draft, role: str, noun: str, size: int) -> Entity:
    entity = draft.entities[role] = Entity(role, noun, size)
    if role in ("region", "place", "staff", "party", "thing"):
        label = "title" if role == "thing" else "name"
        entity.add("name", Column(name=label, type="text", label=f"{noun} {label}", unique=True))
    return entity


def _refer(draft: Draft, entity: Entity, *roles: str, optional: bool = False) -> None:
    for role in roles:
        if role in draft.entities:
            parent = draft.entities[role]
            column = Column(
                name=parent.key, type="integer", label=parent.noun, references=parent.table, optional=optional
            )
            entity.add(f"to {role}", column)


def _place(draft: Draft, chance: random.Random) -> None:
    place = _add(draft, "place", draft.theme.place, chance.randint(3, 4))
    _refer(draft, place, "region")
    if chance.random() < 0.5:
        place.add("limit", Column(name="room_limit", type="integer", label="room limit", least=3, most=9))
    if chance.random() < 0.4:
        place.add("flag", Column(name="state", type="text", label=f"{place.noun} state", values=("open", "closed")))


def _staff(draft: Draft, chance: random.Random) -> None:
    staff = _add(draft, "staff", draft.theme.staff, chance.randint(4, 6))
    if chance.random() < 0.6:
        _refer(draft, staff, "place")
    if chance.random() < 0.5:
        staff.add("category", Column(name="shift", type="text", values=("early", "late", "night")))
    if chance.random() < 0.4:
        staff.add("counter", Column(name="hours", type="integer", label="hours left", least=0, most=40))


def _party(draft: Draft, chance: random.Random) -> None:
    party = _add(draft, "party", draft.theme.party, chance.randint(8, 14))
    if chance.random() < 0.7:
        party.add("contact", Column(name="email", type="text", label="email address", unique=True))
    if chance.random() < 0.6:
        party.add("text", Column(name="city", type="text", examples=CITIES))
    if chance.random() < 0.6:
        party.add("category", Column(name="tier", type="text", values=draft.theme.tiers))
    if chance.random() < 0.4:
        party.add("counter", Column(name="points", type="integer", label="bonus points", least=0, most=90))
    if chance.random() < 0.4:
        party.add("flag", Column(name="state", type="text", label=f"{party.noun} state", values=FLAGS))
    if chance.random() < 0.3:
        _refer(draft, party, "staff")
    elif chance.random() < 0.3:
        _refer(draft, party, "place")


def _thing(draft: Draft, chance: random.Random, *, counted: bool) -> None:
    theme = draft.theme
    thing = _add(draft, "thing", theme.thing, min(len(theme.things), chance.randint(6, 9)))
    thing.add("category", Column(name=theme.kind, type="text", values=theme.kinds))
    if chance.random() < 0.7:
        thing.add("amount", Column(name=theme.amount, type="integer", least=1, most=120))
    if counted and chance.random() < 0.8:
        thing.add("counter", Column(name=theme.stock, type="integer", least=0, most=12))
    if chance.random() < 0.35:
        _refer(draft, thing, "place")
    if chance.random() < 0.3:
        thing.add("flag", Column(name="offer", type="text", label="offer state", values=("listed", "paused")))


def _account(draft: Draft, chance: random.Random) -> None:
    account = _add(draft, "account", "account", chance.randint(8, 12))
    _refer(draft, account, "party")
    account.add("counter", Column(name="balance", type="integer", least=0, most=400))
    if chance.random() < 0.6:
        account.add("category", Column(name="purpose", type="text", values=("daily", "savings", "shared")))
    if chance.random() < 0.4:
        account.add("flag", Column(name="state", type="text", label="account state", values=("free", "frozen")))


def _stockpile(draft: Draft, chance: random.Random) -> None:
    stockpile = _add(draft, "stockpile", f"{draft.theme.thing} supply", chance.randint(10, 14))
    _refer(draft, stockpile, "thing", "place")
    stockpile.add("counter", Column(name="quantity", type="integer", least=0, most=30))


def _record(draft: Draft, chance: random.Random, *, lines: bool) -> None:
    theme = draft.theme
    record = _add(draft, "record", theme.record, chance.randint(14, 22))
    _refer(draft, record, "party")
    if not lines:
        _refer(draft, record, "thing")
    record.add("status", Column(name="status", type="text", label=f"{theme.record} status", values=theme.life))
    if "staff" in draft.entities and chance.random() < 0.7:
        _refer(draft, record, "staff", optional=chance.random() < 0.6)
    if chance.random() < 0.4:
        _refer(draft, record, "place")
    if chance.random() < 0.6:
        record.add("category", Column(name="priority", type="text", values=PRIORITIES))
    if chance.random() < 0.5:
        record.add("amount", Column(name="total", type="integer", label="total amount", least=5, most=300))
    if chance.random() < 0.4:
        record.add("text", Column(name="destination", type="text", examples=CITIES))
    if chance.random() < 0.4:
        record.add("day", Column(name="due_day", type="integer", label="due day", least=1, most=28))


def _remark(draft: Draft, role: str, chance: random.Random) -> None:
    """Notes on something, reviews of things, places in a queue."""
    noun = {"note": draft.theme.note, "review": "review", "waiting": "waiting entry"}[role]
    entity = _add(draft, role, noun, chance.randint(8, 14))
    if role == "note":
        targets = [target for target in ("record", "thing", "party", "place") if target in draft.entities]
        _refer(draft, entity, chance.choice(targets))
        examples = (
            "call back",
            "needs a signature",
            "left at the gate",
            "handle with care",
            "paid in cash",
            "ask twice",
        )
        entity.add("text", Column(name="content", type="text", label=f"{noun} text", examples=examples))
    else:
        _refer(draft, entity, "party", "thing")
        label = "stars" if role == "review" else "rank"
        entity.add("amount", Column(name=label, type="integer", least=1, most=5))
    if chance.random() < 0.4:
        entity.add("category", Column(name="visibility", type="text", values=("internal", "public")))
