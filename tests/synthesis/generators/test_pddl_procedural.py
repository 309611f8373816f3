"""The grammar of planning worlds: how many different ones it gives, that all of them hold, and that seeds decide."""

from __future__ import annotations

import asyncio

import pytest

from agentmill.schemas.records.task import EnvironmentSpec
from agentmill.synthesis.environments import make
from agentmill.synthesis.environments.pddl.planner import PlanLimits
from agentmill.synthesis.generators.admission import AdmissionLimits, admit_environment, rejection
from agentmill.synthesis.generators.pddl_procedural.generator import ProceduralGenerator, propose
from tests.hash_seeds import printed
from tests.synthesis.generators.environments import grammar_environment, inspiration

pytestmark = pytest.mark.slow

SEEDS = 300
WANTED = 200


@pytest.fixture(scope="module")
def different_environments() -> list[EnvironmentSpec]:
    """The first worlds of 300 seeds that differ in structure."""
    by_structure: dict[str | None, EnvironmentSpec] = {}
    for seed in range(SEEDS):
        spec = propose(inspiration("A text that names nothing in particular."), seed)
        by_structure.setdefault(spec.structure_digest, spec)
    return list(by_structure.values())


def test_300_seeds_give_at_least_200_structures(different_environments: list[EnvironmentSpec]) -> None:
    assert len(different_environments) >= WANTED
    assert len({spec.environment_id for spec in different_environments}) == len(different_environments)


def test_200_different_worlds_are_all_admitted(different_environments: list[EnvironmentSpec]) -> None:
    limits = AdmissionLimits(plan=PlanLimits(max_expansions=5_000, optimal_expansions=5_000), probe_states=400)
    failed = {
        spec.name: (check.name, check.detail)
        for spec in different_environments[:WANTED]
        if (check := rejection(admit_environment(spec, limits))) is not None
    }
    assert failed == {}


def test_rules_and_commands_are_short(different_environments: list[EnvironmentSpec]) -> None:
    # About four letters make a token of a small model's vocabulary.
    lengths = sorted(len(str(spec.parameters["rules"])) / 4 for spec in different_environments)
    assert lengths[len(lengths) // 2] < 50
    assert lengths[-1] < 90
    assert all(1 <= len(make(spec).tools) <= 6 for spec in different_environments[:20])


def test_rules_name_every_command_with_letters_for_objects() -> None:
    spec = grammar_environment(3)
    commands = str(spec.parameters["rules"]).partition("Commands: ")[2].rstrip(".").split("; ")
    assert len(commands) == len(spec.parameters["action_text"])
    assert all("{" not in command for command in commands)


def test_same_inspiration_and_seed_give_the_same_world() -> None:
    again = asyncio.run(ProceduralGenerator().propose(inspiration(), 5))
    assert again == grammar_environment(5)
    assert grammar_environment(5) != grammar_environment(6)
    assert grammar_environment(5).environment_id != propose(inspiration(inspiration_id="i2"), 5).environment_id


@pytest.mark.parametrize(
    ("text", "theme", "part"),
    [
        ("Our hospital must deliver drugs to every patient.", "hospital", "freight"),
        ("Stack and sort the cargo of a ship at sea.", "harbour", "stack"),
        ("A library with lock and key", "library", "locks"),
    ],
)
def test_inspiration_chooses_theme_and_makes_features_likelier(text: str, theme: str, part: str) -> None:
    told = [propose(inspiration(text), seed).lineage for seed in range(40)]
    neutral = [propose(inspiration("Nothing."), seed).lineage for seed in range(40)]
    assert {lineage.notes["theme"] for lineage in told if lineage} == {theme}
    count = sum(part in lineage.notes["parts"] for lineage in told if lineage)
    assert count > sum(part in lineage.notes["parts"] for lineage in neutral if lineage)


def test_worlds_and_tasks_do_not_depend_on_the_hash_seed() -> None:
    script = (
        "import asyncio\n"
        "from agentmill.schemas.ids import digest\n"
        "from agentmill.synthesis.generators.pddl_tasks.generator import PddlTaskGenerator\n"
        "from tests.synthesis.generators.environments import grammar_environment\n"
        "async def main():\n"
        "    specs = [grammar_environment(seed) for seed in range(6)]\n"
        "    tasks = [t for s in specs async for t in PddlTaskGenerator().propose(s, 2, 1)]\n"
        "    harder = [t for s, p in zip(specs, tasks[::2])\n"
        "              async for t in PddlTaskGenerator().evolve(s, p, 'harder', 1, 1)]\n"
        "    print(digest(specs, tasks, [str(t) if isinstance(t, Exception) else t for t in harder]))\n"
        "asyncio.run(main())\n"
    )
    [told] = printed(script)
    assert len(told.strip()) == 32
