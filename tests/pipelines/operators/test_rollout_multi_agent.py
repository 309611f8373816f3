"""``multi_agent`` as a stage: on servers, with models by role, taken up again after a stop, told row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.pipelines.recipes.plan import make_plan
from agentmill.pipelines.serving.endpoints import Endpoint
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.served_model import ServedModel
from agentmill.schemas.config import dump_yaml
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Action
from agentmill.schemas.records.verdict import Label
from agentmill.schemas.tables import Counts
from agentmill.synthesis.environments import ENVIRONMENTS
from agentmill.synthesis.policies.policy import Conversation, Turn, Unreachable
from agentmill.synthesis.rollouts.step import acts
from tests.answer_environment import SPEC, question
from tests.errors import user_error
from tests.fake_openai import MODEL, FakeOpenAi, Reply, calls, text
from tests.pipelines.engine.stages import bytes_of, dropped_of, rows_of, write_table
from tests.pipelines.operators.steps import job, model, run, stage
from tests.ruin_environment import SPEC as RUIN
from tests.ruin_environment import Gambler, registered, ruin_task

ON = {"tasks": "tasks", "environments": "environments"}
ROLES: list[dict[str, Any]] = [
    {
        "name": "user",
        "person": True,
        "sees": "dialogue",
        "knows": "goal.secrets",
        "stop": "BYE",
    },
    {"name": "agent", "acts": True, "told": False},
    {"name": "critic", "veto": "NO"},
]
WORDS = ("red", "green", "blue")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three tasks whose answers only the user knows, and one in which the user knows nothing."""
    monkeypatch.setitem(ENVIRONMENTS._entries, "answers", "tests.answer_environment:AnswerEnvironment")
    write_table(tmp_path / "tasks", [[question(word, word) for word in WORDS], [question("none")]], Task)
    write_table(tmp_path / "environments", [[SPEC]], EnvironmentSpec)
    return tmp_path


def user(body: dict[str, Any]) -> Reply:
    """Wants something, and says what only when asked."""
    system, last = body["messages"][0]["content"], body["messages"][-1]["content"]
    return text(system.rsplit("\n", 1)[1] if last.startswith("agent: Which") else "I want a word.")


def agent(body: dict[str, Any]) -> Reply:
    """Asks, tries a wrong answer, and gives the right one when that is prevented."""
    said = [message["content"] for message in body["messages"]]
    if len(said) == 3:
        return text("Which one?")
    return calls(("answer", f'{{"text": "{said[4] if body["messages"][-1]["role"] == "tool" else "wrong"}"}}'))


def critic(body: dict[str, Any]) -> Reply:
    return text("NO, that is wrong." if '"wrong"' in body["messages"][-1]["content"] else "OK")


@pytest.fixture
def servers() -> Iterator[Callable[[], dict[str, FakeOpenAi]]]:
    with ExitStack() as stack:
        yield lambda: {
            name: stack.enter_context(FakeOpenAi(script, with_tokens=True))
            for name, script in {"user": user, "actor": agent, "critic": critic}.items()
        }


def served(servers: dict[str, FakeOpenAi]) -> dict[str, ServedModel]:
    """A model behind each server, by its role."""
    return {
        role: ServedModel(
            config=ModelConfig(policy="vllm", model=role, endpoints=[server.url]),
            endpoints=[Endpoint(base_url=server.url, model=MODEL)],
        )
        for role, server in servers.items()
    }


PARAMETERS: dict[str, Any] = {
    "policy": "a",
    "models": {"user": "u", "critic": "c"},
    "roles": ROLES,
    "scaffold": "tools",
    "temperature": 0.5,
    **ON,
}


