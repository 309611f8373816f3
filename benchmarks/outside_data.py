"""Write simulated records of a household in a format that is not ours, to try ``normalize`` and ``mix`` on many.

The records are invented here: no data set is read. Their form is that of AgentInstruct's household tasks: ShareGPT
turns with a thought and one command in each reply. ``configs/datasets/simulated_household.yaml`` normalizes them.

    python benchmarks/outside_data.py --n 3000 --out data/simulated_household.jsonl
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

PLACES = {"shelf": False, "table": False, "desk": False, "cabinet": True, "drawer": True, "box": True}
"""Where things are kept, and whether it has a door or lid."""
ITEMS = ("mug", "plate", "apple", "book", "candle", "pen", "towel", "spoon", "vase", "lemon")
TREATED = {"": None, "clean": "sink", "heated": "stove", "cooled": "fridge"}
"""What may be wanted of a thing, and what does it."""
VERBS = {"clean": "clean", "heated": "heat", "cooled": "cool"}
ABSENT = 0.15
"""Share of searches that look at one place more than is needed."""

Turn = tuple[str, str, str]
"""A thought, a command and what is seen then."""


class House:
    """Places with things in them, and one thing that is wanted elsewhere."""

    def __init__(self, chance: random.Random) -> None:
        kinds = chance.choices(list(PLACES), k=chance.randint(5, 8))
        self.places = [f"{kind} {kinds[: number + 1].count(kind)}" for number, kind in enumerate(kinds)]
        self.things = {place: chance.sample(ITEMS, chance.randint(0, 2)) for place in self.places}
        self.item, self.state = chance.choice(ITEMS), chance.choice(list(TREATED))
        start, self.target = chance.sample(self.places, 2)
        # The wanted thing is in one place alone, or the first one found would do as well.
        self.things = {place: [item for item in items if item != self.item] for place, items in self.things.items()}
        self.things[start].append(self.item)
        self.start = start

    def question(self) -> str:
        """What is asked, with all places."""
        places = ", ".join(f"a {place}" for place in [*self.places, "sink", "stove", "fridge"])
        wanted = f"a {self.state} {self.item}" if self.state else f"the {self.item}"
        return f"You are in a house. Looking around, you see {places}.\nYour task is to: put {wanted} in {self.target}."

    def seen(self, place: str) -> str:
        """What is in or on a place."""
        items = ", ".join(self.things[place]) or "nothing"
        return f"{'In' if _is_closed(place) else 'On'} the {place}: {items}."

    def visited(self, place: str, why: str) -> Iterator[Turn]:
        """Go there, and open it if it has a door."""
        shown = f"The {place} is closed." if _is_closed(place) else self.seen(place)
        yield why, f"go to {place}", f"You are at the {place}. {shown}"
        if _is_closed(place):
            yield f"The {place} is closed, so I open it.", f"open {place}", f"You open the {place}. {self.seen(place)}"


def _is_closed(place: str) -> bool:
    return PLACES[place.rpartition(" ")[0]]


def turns(house: House, chance: random.Random) -> Iterator[Turn]:
    """Search place after place, take the thing, treat it and put it down."""
    others = [place for place in house.places if place not in (house.start, house.target)]
    for place in chance.sample(others, min(len(others), 1 if chance.random() < ABSENT else 0)):
        yield from house.visited(place, f"The {house.item} may be in the {place}.")
    yield from house.visited(house.start, f"I look for the {house.item} in the {house.start}.")
    took = f"take {house.item} from {house.start}"
    yield f"Here is the {house.item}, so I take it.", took, f"You take the {house.item}."
    tool = TREATED[house.state]
    if tool is not None:
        verb = VERBS[house.state]
        why = f"It must be {house.state}, which the {tool} is for."
        yield why, f"go to {tool}", f"You are at the {tool}."
        yield f"Now I {verb} it.", f"{verb} {house.item} with {tool}", f"The {house.item} is {house.state}."
    yield from house.visited(house.target, f"Now it belongs in the {house.target}.")
    done = f"put {house.item} in/on {house.target}"
    yield "All that is left is to put it down.", done, f"You put the {house.item} in the {house.target}."


def record(number: int) -> dict[str, object]:
    """The record of a number: the same on every machine."""
    chance = random.Random(number)
    house = House(chance)
    given = "Act in a house to fulfil a task. In each reply give a thought and one action, as:\nTHOUGHT: …\nACTION: …"
    conversation = [{"from": "human", "value": given}, {"from": "gpt", "value": "OK"}]
    before = house.question()
    for thought, command, shown in turns(house, chance):
        conversation.append({"from": "human", "value": before})
        conversation.append({"from": "gpt", "value": f"THOUGHT: {thought}\nACTION: {command}"})
        before = shown
    # The last turn is what the last command did.
    return {"id": f"household_{number}", "conversations": [*conversation, {"from": "human", "value": before}]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=3000, help="records")
    parser.add_argument("--out", type=Path, default=Path("data/simulated_household.jsonl"))
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with given.out.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record(number), ensure_ascii=False) + "\n" for number in range(given.n))
    print(f"{given.n:,} simulated records: {given.out}")


if __name__ == "__main__":
    main()
