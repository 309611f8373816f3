"""Parts of a recipe: which steps a run leaves out, and why.

A partial run is not finished. Its steps are those of the whole run, so the plain command goes on from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from agentmill.pipelines.operators.evaluate import Evaluate
from agentmill.pipelines.operators.train import Training
from agentmill.pipelines.recipes.step import Step
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match

DATA = "data"
"""Everything but trainings, evaluations, and what depends on them."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What of a recipe is run: ``only`` the data, ``until`` a step, without the steps of ``skip``.

    Steps are named as in the run (``loop/round-02/explored``), or by their last part: then of ``until`` the first
    round is meant, and of ``skip`` all of them.
    """

    only: Literal["data"] | None = None
    until: str | None = None
    skip: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left out."""
        return self == WHOLE


WHOLE = Part()


def left_out(steps: Sequence[Step], part: Part, unreached: Mapping[str, str] = {}) -> dict[str, str]:
    """The steps that are not run, each with the reason.

    ``unreached`` are steps that a loop would have made if it had not ended, each with the last step that it made.

    A step that needs the table of one that is left out is left out, too, unless this table is there already. Raises
    ``UserError`` for a step that the recipe does not have.
    """
    if part.is_whole:
        return {}
    until = unreached.get(part.until or "", part.until)
    skip = tuple(name for name in part.skip if name not in unreached)
    given = dict(_named(steps, msgspec.structs.replace(part, until=until, skip=skip)))
    found: dict[str, str] = {}
    makers = {folder: step for step in steps for folder in folders_of(step)}
    for step in steps:
        reason = given.get(step.name) or (_no_data(step) if part.only == DATA else None)
        missing = [makers[each].name for each in _sources(step) if each in makers and _lacks(makers[each], found, part)]
        if reason is None and missing:
            reason = f"needs {', '.join(dict.fromkeys(missing))}"
        if reason is not None:
            found[step.name] = reason
    return found


def folders_of(step: Step) -> Iterator[Path]:
    """The folders of what a step makes."""
    yield step.folder
    yield from (step.folder / side for side in step.parameters.sides)


def is_made(step: Step) -> bool:
    """Whether what a step makes is there."""
    return (step.folder / step.parameters.result).exists()


def _lacks(maker: Step, found: dict[str, str], part: Part) -> bool:
    # A model that was trained before is no data, either.
    return maker.name in found and (part.only == DATA or not is_made(maker))


def _sources(step: Step) -> Iterator[Path]:
    """The folders of the tables and the models that a step works with."""
    yield from (output.folder for outputs in step.inputs.values() for output in outputs)
    for model in step.models.values():
        adapter = model.server.lora.get(model.adapter or "")
        yield from (Path(each) for each in (model.model, adapter) if each is not None)
    for field in step.parameters.tokenizers:
        folder = getattr(step.parameters, field)
        if folder is not None:
            yield Path(folder)


def _no_data(step: Step) -> str | None:
    if isinstance(step.parameters, Training):
        return "a training"
    return "an evaluation" if isinstance(step.parameters, Evaluate) else None


def _named(steps: Sequence[Step], part: Part) -> Iterator[tuple[str, str]]:
    """The steps that ``skip`` names, and those after ``until``."""
    for name in part.skip:
        yield from ((step.name, "skipped") for step in _called(steps, name, "--skip"))
    if part.until is not None:
        last = next(iter(_called(steps, part.until, "--until")))
        place = next(place for place, step in enumerate(steps) if step.name == last.name)
        yield from ((step.name, f"after {last.name}") for step in steps[place + 1 :])


def _called(steps: Sequence[Step], name: str, option: str) -> list[Step]:
    """The steps of that name, one or more. Raises ``UserError``."""
    found = [step for step in steps if step.name == name] or [step for step in steps if _last(step.name) == name]
    if not found:
        known: Iterable[str] = dict.fromkeys([*(step.name for step in steps), *(_last(step.name) for step in steps)])
        listed = ", ".join(dict.fromkeys(_last(step.name) for step in steps))
        raise UserError(
            f"{option}: no step is called {name!r}; steps: {listed}.{near_match(name, known)}", ErrorCode.UNKNOWN_NAME
        )
    return found


def _last(name: str) -> str:
    return name.rpartition("/")[2]
