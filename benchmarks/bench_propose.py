"""What becomes of proposed tasks, by family: admitted, rejected by which check, or refused because there are no more.

python benchmarks/bench_propose.py --environments 24 --n 8
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter

from agentmill.schemas.records.task import Task
from agentmill.synthesis.generators import ENVIRONMENT_GENERATORS, TASK_GENERATORS
from agentmill.synthesis.generators.admission import admit_environment, admit_task, rejection
from agentmill.synthesis.generators.generator import TOO_FEW
from agentmill.synthesis.generators.inspirations import built_in

FAMILIES = ("babyai", "pddl", "toolbox", "interpreter", "codegym")
SEED = 5


async def outcomes(family: str, environments: int, n: int, plan_length: tuple[int, ...] = (2, 8)) -> Counter[str]:
    """Of ``n`` proposals for each admitted one of so many environments: ``admitted``, or the reason of the failure."""
    generator, texts = ENVIRONMENT_GENERATORS.load(f"{family}_procedural")(), built_in()
    found, made, number = Counter[str](), 0, 0
    while made < environments:
        spec = await generator.propose(texts[number % len(texts)], number)
        number += 1
        if rejection(admit_environment(spec)) is not None:
            continue
        made += 1
        async for proposal in TASK_GENERATORS.load(family)(plan_length).propose(spec, n, SEED):
            failed = rejection(admit_task(proposal, spec)[0]) if isinstance(proposal, Task) else None
            reason = failed.name if failed is not None else "admitted"
            found[reason if isinstance(proposal, Task) else proposal.reason] += 1
    return found


def main() -> None:
    """Print a line per family."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=int, default=24)
    parser.add_argument("--n", type=int, default=8, help="tasks per environment")
    parser.add_argument("--plan-length", type=int, nargs=2, default=(2, 8), help="fewest and most actions")
    arguments = parser.parse_args()
    for family in FAMILIES:
        began = time.monotonic()
        found = asyncio.run(outcomes(family, arguments.environments, arguments.n, tuple(arguments.plan_length)))
        tried = found.total() - found[TOO_FEW]
        print(
            f"{family}: {found['admitted']} of {tried} tried are admitted ({found['admitted'] / max(1, tried):.1%}), "
            f"{found[TOO_FEW]} of {found.total()} refused; {dict(found)}; {time.monotonic() - began:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
