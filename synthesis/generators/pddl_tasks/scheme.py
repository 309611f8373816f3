"""How problems of one environment are made: from rules, or from an example; kept in ``spec.parameters["problems"]``."""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec

from agentmill.schemas.records.record import JsonObject
from agentmill.synthesis.environments.pddl.domain import Domain, PddlError, Problem, Typed, objects_by_type
from agentmill.synthesis.environments.pddl.reader import read_problem
from agentmill.synthesis.generators.pddl_tasks.start import AnyRule, sample_facts

EXAMPLE_DETOUR = 12
"""How many random steps lead from an example's initial state to one sampled from it."""


class Pool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The objects a type may have: how many, least and most, and their names in order of use."""

    count: tuple[int, int]
    names: tuple[str, ...]


class ProblemScheme(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rules (``objects`` by type and ``start``) or an ``example`` problem as PDDL text.

    ``goals`` weighs the predicates that goals are made of; where it is empty every fluent predicate counts alike.
    """

    objects: dict[str, Pool] = {}
    start: tuple[AnyRule, ...] = ()
    goals: dict[str, float] = {}
    example: str | None = None

    def weights(self, domain: Domain) -> dict[str, float]:
        """The weight of every predicate a goal may be made of."""
        return self.goals or dict.fromkeys(sorted(domain.fluents()), 1.0)

    def sample(self, domain: Domain, chance: random.Random, least: Mapping[str, int] | None = None) -> Problem:
        """A problem without a goal; ``least`` sets numbers of objects by type, in the place of random ones.

        Raises ``Unsamplable`` where the objects do not admit a state, ``PddlError`` where the example is broken.
        """
        if self.example is not None:
            return msgspec.structs.replace(read_problem(self.example, domain), goal=())
        objects: list[Typed] = []
        for kind, pool in self.objects.items():
            number = chance.randint(*pool.count)
            number = min(least.get(kind, number) if least else number, len(pool.names))
            objects += [Typed(name, kind) for name in pool.names[:number]]
        bare = Problem("task", domain.name, tuple(objects), (), ())
        facts = sample_facts(self.start, domain, objects_by_type(domain, bare), chance)
        return msgspec.structs.replace(bare, init=facts)


def scheme_of(parameters: JsonObject) -> ProblemScheme:
    """The scheme of an environment. Raises ``PddlError`` where there is none or it is malformed."""
    given = parameters.get("problems")
    if given is None:
        raise PddlError("parameters['problems'] is missing", "", "rules or an example to make problems from")
    try:
        scheme = msgspec.convert(given, ProblemScheme)
    except msgspec.ValidationError as error:
        raise PddlError(f"parameters['problems']: {error}") from error
    if scheme.example is None and not scheme.start:
        raise PddlError("parameters['problems'] has neither rules nor an example")
    return scheme