def test_each_role_has_its_own_server_and_exactly_its_calls(world: Path, servers: Any) -> None:
    behind = servers()
    manifest = run(world, "multi_agent", "talks", served(behind), k=2, **PARAMETERS)
    assert manifest.counts == Counts(read=7, used=6, dropped=1, written=6)
    assert manifest.reasons == {"not_in_task": 1}
    assert {letter.blamed for letter in dropped_of(world / "talks")} == {"input"}, "no world had a part in it"
    assert manifest.metrics["success"] == 6
    assert {name: len(server.requests) for name, server in behind.items()} == {"user": 12, "actor": 18, "critic": 12}
    assert {body.get("temperature") for body in behind["actor"].requests} == {0.5}
    assert {body.get("temperature") for body in behind["user"].requests} == {1.0}, "that of its model"
    assert all("tools" not in body for name in ("user", "critic") for body in behind[name].requests)
    for row in rows_of(world / "talks"):
        said = Counter((item.agent, item.role) for item in row.content if isinstance(item, Action))
        assert said == {
            ("user", "speaker"): 2,
            ("agent", "speaker"): 1,
            ("agent", "proposer"): 1,
            ("agent", "actor"): 1,
            ("critic", "speaker"): 2,
        }
        assert {name: (each["model"], each["calls"]) for name, each in row.extra["roles"].items()} == {
            "user": ("user", 2),
            "agent": ("actor", 3),
            "critic": ("critic", 2),
        }
    judged = run(world, "check_outcome", "verdicts", of="talks", **ON)
    assert judged.metrics == {"scored": 6.0, "passed": 6.0}


def test_rows_of_every_role_hold_the_tokens_that_its_server_saw(world: Path, servers: Any) -> None:
    """A token of the server is a letter: prompts and answers can be read out of the rows."""
    behind = servers()
    run(world, "multi_agent", "talks", served(behind), **PARAMETERS)
    for role, name in (("user", "user"), ("agent", "actor"), ("critic", "critic")):
        made = run(world, "sft", f"{role}-rows", **{"from": "talks"}, role=role, rows="step")
        assert made.counts.written == len(behind[name].requests)
        prompts = Counter(
            "".join(f"<{m['role']}>{m.get('content') or ''}{_called(m)}</>" for m in body["messages"])
            for body in behind[name].requests
        )
        told = Counter[str]()
        for row in rows_of(world / f"{role}-rows"):
            turn = row.tokens[-1].turns[-1]
            told["".join(map(chr, row.tokens[-1].input_ids[: turn.start])).removesuffix("<assistant>")] += 1
            assert row.messages[turn.message].train
        assert told == prompts, role
    refused = run(world, "sft", "rows", **{"from": "talks"})
    assert refused.reasons == {"several_agents": 3}


def _called(message: dict[str, Any]) -> str:
    made = message.get("tool_calls") or []
    return "".join(call["function"]["name"] + call["function"]["arguments"] for call in made)


def test_nobody_goes_on_from_such_runs_alone(world: Path, servers: Any) -> None:
    """Neither a branch nor a revision has the other agents, and what is given would not be told to them."""
    run(world, "multi_agent", "talks", served(servers()), **PARAMETERS)
    alone, actor = Counts(read=3, used=0, dropped=3, written=0), {"actor": model("scripted", turns=["look"])}
    fixes = [
        Label(trajectory_id=row.trajectory_id, name="fix", value="{}", labeller="judge", item=place)
        for row in rows_of(world / "talks")
        for place, item in enumerate(row.content)
        if acts(item)
    ]
    write_table(world / "labels", [fixes], Label)
    given = {"given": "fix", "then": "recorded", "labels": "labels"}
    for name, more in {"branched": {}, "given": given}.items():
        branched = run(world, "branch", name, actor, policy="p", of="talks", turns="last", **more, **ON)
        assert (branched.counts, branched.reasons) == (alone, {"several_agents": 3})
    revised = run(world, "revise", "revised", actor, policy="p", of="talks", aim="refine", **ON)
    assert revised.reasons == {"several_agents": 3, "no_attempt": 1}


# --- taken up again ----------------------------------------------------------------------------------------------


