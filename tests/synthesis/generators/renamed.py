"""An environment and the same under other names, compared: every step must come to the same."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction, MessageAction
from agentmill.synthesis.environments import make
from agentmill.synthesis.environments.environment import Environment
from agentmill.synthesis.generators.renaming.renaming import Names, Renaming, Style, renaming_of, texts_in
from agentmill.synthesis.generators.wrapping import Wrapper, Wrapping

Pair = tuple[EnvironmentSpec, Task]
Mapper = Callable[[AnyAction, Renaming], AnyAction]
STYLES: tuple[Style, ...] = ("words", "symbols")
NAMES: tuple[Names, ...] = ("actions", "objects", "all")
GROUPED = [Wrapping(rename=style, names=names) for style in STYLES for names in NAMES]


def wrapped(wrapper: Wrapper, spec: EnvironmentSpec, wrapping: Wrapping, seed: int = 0) -> EnvironmentSpec:
    """The wrapped environment; fails where it has none."""
    made = wrapper.environment(spec, wrapping, seed)
    assert isinstance(made, EnvironmentSpec), made
    return made


def wrapped_pair(wrapper: Wrapper, pair: Pair, wrapping: Wrapping, seed: int = 0) -> Pair:
    """The wrapped environment with the wrapped task; fails where they have none."""
    spec = wrapped(wrapper, pair[0], wrapping, seed)
    task = wrapper.task(pair[1], spec, wrapping, seed)
    assert isinstance(task, Task), task
    return spec, task


def renaming_of_pair(pair: Pair) -> Renaming:
    """The renaming of a task, or that of its environment where the task brought no names of its own."""
    spec, task = pair
    return renaming_of(task.lineage) if task.lineage and task.lineage.notes else renaming_of(spec.lineage)


def without_articles(text: str) -> str:
    """A text in which a and an are the same."""
    return re.sub(r"\b([Aa])n\b", r"\1", text)


def text_of(observation: object) -> str:
    """What is read."""
    return str(getattr(observation, "content", ""))


def senses(environment: Environment, task: Task) -> Iterator[str]:
    """What an agent sees before it acts."""
    yield task.instruction
    yield environment.rules
    for tool in environment.tools:
        yield from (tool.name, tool.description)
        yield from texts_in(tool.parameters["properties"])
    yield text_of(environment.reset(task, 0))


def odd(legal: list[ApiAction], environment: Environment, chance: random.Random) -> AnyAction:
    """A call or command that is mostly not legal: arguments exchanged, missing, or of another call."""
    one, other = chance.choice(legal), chance.choice(legal)
    names = list(one.kwargs)
    match chance.randrange(5):
        case 0:
            values = chance.sample(list(one.kwargs.values()), len(names))
            return ApiAction(function=one.function, kwargs=dict(zip(names, values, strict=True)))
        case 1:
            return ApiAction(function=one.function, kwargs=dict(other.kwargs))
        case 2:
            return ApiAction(function=one.function, kwargs={name: one.kwargs[name] for name in names[1:]})
        case 3:
            return MessageAction(content=environment.command(other))
    tool = chance.choice(environment.tools)
    values = [value for action in legal for value in action.kwargs.values()] or [1]
    given = {name: chance.choice(values) for name in tool.parameters["properties"]}
    return ApiAction(function=tool.name, kwargs=given)


def walk(old: Pair, new: Pair, mapped: Mapper, seed: int, steps: int) -> int:
    """Take the same random actions in both; how many were legal. Fails where the two differ."""
    renaming = renaming_of_pair(new)
    back = renaming.inverse()
    chance = random.Random(seed)
    legal_steps = 0
    digests: dict[str, str] = {}
    with closing(make(old[0])) as one, closing(make(new[0])) as other:
        starts = [*zip(senses(one, old[1]), senses(other, new[1]), strict=True)]
        for before, after in starts:
            assert without_articles(back.text(after)) == without_articles(before)
        for _ in range(steps):
            legal = one.admissible()
            assert [mapped(action, renaming) for action in legal] == other.admissible()
            if not legal:
                break
            action = chance.choice(legal) if chance.random() < 0.6 else odd(legal, one, chance)
            first, second = one.step(action), other.step(mapped(action, renaming))
            assert (first.reward, first.terminated, first.truncated, first.error) == (
                second.reward,
                second.terminated,
                second.truncated,
                second.error,
            ), action
            assert without_articles(back.text(text_of(second.observation))) == without_articles(
                text_of(first.observation)
            )
            # Equal states have equal digests, in both.
            assert digests.setdefault(one.state_digest(), other.state_digest()) == other.state_digest()
            checks = one.check(), other.check()
            assert (checks[0].passed, checks[0].score) == (checks[1].passed, checks[1].score)
            legal_steps += not first.error
            if first.terminated:
                break
    assert len(set(digests.values())) == len(digests)
    return legal_steps


def seen(pair: Pair) -> Iterator[str]:
    """All that an agent sees that follows the solution: what was there at the start, commands, and answers."""
    spec, task = pair
    with closing(make(spec)) as environment:
        yield from senses(environment, task)
        for action in task.gold or []:
            yield from texts_in([[legal.function, legal.kwargs] for legal in environment.admissible()])
            yield environment.command(action) if isinstance(action, ApiAction) else ""
            yield text_of(environment.step(action).observation)


def remaining(old_names: Iterable[str], pair: Pair, own_words: set[str]) -> set[str]:
    """Words of old names that an agent still sees, without those of the family's own sentences."""
    words = {word.lower() for text in seen(pair) for word in re.findall(r"[^\W\d_]+", text)}
    return words & {*old_names} - own_words
