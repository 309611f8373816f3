"""Admission: what decides whether a proposed environment or task stays.

A check is named after the defect it looks for, so the name of the first one that failed is the reason of a rejection;
the checks behind it are not run. Near-duplicates are found by ``structure_digest`` over all rows, by the stage.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agentmill.schemas.records.task import AdmissionCheck, AdmissionReport, Difficulty, EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyAction
from agentmill.synthesis.environments.codegym.problem import ProblemError
from agentmill.synthesis.environments.codegym.problem import read_problem as read_codegym
from agentmill.synthesis.environments.codegym.structure import problem_structure
from agentmill.synthesis.environments.codegym.structure import task_structure as codegym_task_structure
from agentmill.synthesis.environments.pddl.domain import PddlError
from agentmill.synthesis.environments.pddl.planner import PlanLimits
from agentmill.synthesis.environments.pddl.reader import read_domain, read_problem
from agentmill.synthesis.environments.pddl.structure import domain_structure, task_structure
from agentmill.synthesis.environments.toolbox.structure import toolbox_structure
from agentmill.synthesis.environments.toolbox.toolbox import ToolboxError, read_toolbox
from agentmill.synthesis.generators import codegym_admission, interpreter_admission, pddl_admission, toolbox_admission
from agentmill.synthesis.generators.search_tasks.checks import search_task_checks
from agentmill.synthesis.generators.trial import Solution, try_environment, try_task

TASK_LIMITS = PlanLimits(max_expansions=30_000, optimal_expansions=20_000)


class AdmissionLimits(msgspec.Struct, frozen=True):
    """How far admission looks. ``probes`` problems are sampled of a planning environment and up to ``probe_states``
    states of each are visited; the planner works within ``plan``."""

    plan: PlanLimits = TASK_LIMITS
    probes: int = 4
    probe_states: int = 1_500


def admit_environment(spec: EnvironmentSpec, limits: AdmissionLimits = AdmissionLimits()) -> AdmissionReport:
    """Whether ``spec`` makes an environment worth having tasks in.

    Family ``pddl``: ``syntax``, ``wording`` (a template per predicate and action, with the right places),
    ``unused_predicate``, ``no_probe`` (problems can be sampled), ``ambiguous_text`` (commands read back to their
    action, no two facts worded alike), ``noop_action``, ``unreachable_action``, ``unsolvable_probe``. Families
    ``toolbox``, ``interpreter`` and ``codegym``: those of ``toolbox_admission``, ``interpreter_admission`` and
    ``codegym_admission``. Every other family: ``broken`` (it can be made).
    """
    match spec.family:
        case "codegym":
            found = codegym_admission.environment_checks(spec, limits.probes)
        case "pddl":
            found = pddl_admission.environment_checks(spec, limits.plan, limits.probes, limits.probe_states)
        case "toolbox":
            found = toolbox_admission.environment_checks(spec, limits.probes)
        case "interpreter":
            found = interpreter_admission.environment_checks(spec)
        case _:
            found = try_environment(spec)
    checks = _until_failure(found)
    notes = spec.lineage.notes if spec.lineage else {}
    return AdmissionReport(checks=checks, repairs=int(notes.get("repairs", 0)))


def admit_task(
    task: Task, spec: EnvironmentSpec, limits: AdmissionLimits = AdmissionLimits()
) -> tuple[AdmissionReport, list[AnyAction] | None, Difficulty | None]:
    """Whether ``task`` can be solved and not by doing nothing; with a gold solution and its difficulty, if found.

    Family ``pddl``: ``syntax``, ``grounding``, ``solved_at_start``, ``unsolvable`` (proven), ``planner_limit`` (not
    solved within the limits). Every family: ``broken``, ``null_accepted``, ``gold_rejected`` and ``nondeterministic``
    by playing in the real environment. Families ``toolbox`` and ``codegym`` then: those of ``toolbox_admission`` and
    ``codegym_admission``; family ``search``: ``answer_shown``, by the instruction. A task's own gold is kept; otherwise
    it is the planner's or the expert's.
    """
    solution = Solution(task.gold, task.difficulty)
    checks: list[AdmissionCheck] = []
    if spec.family == "pddl":
        checks = _until_failure(pddl_admission.task_checks(task, spec, limits.plan, solution))
    if not checks or checks[-1].passed:
        checks += _until_failure(try_task(task, spec, solution))
    if spec.family == "toolbox" and checks[-1].passed:
        checks += _until_failure(toolbox_admission.task_checks(task, spec))
    if spec.family == "codegym" and checks[-1].passed:
        checks += _until_failure(codegym_admission.task_checks(task, spec))
    if spec.family == "search" and checks[-1].passed:
        checks += _until_failure(search_task_checks(task))
    accepted = checks[-1].passed
    return (
        AdmissionReport(checks=checks),
        solution.gold if accepted else None,
        solution.difficulty if accepted else None,
    )


def rejection(report: AdmissionReport) -> AdmissionCheck | None:
    """The check that failed; its name is the reason code. ``None`` for what was admitted."""
    return next((check for check in report.checks if not check.passed), None)


def environment_digest(spec: EnvironmentSpec) -> str | None:
    """``spec.structure_digest``, computed where it is missing and the family has one."""
    if spec.structure_digest is not None:
        return spec.structure_digest
    try:
        match spec.family:
            case "codegym":
                return problem_structure(read_codegym(spec.source))
            case "pddl":
                return domain_structure(read_domain(spec.source))
            case "toolbox":
                return toolbox_structure(read_toolbox(spec.source))
            case _:
                return None
    except (PddlError, ProblemError, ToolboxError):
        return None


def task_digest(task: Task, spec: EnvironmentSpec) -> str | None:
    """``task.structure_digest``, computed where it is missing and the family has one."""
    if task.structure_digest is not None:
        return task.structure_digest
    if spec.family == "codegym":
        structure = environment_digest(spec)
        return structure and codegym_task_structure(structure, task.initial_state, task.gold or [])
    if spec.family != "pddl":
        return None
    try:
        domain = read_domain(spec.source)
        return task_structure(domain, read_problem(str(task.initial_state.get("problem")), domain))
    except PddlError:
        return None


def _until_failure(checks: Iterable[AdmissionCheck]) -> list[AdmissionCheck]:
    done: list[AdmissionCheck] = []
    for check in checks:
        done.append(check)
        if not check.passed:
            break
    return done
