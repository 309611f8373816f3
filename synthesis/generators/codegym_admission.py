"""Checks of coding problems and their tasks: do two programs agree, one of which knows only what an agent knows.

Environments: ``syntax``, ``tools`` by looking; then by trying ``bad_instances``, ``bad_question``, ``bad_solution``,
``answer_type``, ``bad_oracle``, ``endless`` (any part), ``nondeterministic`` (or something is kept from run to run),
``wrong_answer`` (a tool that lies, a wrong solution or a wrong oracle), ``unplayable`` (an agent that makes the calls
of the oracle gets other answers), ``bad_tools`` (they fail in an agent's hands), ``idle_oracle``, ``unused_tool``,
``peeking_oracle`` (it does not come to the same calls from their results alone, or could look around),
``constant_answer``, ``told_answer`` (it is given, or the oracle says the same where its tools look at another input),
``telling_tool``, ``always_passes`` and ``unfit_call``. Tasks: ``wrong_gold``, ``empty_answer_accepted``,
``wrong_answer_accepted``, ``unneeded_call``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import jsonschema
from referencing.jsonschema import EMPTY_REGISTRY

from agentmill.schemas.ids import derive_seed, digest
from agentmill.schemas.records.task import AdmissionCheck, EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import ApiAction
from agentmill.synthesis.environments import make
from agentmill.synthesis.environments.codegym.problem import SUBMIT, Problem, ProblemError, read_problem
from agentmill.synthesis.environments.codegym.workshop import Counter, Draw, Failure, Run, Workshop, candidates
from agentmill.synthesis.environments.environment import Environment, misfit
from agentmill.synthesis.environments.interpreter.goal import same
from agentmill.synthesis.generators.codegym_tasks.generator import guesses, question, solved

PROBE_SIZES = (3, 4, 5, 7, 9, 11)
MOST_GUESSED = 0.5
"""Share of the probes that one answer may have."""


def environment_checks(spec: EnvironmentSpec, probes: int) -> Iterator[AdmissionCheck]:
    """The checks of a problem, in order; what follows a failed one must not be asked for. ``probes`` inputs of each
    size are tried."""
    try:
        problem = read_problem(spec.source)
    except ProblemError as error:
        yield _failed(error.reason, str(error))
        return
    yield from (_passed("syntax"), _passed("tools"))
    try:
        yield from _trials(problem, probes)
    except Failure as error:
        yield _failed(error.reason, str(error))


def task_checks(task: Task, spec: EnvironmentSpec) -> Iterator[AdmissionCheck]:
    """The checks of a task whose gold solution is accepted already."""
    problem = read_problem(spec.source)
    expected = task.goal["answer"]
    try:
        (answer,) = Workshop(problem).solve([task.initial_state["instance"]])
        yield _judged("wrong_gold", [] if same(answer, expected) else [f"the solution says {answer!r}"])
    except Failure as error:
        yield _failed("wrong_gold", str(error))
        return
    with closing(make(spec)) as environment:
        environment.reset(task, 0)
        at_once = guesses(problem, task.initial_state.get("given", {})) if problem.answer is not None else [None]
        lucky = [value for value in at_once if _accepted(environment, problem, value)]
        yield _judged("empty_answer_accepted", [f"submit({value!r}) at once is enough" for value in lucky])
        if problem.answer is not None:
            wrong = [value for value in _wrong(expected) if not same(value, expected)]
            lucky = [value for value in wrong if _accepted(environment, problem, value)]
            yield _judged("wrong_answer_accepted", [f"submit({value!r}) is enough" for value in lucky])
        else:
            yield _judged("unneeded_call", _unneeded(environment, task))


def _trials(problem: Problem, probes: int) -> Iterator[AdmissionCheck]:
    """Raises ``Failure``."""
    workshop = Workshop(problem)
    draws_wanted = [(derive_seed("probe", number), size) for number in range(probes) for size in PROBE_SIZES]
    # Backwards the second time, so that state that is kept from run to run shows.
    draws, again = _halves(workshop.draw([*draws_wanted, *reversed(draws_wanted)]))
    changed = ["other inputs are drawn the second time"] if draws != again else []
    for each in draws:
        # The result is not used: it raises where the question cannot be asked.
        question(problem, each.given)
    yield _passed("bad_question")
    instances = [each.instance for each in draws]
    answers, again_answers = _halves(workshop.solve([*instances, *reversed(instances)]))
    changed += ["solve says otherwise the second time"] if answers != again_answers else []
    yield _judged("answer_type", _untyped(problem, answers))
    runs, again_runs = workshop.play(draws, rounds=2)
    changed += ["the same run goes otherwise a second time"] if runs != again_runs else []
    yield _judged("nondeterministic", changed)
    yield _judged("wrong_answer", _disagreements(problem, runs, answers))
    with closing(Counter(problem)) as counter:
        counter.open()
        yield _judged("unplayable", counter.follow(draws, runs))
    idle = sum(not run.calls for run in runs)
    defects_found = [f"the oracle calls no tool in {idle} of {len(runs)} probes"]
    yield _judged("idle_oracle", defects_found if idle > MOST_GUESSED * len(runs) else [])
    called = {name for run in runs for name, _, _ in run.calls}
    yield _judged("unused_tool", [f"the oracle never calls {t.name}" for t in problem.tools if t.name not in called])
    yield _judged("peeking_oracle", _peeks(workshop, draws, runs))
    if problem.answer is not None:
        yield _judged("constant_answer", _constant(answers))
        yield _judged("told_answer", [*_given_answers(draws, answers), *_foretold(workshop, draws, runs)])
    with closing(Counter(problem)) as counter:
        counter.open()
        yield _judged("telling_tool", _telling(problem, counter, draws, answers))
        if problem.answer is None:
            passed = [same(counter.outcome(draw.instance), answer) for draw, answer in zip(draws, answers, strict=True)]
            early = "the outcome is right before anything is done"
            yield _judged("always_passes", [early] if sum(passed) > MOST_GUESSED * len(passed) else [])
    yield _judged("unfit_call", _unfit_calls(problem, runs))


def _halves(found: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The first half, and the second one backwards: what was asked for a second time, in another order."""
    half = len(found) // 2
    return list(found[:half]), list(reversed(found[half:]))


