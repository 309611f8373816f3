"""What an agent in a level has seen, and its words: names of things, and where they are from here."""

from __future__ import annotations

from collections.abc import Iterator

from agentmill.synthesis.environments.babyai.game import AHEAD, Cell, Game, Thing, is_free, position


class Sight:
    """The cells and things seen since the start. A thing keeps its name, as ``red ball 2``, the second one seen."""

    def __init__(self, game: Game) -> None:
        self._game = game
        self.cells: set[Cell] = {position(game)}
        self.names: dict[str, Thing] = {}
        self._view: list[tuple[int, int, Thing]] = []
        self.look()

    def look(self) -> None:
        """Take in what is seen from here, the nearest first."""
        self._view = []
        for cell, forward, right in self._seen_now():
            self.cells.add(cell)
            thing = self._game.grid.get(*cell)
            if thing is not None and thing.type != "wall" and (forward, right) != (0, 0):
                self._view.append((forward, right, thing))
        # In some levels a thing is in hand from the start.
        for thing in [self._game.carrying, *(thing for _, _, thing in self._view)]:
            if thing is not None and self.name(thing) is None:
                kind = f"{thing.color} {thing.type}"
                number = 1 + sum(name.rpartition(" ")[0] == kind for name in self.names)
                self.names[f"{kind} {number}"] = thing

    def name(self, thing: Thing | None) -> str | None:
        """What a thing is called, if it was seen."""
        # Things of one kind and color are equal, so only identity tells them apart.
        return next((name for name, known in self.names.items() if known is thing), None)

    def places(self) -> dict[str, Cell]:
        """Where the things are that were seen, but for the one that is carried and a door that the agent is in."""
        here = position(self._game)
        found = {}
        for cell in sorted(self.cells - {here}):
            name = self.name(self._game.grid.get(*cell))
            if name is not None:
                found[name] = cell
        return {name: found[name] for name in self.names if name in found}

    def describe(self) -> str:
        """What is seen now, what was seen before, how far the way ahead is free, and what is carried."""
        seen = {str(self.name(thing)): f"{self.look_of(thing)} ({_where(f, r)})" for f, r, thing in self._view}
        before = [self.look_of(self.names[name]) for name in self.places() if name not in seen]
        text = f"You see {', '.join(seen.values()) or 'nothing'}."
        if before:
            text += f" Out of sight: {', '.join(before)}."
        free = self._free_ahead()
        text += f" Ahead {free} {'step is' if free == 1 else 'steps are'} free."
        carried = self.name(self._game.carrying)
        return f"{text} You carry {carried}." if carried else text

    def look_of(self, thing: Thing) -> str:
        """A thing's name, of doors with whether they are open."""
        if thing.type != "door":
            return str(self.name(thing))
        state = "open" if thing.is_open else "locked" if thing.is_locked else "closed"
        return f"{state} {self.name(thing)}"

    def _seen_now(self) -> Iterator[tuple[Cell, int, int]]:
        """The cells in view, each with its steps forward and to the right."""
        size = self._game.agent_view_size
        _, seen = self._game.gen_obs_grid()
        column, row = position(self._game)
        (fx, fy), (rx, ry) = AHEAD[self._game.agent_dir], AHEAD[(self._game.agent_dir + 1) % 4]
        for forward in range(size):
            for right in sorted(range(-(size // 2), size // 2 + 1), key=lambda step: (abs(step), step)):
                cell = column + forward * fx + right * rx, row + forward * fy + right * ry
                inside = 0 <= cell[0] < self._game.grid.width and 0 <= cell[1] < self._game.grid.height
                if inside and seen[right + size // 2, size - 1 - forward]:
                    yield cell, forward, right

    def _free_ahead(self) -> int:
        column, row = position(self._game)
        across, down = AHEAD[self._game.agent_dir]
        free = 0
        while True:
            cell = column + (free + 1) * across, row + (free + 1) * down
            if cell not in self.cells or not is_free(self._game.grid.get(*cell)):
                return free
            free += 1


def _where(forward: int, right: int) -> str:
    if (forward, right) == (1, 0):
        return "in front of you"
    side = f"{abs(right)} {'right' if right > 0 else 'left'}" if right else ""
    return ", ".join(part for part in (f"{forward} forward" if forward else "", side) if part)
