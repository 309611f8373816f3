"""``agentmill synthesize|rollout|verify|normalize|curate|evaluate``: one step of a recipe, from a file of its own."""

from __future__ import annotations

from pathlib import Path

import click

from agentmill.pipelines.cli.run import OVERRIDES, REPLACE, RETRY, carried_out, show_finish
from agentmill.pipelines.operators.registry import OPERATORS
from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.pipelines.recipes.plan import make_plan
from agentmill.pipelines.recipes.run_folder import check_not_moved
from agentmill.pipelines.recipes.runner import RunResult
from agentmill.pipelines.terminal.console import answer, answers, example
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError

VERBS = {
    "synthesize": "Make environments or tasks, or admit what was made.",
    "rollout": "Make trajectories: a policy plays episodes of tasks.",
    "verify": "Judge trajectories, or value their steps.",
    "normalize": "Read trajectories from files in a foreign format.",
    "curate": "Select trajectories by their annotations, or count what they hold.",
    "evaluate": "Compare models on held-out tasks and environments.",
}


def operators_of(verb: str) -> list[str]:
    """The operators that carry ``verb``, those of installed packages too."""
    return [name for name in sorted(OPERATORS) if OPERATORS.load(name).verb == verb]


def stage_command(verb: str) -> click.Command:
    """The command that runs one step whose operator belongs to ``verb``."""
    operators = operators_of(verb)

    @click.command(
        name=verb,
        help=f"{VERBS[verb]}\n\nFILE is a recipe of one step, whose operator is {' or '.join(operators)}; "
        f"an example is configs/stages/{verb}.yaml. KEY=VALUE changes it.",
        epilog=example(f"agentmill {verb} --config configs/stages/{verb}.yaml seed=1"),
    )
    @click.option("--config", metavar="FILE", required=True, type=click.Path(path_type=Path), help="The step to run.")
    @OVERRIDES
    @REPLACE
    @RETRY
    @answers(RunResult)
    def command(
        config: Path, overrides: tuple[str, ...], replace: bool, retry_dropped: bool | None, as_json: bool
    ) -> None:
        check_not_moved(config, overrides)
        plan = make_plan(read_recipe(config, overrides))
        found = [step.context.operator for step in plan.steps]
        if len(found) != 1 or found[0] not in operators:
            raise UserError(
                f"{config} has the steps {', '.join(found)}; agentmill {verb} expects one of {', '.join(operators)}\n"
                f"for a whole recipe: agentmill run {config}",
                ErrorCode.STEP_NOT_FOR_COMMAND,
            )
        answer(carried_out(plan, replace, retry_dropped), show_finish, as_json)

    return command


synthesize = stage_command("synthesize")
rollout = stage_command("rollout")
verify = stage_command("verify")
normalize = stage_command("normalize")
curate = stage_command("curate")
evaluate = stage_command("evaluate")