def _untyped(problem: Problem, answers: Sequence[Any]) -> Iterator[str]:
    if problem.answer is None:
        return
    validator = jsonschema.Draft202012Validator(problem.answer, registry=EMPTY_REGISTRY)
    for answer in answers:
        if isinstance(answer, bool):
            yield f"solve says {answer!r}; a yes or no can be guessed"
        elif not validator.is_valid(answer):
            yield f"solve says {answer!r}, which is no {problem.answer}"


def _disagreements(problem: Problem, runs: Sequence[Run], answers: Sequence[Any]) -> Iterator[str]:
    for run, answer in zip(runs, answers, strict=True):
        if not solved(problem, run, answer):
            found = run.answer if problem.answer is not None else run.outcome
            yield f"by calls the oracle comes to {found!r}, the solution to {answer!r}"


def _peeks(workshop: Workshop, draws: Sequence[Draw], runs: Sequence[Run]) -> Iterator[str]:
    """An oracle that gets the results of its calls, where there is no input, must do and say the same."""
    for run, traced in zip(runs, workshop.retrace(draws, runs), strict=True):
        if traced.strayed is not None or traced.left or traced.answer != run.answer:
            yield f"from the results of its calls alone it does not do the same: {traced.strayed or traced.answer!r}"


def _constant(answers: Sequence[Any]) -> Iterator[str]:
    digests = [digest(answer) for answer in answers]
    most = max(digests, key=digests.count)
    if digests.count(most) > MOST_GUESSED * len(digests):
        answer = answers[digests.index(most)]
        yield f"the answer is {answer!r} in {digests.count(most)} of {len(digests)} probes, and can be guessed"


