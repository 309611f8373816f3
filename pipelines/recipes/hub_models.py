"""The models on the Hugging Face Hub that a plan uses: which they are, and how a run gets them before its first step.

A run notes their commits in ``revisions.json`` and goes on with these, whatever becomes of the branches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial

from agentmill.pipelines.operators.train import Training
from agentmill.pipelines.recipes.plan import Plan, make_plan
from agentmill.pipelines.recipes.step import Step
from agentmill.schemas.model_hub import HubModel, cached_model, fetch_model, hub_model, missing_files, pin_model


def hub_models(step: Step, made: Collection[str] = ()) -> Iterator[tuple[str, HubModel, bool]]:
    """The models on the Hub that ``step`` uses: as it is named, what that means, and whether its weights are needed.

    The folders in ``made`` are those of other steps, which are not there yet.
    """
    named = [(getattr(step.parameters, field), False) for field in step.parameters.tokenizers]
    for model in step.models.values():
        if model.managed:
            named += [(each, True) for each in (model.model, *model.server.lora.values())]
    for text, weights in named:
        hub = None if text is None or text in made else hub_model(text)
        if hub is not None:
            yield text, hub, weights


def made_by(plan: Plan) -> dict[str, Step]:
    """The trainings of a plan, by the folder that each writes."""
    return {str(step.folder): step for step in plan.steps if isinstance(step.parameters, Training)}


def uncached(plan: Plan) -> list[str]:
    """The models that a run of ``plan`` would download, as they are named."""
    made = made_by(plan)
    steps = [step for step in plan.steps if step.name not in plan.left_out]
    used = [each for step in steps for each in hub_models(step, made)]
    return sorted({text for text, hub, weights in used if cached_model(hub, weights) is None})


def check_on_hub(model: HubModel, weights: bool) -> None:
    """See that the Hub has ``model``; nothing is downloaded. Raises ``UserError``."""
    # The Hub is not asked for what is here.
    missing_files(pin_model(model, lambda _: None), weights)


def with_hub_models(plan: Plan, print_line: Callable[[str], None]) -> Plan:
    """``plan`` with all its models on the Hub at a commit, and downloaded. Raises ``UserError``."""
    made, revisions = made_by(plan), dict(plan.revisions)
    fetched: set[tuple[str, bool]] = set()
    for step in (step for step in plan.steps if step.name not in plan.left_out):
        for text, hub, weights in hub_models(step, made):
            if (text, weights) in fetched:
                continue
            pinned = pin_model(hub, print_line)
            fetch_model(pinned, partial(_tell, print_line, step), weights)
            fetched.add((text, weights))
            if text not in revisions and not hub.is_pinned:
                print_line(f"{text} on the Hub is commit {pinned.revision}, and stays so in this run")
                revisions[text] = str(pinned.revision)
    return plan if revisions == plan.revisions else make_plan(plan.recipe, plan.part, revisions)


def _tell(print_line: Callable[[str], None], step: Step, line: str) -> None:
    print_line(f"{step.name}: {line}")