def test_what_broke_off_goes_on_and_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is gone after 15 turns of the actor; episodes that had ended are not lived again."""
    write_table(tmp_path / "tasks", [[ruin_task(start, 5) for start in (1, 2, 3, 4)]], Task)
    write_table(tmp_path / "environments", [[RUIN]], EnvironmentSpec)
    taken, left = [0], [10**6]
    act = Gambler.act

    async def counted(policy: Gambler, conversation: Conversation) -> Turn:
        if taken[0] >= left[0]:
            raise Unreachable("nobody is there")
        taken[0] += 1
        return await act(policy, conversation)

    monkeypatch.setattr(Gambler, "act", counted)
    roles = [{"name": "planner"}, {"name": "actor", "acts": True, "max_actions": 3}]
    step = {"policy": "a", "models": {"planner": "p"}, "roles": roles, "k": 2, "window": 1, **ON}
    with registered():
        models = {"actor": model("gambler", turns=["0.6"]), "planner": model("sayer", turns=["Go right."])}
        run(tmp_path, "multi_agent", "whole", models, **step)
        needed, taken[0], left[0] = taken[0], 0, 15
        with user_error("endpoint-unreachable"):
            run(tmp_path, "multi_agent", "broken", models, **step)
        left[0] = 10**6
        run(tmp_path, "multi_agent", "broken", models, **step)
    assert bytes_of(tmp_path / "broken") == bytes_of(tmp_path / "whole")
    longest = max(row.extra["roles"]["actor"]["calls"] for row in rows_of(tmp_path / "whole"))
    assert needed <= taken[0] <= needed + longest, "only what was in flight is repeated"


# --- recipes -----------------------------------------------------------------------------------------------------


def recipe(folder: Path, step: dict[str, Any]) -> Path:
    path = folder / "recipe.yaml"
    content = {
        "name": "talks",
        "run_dir": str(folder / "run"),
        "models": {name: {"policy": "scripted", "turns": ["look"]} for name in ("one", "two")},
        "data": {name: str(folder / name) for name in ("tasks", "environments")},
        "steps": [{"operator": "multi_agent", "policy": "one", "roles": ROLES, **ON, **step}],
    }
    path.write_text(dump_yaml(content))
    return path


def test_models_of_roles_are_found_and_named_in_no_digest(world: Path) -> None:
    [step] = make_plan(read_recipe(recipe(world, {"models": {"critic": "two"}}), [])).steps
    assert {role: config.entry for role, config in step.models.items()} == {"actor": "one", "critic": "two"}
    models = {"actor": model("scripted", turns=["a"]), "critic": model("scripted", turns=["b"])}
    given = {**PARAMETERS, "models": {"critic": "c"}}
    one, other = (
        job(world, "multi_agent", "m", models, **{**given, "policy": name, "models": {"critic": name + "c"}})
        for name in ("a", "b")
    )
    assert one.parameters.provenance_config(one.context) == other.parameters.provenance_config(other.context)


def test_only_who_acts_has_to_choose_among_admissible_actions() -> None:
    speaker = ModelConfig(policy="openai", model="m", endpoints=["http://localhost:1"])
    chooser = ModelConfig(policy="vllm", model="m", endpoints=["http://localhost:1"])
    roles = [{"name": "planner"}, {"name": "actor", "acts": True}]
    given = {"policy": "p", "roles": roles, "models": {"planner": "q"}, "constrain": "admissible", **ON}
    stage("multi_agent", **given).check_models({"actor": chooser, "planner": speaker})
    for models in ({"actor": speaker, "planner": chooser}, {"actor": speaker}):
        with user_error("key-not-for-this", "constrain: admissible", "role actor"):
            stage("multi_agent", **{**given, "models": dict.fromkeys(models.keys() - {"actor"}, "q")}).check_models(
                models
            )


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            {"models": {"critc": "two"}},
            ("rule-broken", "models", "critc", "roles", "critic"),
        ),
        ({"models": {"actor": "two"}}, ("rule-broken", "models", "actor", "policy")),
        ({"models": {"critic": "three"}}, ("unknown-name", "three")),
        ({"roles": [{"name": "a", "acts": True}, {"name": "b", "act": True}]}, ("unknown-key", "act", "roles.1")),
        ({"context": "notes"}, ("rule-broken", "context: notes")),
        (
            {"roles": [{"name": "a", "acts": True}, {"name": "b", "acts": True}], "max_vetoes": 2},
            ("rule-broken", "`max_vetoes`", "veto"),
        ),
    ],
)
def test_mistakes_are_found_before_anything_runs(step: dict[str, Any], message: tuple[str, ...], world: Path) -> None:
    with user_error(*message):
        make_plan(read_recipe(recipe(world, step), []))


def test_it_needs_roles() -> None:
    with user_error("missing-key", "roles"):
        stage("multi_agent", policy="p", **ON)
