"""The expert of the levels: the parts of the mission that are left, each by the command that is nearest to it.

It knows what the mission names, and of the map what an agent has seen; else it looks around: at unseen cells, the
nearest first, then behind doors, for the keys of locked doors, and into boxes. It needs no memory, so it goes on from
whatever another agent did. BabyAI's own bot is not used: it takes back what it did not plan itself. Missions in which
things block the way are beyond it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentmill.schemas.records.trajectory import ApiAction
from agentmill.synthesis.environments.babyai.commands import TURN_LEFT, Ways, legal
from agentmill.synthesis.environments.babyai.game import AHEAD, FORWARD, Cell, Game, Thing, before, parts, position
from agentmill.synthesis.environments.babyai.sight import Sight


class Expert:
    """Advice for one state of a game."""

    def __init__(self, game: Game, sight: Sight) -> None:
        self._game = game
        self._sight = sight
        self._options = list(legal(game, sight))
        self._names = {cell: name for name, cell in sight.places().items()}

    def advice(self) -> ApiAction | None:
        """The next command, or ``None`` where there is nothing left to try."""
        goals = _left(self._game.instrs)
        for goal in goals:
            known = self._towards(goal)
            if known is not None:
                return known
        return self._look_around([thing for goal in goals for thing in _named(goal)])

    def _towards(self, goal: Any) -> ApiAction | None:
        """The next command for a part of the mission, if what it names was seen and can be reached."""
        carried = self._game.carrying
        match type(goal).__name__:
            case "GoToInstr":
                return self._nearest("go_to", goal.desc.obj_set)
            case "PickupInstr":
                return self._pick_up(goal.desc.obj_set)
            case "OpenInstr":
                doors = goal.desc.obj_set
                found = self._nearest("open", doors) or self._nearest("close", doors)
                return found or self._fetch_key(doors)
            case "PutNextInstr" if any(carried is thing for thing in goal.desc_move.obj_set):
                return self._nearest("put_next_to", goal.desc_fixed.obj_set)
            case "PutNextInstr":
                return self._pick_up(goal.desc_move.obj_set)
        return None

    def _nearest(self, function: str, things: Sequence[Thing]) -> ApiAction | None:
        """The legal command on one of the things that costs the fewest actions of the game."""
        found = [
            (len(actions), number)
            for number, (option, actions) in enumerate(self._options)
            if option.function == function and self._is_one(option.kwargs, things)
        ]
        return self._options[min(found)[1]][0] if found else None

    def _is_one(self, kwargs: Mapping[str, Any], things: Sequence[Thing]) -> bool:
        thing = self._sight.names.get(str(kwargs.get("object")))
        return any(thing is each for each in things)

    def _pick_up(self, things: Sequence[Thing]) -> ApiAction | None:
        """Take one of the things, with empty hands."""
        carried = self._game.carrying
        if carried is None:
            return self._nearest("pick_up", things)
        # One that is carried already must be taken anew to count.
        if self._nearest("go_to", things) is None and not any(carried is thing for thing in things):
            return None
        return self._drop()

    def _drop(self) -> ApiAction:
        """Put down what is carried, not in the way to a door."""
        column, row = before(self._game)
        cells = {(column + across, row + down) for across, down in AHEAD} & self._sight.cells
        neighbours = [self._game.grid.get(*cell) for cell in cells]
        if self._game.grid.get(column, row) is None and not any(each and each.type == "door" for each in neighbours):
            return ApiAction(function="drop", kwargs={})
        return TURN_LEFT

    def _fetch_key(self, doors: Sequence[Thing]) -> ApiAction | None:
        """Take the key of one of the doors that was seen locked, if none of these keys is in hand."""
        colors = {door.color for door in doors if self._sight.name(door) and door.is_locked}
        carried = self._game.carrying
        if carried is not None and carried.type == "key" and carried.color in colors:
            return None
        keys = [thing for thing in self._sight.names.values() if thing.type == "key" and thing.color in colors]
        return self._pick_up(keys)

    def _look_around(self, named: Sequence[Thing]) -> ApiAction | None:
        things = self._sight.names.values()
        doors = [thing for thing in things if thing.type == "door"]
        boxes = [thing for thing in things if thing.type == "box" and not any(thing is each for each in named)]
        closed = [door for door in doors if not door.is_open]
        found = self._towards_unseen() or self._nearest("open", closed)
        return found or self._fetch_key(closed) or self._nearest("open", boxes)

    def _towards_unseen(self) -> ApiAction | None:
        """The first command of the shortest way that ends before an unseen cell."""
        way = Ways(self._game, self._sight).to_unseen()
        if not way:
            return None
        cells = list(_walked(self._game, way))
        for cell in cells:
            through = ApiAction(function="go_through", kwargs={"object": self._names.get(cell)})
            if any(option == through for option, _ in self._options):
                return through
        return next(option for option, actions in self._options if actions == way[:1])


def _walked(game: Game, way: Sequence[int]) -> Iterator[Cell]:
    """The cells that a way of turns and steps enters."""
    column, row = position(game)
    direction = game.agent_dir
    for action in way:
        if action == FORWARD:
            column, row = column + AHEAD[direction][0], row + AHEAD[direction][1]
            yield column, row
        else:
            direction = (direction + (1 if action else -1)) % 4


def _left(instruction: Any) -> list[Any]:
    """The simple instructions that are to be followed now: of a sequence the first part that is not done."""
    both = parts(instruction)
    if not both:
        return [instruction]
    done = [instruction.a_done == "success", instruction.b_done == "success"]
    waiting = [part for part, is_done in zip(both, done, strict=True) if not is_done]
    match type(instruction).__name__:
        case "BeforeInstr":
            return _left(waiting[0])
        case "AfterInstr":
            return _left(waiting[-1])
    return [each for part in waiting for each in _left(part)]


def _named(goal: Any) -> list[Thing]:
    """All things that a simple instruction is about."""
    descriptions = [getattr(goal, name, None) for name in ("desc", "desc_move", "desc_fixed")]
    return [thing for each in descriptions if each is not None for thing in each.obj_set]