def _given_answers(draws: Sequence[Draw], answers: Sequence[Any]) -> Iterator[str]:
    for name in draws[0].given:
        hits = [same(draw.given.get(name), answer) for draw, answer in zip(draws, answers, strict=True)]
        if sum(hits) > MOST_GUESSED * len(hits):
            yield f"the answer is given as {name} in {sum(hits)} of {len(hits)} probes"


def _foretold(workshop: Workshop, draws: Sequence[Draw], runs: Sequence[Run]) -> Iterator[str]:
    """An oracle to which the tools make no difference: it says the same where they look at another input."""
    try:
        exchanged = workshop.exchange(draws)
    except Failure:  # what never ends says something else
        return
    if all(same(found, [run.answer]) for found, run in zip(exchanged, runs, strict=True)):
        yield "the oracle says the same where its tools look at another input: what is given tells the answer"


def _telling(problem: Problem, counter: Counter, draws: Sequence[Draw], answers: Sequence[Any]) -> Iterator[str]:
    """Tools that say the whole answer at once in every probe."""
    for tool in problem.schemas()[:-1]:
        for call in candidates(tool, []):
            for draw, answer in zip(draws, answers, strict=True):
                try:
                    acted = counter.act(draw.instance, call.function, call.kwargs)
                except Failure:
                    break
                if acted.refused is not None or not same(acted.result, answer):
                    break
            else:
                yield f"{call.function}({call.kwargs}) says the answer at once"


def _unfit_calls(problem: Problem, runs: Sequence[Run]) -> Iterator[str]:
    """Calls of the oracle that an agent could not make."""
    tools = {tool.name: tool for tool in problem.schemas()}
    for name, arguments, _ in (call for run in runs for call in run.calls):
        wrong = misfit(ApiAction(function=name, kwargs=arguments), tools[name])
        if wrong is not None:
            yield f"the oracle calls {name} with what its schema does not take: {wrong}"


def _wrong(expected: Any) -> list[Any]:
    """Answers besides the right one."""
    match expected:
        case bool():
            return [not expected]
        case int() | float():
            return [expected + 1, expected - 1, -expected]
        case str():
            return [f"{expected}x", expected[::-1]]
        case list():
            return [expected[:-1], expected[::-1], [*expected, 0]]
    return []


def _accepted(environment: Environment, problem: Problem, value: Any) -> bool:
    """Whether handing in ``value`` at once, or saying that all is done, meets the goal."""
    before = environment.snapshot()
    environment.step(ApiAction(function=SUBMIT, kwargs={} if problem.answer is None else {"answer": value}))
    passed = environment.check().passed
    environment.restore(before)
    return passed


def _unneeded(environment: Environment, task: Task) -> Iterator[str]:
    """The last call of the solution that changes something, if the goal is met without it."""
    gold = task.gold or []
    changing = None
    for number, action in enumerate(gold[:-1]):
        before = environment.state_digest()
        environment.step(action)
        changing = number if environment.state_digest() != before else changing
    environment.reset(task, 0)
    for number, action in enumerate(gold):
        if number != changing:
            environment.step(action)
    if environment.check().passed:
        yield f"the solution passes without its call {(changing or 0) + 1}"


def _judged(name: str, defects: Sequence[str] | Iterator[str]) -> AdmissionCheck:
    """Failed with the first few of ``defects``."""
    defects_found = list(dict.fromkeys(defects))
    return AdmissionCheck(name=name, passed=not defects_found, detail="; ".join(defects_found[:3]))


def _passed(name: str) -> AdmissionCheck:
    return AdmissionCheck(name=name, passed=True)


def _failed(name: str, detail: str) -> AdmissionCheck:
    return AdmissionCheck(name=name, passed=False, detail=detail)
