"""Planning environments and their tasks under other names: actions, types, parameters, objects, predicates, and the
sentences and commands about them. The domain stays the same up to renaming."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from agentmill.schemas.ids import derive_seed
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Lineage, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction, MessageAction
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.environments.pddl.domain import OBJECT, Domain, Literal, PddlError, Problem, Typed
from agentmill.synthesis.environments.pddl.reader import read_domain, read_problem
from agentmill.synthesis.environments.pddl.template import negated
from agentmill.synthesis.environments.pddl.wording import Parameters, Wording
from agentmill.synthesis.environments.pddl.writer import domain_text, problem_text
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.generators.pddl_tasks.scheme import ProblemScheme
from agentmill.synthesis.generators.renaming.renaming import NOTE as RENAMING
from agentmill.synthesis.generators.renaming.renaming import (
    Names,
    Renaming,
    action_words,
    chosen,
    rename_call,
    renaming_of,
    texts_in,
    words_of,
)
from agentmill.synthesis.generators.trial import Solution, try_task
from agentmill.synthesis.generators.wrapping import (
    NOTE,
    OPERATOR,
    Wrapping,
    wrapped_environment_id,
    wrapped_task_id,
)

_PROBLEMS = "problems"
_NO_NAMES = ("rule", "shapes", "count", "shuffled", "distinct")
"""The fields of rules for initial states that hold no predicate."""


def wrap_environment(spec: EnvironmentSpec, wrapping: Wrapping, seed: int) -> EnvironmentSpec | GenerationError:
    """The renamed environment, or why there is none. Raises ``EnvError`` for one that cannot be used as it is."""
    others = wrapping.without_rename().note()
    if others or wrapping.rename is None:
        given = ", ".join(f"`{name}`" for name in others)
        return GenerationError(
            "no_wrapper", f"environments of family pddl have no wrappers but `rename`; given {given}"
        )
    try:
        domain = read_domain(spec.source)
        Wording(domain, spec.parameters)
        wording = msgspec.convert(spec.parameters, Parameters)
        scheme = msgspec.convert(spec.parameters.get(_PROBLEMS, {}), ProblemScheme)
        objects = list(_objects(domain, scheme))
    except (PddlError, ValueError) as error:
        raise EnvError(f"environment {spec.environment_id}: {error}") from error
    words, identifiers, wanted = _named(domain, wording, objects, wrapping.names)
    texts = [spec.source, *texts_in(spec.parameters), *renaming_of(spec.lineage).words]
    # A draw of its own: else a word would mean much the same in all environments, and be learned by heart.
    drawn = derive_seed(spec.environment_id, seed)
    renaming = chosen(words, wrapping.rename, texts, drawn, identifiers=identifiers).with_kept(wanted)
    renamed, parameters = _rename_domain(domain, renaming), dict(spec.parameters)
    parameters |= _rename_wording(wording, renaming)
    if _PROBLEMS in parameters:
        parameters[_PROBLEMS] = _rename_scheme(scheme, domain, renaming)
    notes = {NOTE: wrapping.note(), RENAMING: renaming.note()}
    try:
        source = domain_text(renamed)
        tools = Wording(read_domain(source), parameters).tools() if spec.tools else []
    except (PddlError, ValueError) as error:
        return GenerationError("renaming_invalid", f"under other names the environment is broken: {error}")
    return msgspec.structs.replace(
        spec,
        environment_id=wrapped_environment_id(spec.environment_id, wrapping, seed),
        name=f"{spec.name}-wrapped",
        source=source,
        parameters=parameters,
        tools=tools,
        admission=None,
        lineage=Lineage(operator=OPERATOR, parents=[spec.environment_id], seed=seed, notes=notes),
    )


def wrap_task(task: Task, wrapped: EnvironmentSpec, wrapping: Wrapping, seed: int) -> Task | GenerationError:
    """``task`` in a renamed environment, or why it has none there. Raises ``EnvError`` for a task that is broken."""
    known = renaming_of(wrapped.lineage)
    domain = _rename_domain(read_domain(wrapped.source), known.inverse())
    text = str(task.initial_state.get("problem"))
    try:
        problem = read_problem(text, domain)
    except PddlError as error:
        raise EnvError(f"task {task.task_id}: {error}") from error
    renaming = known
    if wrapping.names != "actions" and wrapping.rename is not None:
        # Objects that the environment does not know come with the task.
        things = [item.name for item in problem.objects]
        texts = [task.instruction, text, wrapped.source, *texts_in(wrapped.parameters)]
        drawn = derive_seed(task.task_id, seed)
        renaming = chosen(words_of(things), wrapping.rename, texts, drawn, base=known).with_kept(things)
    changed = msgspec.structs.replace(
        task,
        task_id=wrapped_task_id(task.task_id, wrapped.environment_id),
        environment_id=wrapped.environment_id,
        instruction=renaming.text(task.instruction),
        initial_state={**task.initial_state, "problem": problem_text(_rename_problem(problem, renaming))},
        constraints=[renaming.text(each) for each in task.constraints],
        gold=None if task.gold is None else [rename_action(action, renaming) for action in task.gold],
        admission=None,
        lineage=Lineage(
            operator=OPERATOR,
            parents=[task.task_id],
            seed=seed,
            notes={} if renaming == known else {RENAMING: renaming.note()},
        ),
    )
    failed = next((each for each in try_task(changed, wrapped, Solution(changed.gold, None)) if not each.passed), None)
    return changed if failed is None else GenerationError(failed.name, failed.detail)


def rename_action(action: AnyAction, renaming: Renaming) -> AnyAction:
    """A call or a command with its names mapped."""
    if isinstance(action, MessageAction):
        return msgspec.structs.replace(action, content=renaming.text(action.content))
    return rename_call(action, renaming) if isinstance(action, ApiAction) else action


def _objects(domain: Domain, scheme: ProblemScheme) -> Iterator[str]:
    yield from (constant.name for constant in domain.constants)
    yield from (name for pool in scheme.objects.values() for name in pool.names)
    if scheme.example is not None:
        yield from (item.name for item in read_problem(scheme.example, domain).objects)


def _named(
    domain: Domain, wording: Parameters, objects: list[str], names: Names
) -> tuple[set[str], set[str], list[str]]:
    """The words to be mapped, the identifiers without such words, and all names that are meant."""
    actions = [action.name for action in domain.actions]
    kinds = [name for name, _ in domain.types]
    kinds += [parameter.name.removeprefix("?") for action in domain.actions for parameter in action.parameters]
    predicates = [predicate.name for predicate in domain.predicates]
    words: set[str] = set()
    wanted: list[str] = []
    if names != "objects":
        words |= action_words([*actions, *wording.action_text.values()], words_of([*objects, *kinds]))
        wanted += actions
    if names != "actions":
        words |= words_of([*objects, *kinds])
        wanted += [*objects, *kinds]
    if names == "all":
        words |= words_of([*predicates, *wording.predicate_text.values(), *wording.denial_text.values()])
        wanted += predicates
    # What an object is called is in sentences, where a letter cannot be distinguished from a word of grammar.
    identifiers = {name for name in {*wanted} - {*objects} if not words_of([name])}
    return words, identifiers, wanted


def _rename_domain(domain: Domain, renaming: Renaming) -> Domain:
    return msgspec.structs.replace(
        domain,
        types=tuple((_kind(name, renaming), _kind(parent, renaming)) for name, parent in domain.types),
        constants=tuple(_typed(item, renaming) for item in domain.constants),
        predicates=tuple(
            msgspec.structs.replace(
                each,
                name=renaming.name(each.name),
                parameters=tuple(_typed(item, renaming) for item in each.parameters),
            )
            for each in domain.predicates
        ),
        actions=tuple(
            msgspec.structs.replace(
                each,
                name=renaming.name(each.name),
                parameters=tuple(_typed(item, renaming) for item in each.parameters),
                precondition=tuple(_literal(literal, renaming) for literal in each.precondition),
                effect=tuple(_literal(literal, renaming) for literal in each.effect),
            )
            for each in domain.actions
        ),
    )


def _rename_problem(problem: Problem, renaming: Renaming) -> Problem:
    return msgspec.structs.replace(
        problem,
        objects=tuple(_typed(item, renaming) for item in problem.objects),
        init=tuple((renaming.name(atom[0]), *(_term(term, renaming) for term in atom[1:])) for atom in problem.init),
        goal=tuple(_literal(literal, renaming) for literal in problem.goal),
    )


def _rename_wording(wording: Parameters, renaming: Renaming) -> JsonObject:
    denials = {name.lower(): text for name, text in wording.denial_text.items()}
    for name, text in wording.predicate_text.items():
        # Only listed verbs are denied by "does not"; under their other names the sentences must stay the same.
        denial = renaming.text(denials.get(name.lower(), negated(text)))
        if denial != negated(renaming.text(text)):
            denials[name.lower()] = denial
    changed: JsonObject = {
        "predicate_text": {renaming.name(name.lower()): renaming.text(x) for name, x in wording.predicate_text.items()},
        "action_text": {renaming.name(name.lower()): renaming.text(x) for name, x in wording.action_text.items()},
    }
    if denials:
        changed["denial_text"] = {renaming.name(name): renaming.text(text) for name, text in denials.items()}
    if wording.rules is not None:
        changed["rules"] = renaming.text(wording.rules)
    if wording.hidden_predicates:
        changed["hidden_predicates"] = [renaming.name(name) for name in wording.hidden_predicates]
    return changed


def _rename_scheme(scheme: ProblemScheme, domain: Domain, renaming: Renaming) -> JsonObject:
    given: JsonObject = msgspec.json.decode(msgspec.json.encode(scheme))

    def field(name: str, value: object) -> object:
        if name in _NO_NAMES or not isinstance(value, str | list):
            return value
        return renaming.name(value) if isinstance(value, str) else [renaming.name(str(each)) for each in value]

    example = scheme.example
    return {
        **given,
        "objects": {
            _kind(kind, renaming): {"count": [*pool.count], "names": [renaming.text(name) for name in pool.names]}
            for kind, pool in scheme.objects.items()
        },
        "start": [{name: field(name, value) for name, value in rule.items()} for rule in given["start"]],
        "goals": {renaming.name(name): weight for name, weight in scheme.goals.items()},
        "example": example and problem_text(_rename_problem(read_problem(example, domain), renaming)),
    }


def _typed(item: Typed, renaming: Renaming) -> Typed:
    return Typed(_term(item.name, renaming), _kind(item.type, renaming))


def _kind(name: str, renaming: Renaming) -> str:
    return name if name == OBJECT else renaming.name(name)


def _term(term: str, renaming: Renaming) -> str:
    """A parameter or an object; a letter that is a parameter elsewhere may be an object here."""
    return f"?{renaming.name(term[1:])}" if term.startswith("?") else renaming.text(term)


def _literal(literal: Literal, renaming: Renaming) -> Literal:
    return Literal(
        renaming.name(literal.predicate),
        tuple(_term(term, renaming) for term in literal.arguments),
        literal.positive,
    )
