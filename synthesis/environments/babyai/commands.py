"""The commands of an agent in a level, and the game's actions that each comes to.

Walking is left to a search over what was seen, as in AgentGym (arXiv:2406.04151): ``go to red ball 1`` turns and walks
by the shortest way, and ``pick up``, ``open`` and the like walk first. An agent decides what to do, and where to look.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping

from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import ApiAction, Tool
from agentmill.synthesis.environments.babyai.game import (
    AHEAD,
    DONE,
    DROP,
    FORWARD,
    LEFT,
    PICK_UP,
    RIGHT,
    TOGGLE,
    Cell,
    Game,
    Thing,
    before,
    is_free,
    position,
)
from agentmill.synthesis.environments.babyai.sight import Sight

ALONE: Mapping[str, str] = {
    "turn_left": "Turn left, to look there.",
    "turn_right": "Turn right, to look there.",
    "move_forward": "Go one step ahead.",
    "drop": "Put what you carry on the free cell in front of you.",
}
"""Commands without an object, with what they do."""

WITH_OBJECT: Mapping[str, str] = {
    "go_to": "Walk to a thing that you have seen, and face it.",
    "pick_up": "Walk to a key, ball or box and take it; you can carry one thing.",
    "put_next_to": "Walk to a free cell next to a thing, and put down what you carry.",
    "open": "Walk to a closed door or a box and open it; a locked door needs the key of its color in your hand.",
    "close": "Walk to an open door and close it.",
    "go_through": "Walk through an open door.",
}
"""Commands on an object, with what they do."""

_OBJECT = {"object": {"type": "string", "description": "a name such as red ball 1"}}


def _tool(name: str, text: str, properties: JsonObject) -> Tool:
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return Tool(name=name, description=text, parameters=schema)


TOOLS = [
    *(_tool(name, text, {}) for name, text in ALONE.items()),
    *(_tool(name, text, _OBJECT) for name, text in WITH_OBJECT.items()),
]

RULES = (
    "You are in a house of rooms with walls and doors, and have a mission. You see what is before you, up to 6 steps "
    "ahead and 3 to each side, but not through walls and closed doors. Commands: turn left, turn right, move forward, "
    "drop; and with the name of a thing that you have seen: go to, pick up, put next to, open, close, go through. "
    "A locked door opens with the key of its color in your hand. Write for instance: go to red ball 1"
)


Pose = tuple[Cell, int]
"""Where an agent is, and its direction."""

TURN_LEFT = ApiAction(function="turn_left", kwargs={})


def command_of(call: ApiAction) -> str:
    """A call as text."""
    return " ".join([call.function.replace("_", " "), *(str(value) for value in call.kwargs.values())])


def call_of(text: str, names: Mapping[str, Thing]) -> ApiAction | None:
    """The call of a command without white space around and between words, if it is one.

    An article before the object does not count, and its number may be left out where there is only one.
    """
    words = text.lower()
    if words.replace(" ", "_") in ALONE:
        return ApiAction(function=words.replace(" ", "_"), kwargs={})
    for function in WITH_OBJECT:
        verb = function.replace("_", " ") + " "
        if words.startswith(verb):
            wanted = words.removeprefix(verb).removeprefix("the ").removeprefix("a ")
            numbered = [name for name in names if name.rpartition(" ")[0] == wanted]
            return ApiAction(function=function, kwargs={"object": numbered[0] if len(numbered) == 1 else wanted})
    return None


def legal(game: Game, sight: Sight) -> Iterator[tuple[ApiAction, list[int]]]:
    """Every legal command, in a fixed order, with the game's actions that it comes to as far as is known now."""
    ways = Ways(game, sight)
    yield TURN_LEFT, [LEFT]
    yield ApiAction(function="turn_right", kwargs={}), [RIGHT]
    ahead = game.grid.get(*before(game))
    if is_free(ahead):
        yield ApiAction(function="move_forward", kwargs={}), [FORWARD]
    if game.carrying is not None and ahead is None:
        yield ApiAction(function="drop", kwargs={}), [DROP]
    for name, cell in sight.places().items():
        thing = sight.names[name]
        facing = ways.facing(cell)
        aside = ways.next_to(cell) if game.carrying is not None and thing.type != "door" else None
        if aside is not None:
            yield ApiAction(function="put_next_to", kwargs={"object": name}), [*aside, DROP]
        if facing is not None:
            for function, last in _handled(thing, game.carrying):
                yield ApiAction(function=function, kwargs={"object": name}), _ended(facing, last)


def _ended(way: list[int], last: list[int]) -> list[int]:
    # Who is there already does nothing, and the game looks again whether that was the mission.
    return [*way, *last] or [DONE]


def _handled(thing: Thing, carried: Thing | None) -> Iterator[tuple[str, list[int]]]:
    """What can be done with a thing that the agent faces, and the game's actions for it."""
    yield "go_to", []
    if thing.type != "door":
        if carried is None:
            yield "pick_up", [PICK_UP]
        if thing.type == "box":
            yield "open", [TOGGLE]
    elif thing.is_open:
        yield "close", [TOGGLE]
        yield "go_through", [FORWARD, FORWARD]
    elif not thing.is_locked or (carried is not None and (carried.type, carried.color) == ("key", thing.color)):
        yield "open", [TOGGLE]


class Ways:
    """Shortest ways of an agent over free cells that it has seen, in the game's actions."""

    def __init__(self, game: Game, sight: Sight) -> None:
        self._game = game
        self._sight = sight
        self._found = self._search()

    def facing(self, cell: Cell) -> list[int] | None:
        """The way to a place before ``cell``, with the look at it; ``None`` if none is known."""
        return self._shortest(lambda front: front == cell)

    def next_to(self, cell: Cell) -> list[int] | None:
        """The way to where an empty cell next to ``cell`` is in front of the agent."""
        neighbours = {(cell[0] + across, cell[1] + down) for across, down in AHEAD} & self._sight.cells
        empty = {each for each in neighbours if self._game.grid.get(*each) is None}
        return self._shortest(lambda front: front in empty)

    def to_unseen(self) -> list[int] | None:
        """The way to where an unseen cell is in front of the agent."""
        return self._shortest(lambda front: front not in self._sight.cells)

    def _shortest(self, fits: Callable[[Cell], bool]) -> list[int] | None:
        for pose in self._found:
            if fits(_ahead(pose)):
                return self._way(pose)
        return None

    def _way(self, pose: Pose) -> list[int]:
        way: list[int] = []
        while (last := self._found[pose]) is not None:
            pose, action = last
            way.append(action)
        return way[::-1]

    def _search(self) -> dict[Pose, tuple[Pose, int] | None]:
        """What can be reached, the nearest first (breadth-first): each with the pose before, and the action from it."""
        start = (position(self._game), self._game.agent_dir)
        found: dict[Pose, tuple[Pose, int] | None] = {start: None}
        waiting = deque([start])
        while waiting:
            pose = waiting.popleft()
            cell, direction = pose
            ahead = _ahead(pose)
            steps = [(LEFT, (cell, (direction - 1) % 4)), (RIGHT, (cell, (direction + 1) % 4))]
            if ahead in self._sight.cells and is_free(self._game.grid.get(*ahead)):
                steps.append((FORWARD, (ahead, direction)))
            for action, after in steps:
                if after not in found:
                    found[after] = pose, action
                    waiting.append(after)
        return found


def _ahead(pose: Pose) -> Cell:
    """The cell in front."""
    (column, row), direction = pose
    return column + AHEAD[direction][0], row + AHEAD[direction][1]
