"""``tree_search`` as a stage: runs and nodes as two tables, taken up again after a stop, read by later steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.pipelines.recipes.plan import make_plan
from agentmill.pipelines.serving.endpoints import Endpoint
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.served_model import ServedModel
from agentmill.pipelines.tables.inspection import inspect_table
from agentmill.schemas.chat import to_messages, to_openai
from agentmill.schemas.config import dump_yaml
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.tables import Counts, Table
from agentmill.synthesis.policies.completion import token_sequence
from tests import fake_openai
from tests.decision_environment import SPEC, decision_task, registered
from tests.errors import user_error
from tests.fake_openai import FakeOpenAi
from tests.pipelines.engine.stages import bytes_of, dropped_of, rows_of, write_table
from tests.pipelines.operators.steps import job, model, run, stage

TREE = {"a": {"a": {"a": 0.1, "b": 1.0}, "b": 0.3}, "b": {"a": 0.0, "b": {"a": 0.9, "b": 0.2}}}
LEAVES = ["aaa", "aab", "ab", "ba", "bba", "bbb"]
ON = {"tasks": "tasks", "environments": "environments"}
SEARCH: dict[str, Any] = {"policy": "actor", "method": "best_first", "branching": 8, "value": "environment", **ON}
"""Everything is expanded: 5 states with 8 draws each, in which nobody misses a letter for any seed that is used."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Path]:
    """Three tasks to decide, in two shards; the last one has no environment."""
    tasks = [decision_task(TREE, task_id=name) for name in ("one", "two", "three")]
    stray = msgspec.structs.replace(decision_task(TREE, task_id="stray", split="stray"), environment_id="nowhere")
    write_table(tmp_path / "environments", [[SPEC]], EnvironmentSpec)
    with registered():
        write_table(tmp_path / "tasks", [tasks[:2], [tasks[2], stray]], Task)
        yield tmp_path


def actor(**fields: Any) -> dict[str, ServedModel]:
    return {"actor": model("chooser", turns=["ab"], **fields)}


def test_runs_and_nodes_are_two_tables(world: Path) -> None:
    manifest = run(world, "tree_search", "trees", actor(), split="train", **SEARCH)
    assert manifest.counts == Counts(read=3, used=3, dropped=0, written=18)
    trees = Table.open(world / "trees" / "nodes")
    assert (trees.manifest.table, trees.manifest.record) == ("trees/nodes", "Node")
    assert trees.manifest.counts == Counts(read=3, used=3, dropped=0, written=33)
    nodes, runs = list(trees.rows()), {row.trajectory_id: row for row in rows_of(world / "trees")}
    assert Counter(node.parent_id is None for node in nodes) == {True: 3, False: 30}
    assert {node.parent_id for node in nodes} - {None} <= {node.node_id for node in nodes}
    assert {node.trajectory_id for node in nodes} == set(runs)
    assert [node.node_id for node in nodes[:11]] == sorted(node.node_id for node in nodes[:11])
    assert sorted({str(node.state_digest) for node in nodes if node.terminal}) == [f"at-{leaf}" for leaf in LEAVES]
    metrics = manifest.metrics
    assert (metrics["episodes"], metrics["success"], metrics["nodes"]) == (18, 3, 33)
    assert (metrics["turns"], metrics["tree_turns"], metrics["tree_actor_calls"]) == (30, 30, 120)
    assert trees.manifest.inputs == manifest.inputs
    assert trees.manifest.config == manifest.config
    assert {entry.name for entry in (world / "trees").iterdir()} == {"data", "nodes", "manifest.json"}
    assert {entry.name for entry in (world / "trees" / "nodes").iterdir()} == {"data", "manifest.json"}


def test_a_table_of_nodes_can_be_looked_at_and_named(world: Path) -> None:
    run(world, "tree_search", "trees", actor(), split="train", **SEARCH)
    looked = inspect_table(Table.open(world / "trees" / "nodes"), 1)
    assert (looked.record, looked.counts["written"], looked.files) == ("Node", 33, 2)
    assert looked.spreads["visits"].maximum == 11
    assert inspect_table(Table.open(world / "trees"), 1).beside == [str(world / "trees" / "nodes")]
    search = {"operator": "tree_search", **SEARCH, "as": "found"}
    config = {
        "name": "r",
        "run_dir": str(world / "r"),
        "models": {"actor": {"policy": "expert"}},
        "data": {"tasks": str(world / "tasks"), "environments": str(world / "environments")},
        "steps": [search, {"operator": "sample", "policy": "actor", "tasks": "found/nodes", "environments": "found"}],
    }
    recipe = world / "r.yaml"
    recipe.write_text(dump_yaml(config))
    with user_error("wrong-record-type", "Node", "Task"):
        make_plan(read_recipe(recipe, []))
    config["data"] = {**config["data"], "nodes": str(world / "trees" / "nodes")}  # type: ignore[dict-item]
    config["steps"] = [{"operator": "sample", "policy": "actor", "tasks": "nodes", "environments": "environments"}]
    recipe.write_text(dump_yaml(config))
    with user_error("wrong-record-type", "Node", "Task"):
        make_plan(read_recipe(recipe, []))


def test_a_search_that_fails_is_dropped_with_its_reason_and_without_a_node(world: Path) -> None:
    failing = {"actor": model("failing", turns=["bb"])}
    manifest = run(world, "tree_search", "trees", failing, **SEARCH)
    assert manifest.counts == Counts(read=4, used=0, dropped=4, written=0)
    assert manifest.reasons == {"timeout": 3, "world_error": 1}
    assert {(letter.reason, letter.blamed) for letter in dropped_of(world / "trees")} == {
        ("timeout", "policy"),
        ("world_error", "environment"),
    }
    assert {letter.input_id for letter in dropped_of(world / "trees") if letter.blamed == "environment"} == {"stray/0"}
    assert Table.open(world / "trees" / "nodes").manifest.counts.written == 0


@pytest.mark.parametrize("policy", ["openai", "expert", "scripted"])
def test_priors_of_log_probabilities_need_a_policy_that_gives_them(policy: str) -> None:
    known = {"openai": {"model": "m", "endpoints": ["http://localhost:1"]}, "scripted": {"turns": ["look"]}}
    step = stage("tree_search", **{**SEARCH, "priors": "logprob"})
    with user_error("key-not-for-this", "priors: logprob", policy):
        step.check_models({"actor": ModelConfig(policy=policy, **known.get(policy, {}))})
    step.check_models({"actor": ModelConfig(policy="vllm", model="m", endpoints=["http://localhost:1"])})


@pytest.mark.parametrize("calls", [0, 25, 55, 100])
def test_a_search_that_is_stopped_goes_on_and_ends_the_same(world: Path, calls: int) -> None:
    """Trees take 40 calls each, one after the other; whole ones are not begun again."""
    log = world / "calls.log"
    logged = {"actor": model("chooser", turns=["ab", f"log:{log}"])}
    run(world, "tree_search", "undisturbed", logged, split="train", window=1, k=2, **SEARCH)
    whole = Counter(log.read_text().splitlines())
    assert sorted(whole.values()) == [40] * 6
    log.unlink()
    log.with_suffix(".limit").write_text(str(calls))
    with user_error("no-space"):
        run(world, "tree_search", "trees", logged, split="train", window=1, k=2, **SEARCH)
    assert not (world / "trees" / "manifest.json").exists()
    first = Counter(log.read_text().splitlines()) if log.exists() else Counter()
    log.with_suffix(".limit").unlink()
    manifest = run(world, "tree_search", "trees", logged, split="train", window=1, k=2, **SEARCH)
    again = Counter(log.read_text().splitlines()) - first
    ended = {tree for tree, times in first.items() if times == 40}
    assert len(ended) == calls // 40
    assert again == {tree: 40 for tree in whole if tree not in ended}
    files = bytes_of(world / "trees")
    assert set(files) == {f"{part}data/part-0000{n}.parquet" for part in ("", "nodes/") for n in (0, 1)}
    assert files == bytes_of(world / "undisturbed")
    assert manifest.metrics == Table.open(world / "undisturbed").manifest.metrics
    assert manifest.metrics["tree_actor_calls"] == 240


def test_a_tree_that_gives_way_takes_its_nodes_with_it(world: Path) -> None:
    run(world, "tree_search", "out", actor(), split="train", **SEARCH)
    other = job(world, "sample", "out", actor(), policy="actor", split="train", **ON)
    with user_error("made-differently", "operator: tree_search -> sample"):
        other.run()
    assert job(world, "tree_search", "out", actor(), split="train", **SEARCH).finished() is not None
    assert other.run(replace=True).operator == "sample"
    assert not (world / "out" / "nodes").exists()


def test_siblings_make_pairs_and_a_tree_is_told_as_a_search(world: Path) -> None:
    """ "aab" is the only success: at each of its turns, and nowhere else, there is something worse to do."""
    run(world, "tree_search", "trees", actor(), split="train", **SEARCH)
    runs = {row.trajectory_id: row for row in rows_of(world / "trees")}
    run(world, "step_pairs", "pairs", **{"from": "trees"}, score="outcome")
    pairs = rows_of(world / "pairs")
    for pair in pairs:
        assert runs[pair.chosen_id].outcome.status == "success"
        assert runs[pair.rejected_id].outcome.status == "failure"
    parts = Counter((pair.chosen[0].content, pair.rejected[0].content, len(pair.prompt)) for pair in pairs)
    assert parts == {("a", "b", 2): 3, ("a", "b", 4): 3, ("b", "a", 6): 3}
    told = run(world, "search_trace", "told", **{"from": "trees"})
    assert told.counts.written == 3
    assert Counter(message.content for message in rows_of(world / "told")[0].messages if message.train)["a"] > 2


def test_tokens_of_branches_are_those_of_the_prompts_they_were_sampled_from(world: Path) -> None:
    """With the fake server a token is a character, so the token sequence of a run is its conversation."""

    def answer(body: dict[str, Any]) -> fake_openai.Reply:
        return fake_openai.text("ab"[body["seed"] % 2])

    with FakeOpenAi(answer, with_tokens=True) as server:
        config = ModelConfig(policy="vllm", model="m", endpoints=[server.url])
        models = {"actor": ServedModel(config=config, endpoints=[Endpoint(base_url=server.url, model="m")])}
        manifest = run(world, "tree_search", "trees", models, split="train", priors="logprob", **SEARCH)
    runs: list[Trajectory] = rows_of(world / "trees")
    assert len(runs) == 18
    for each in runs:
        said = to_openai(to_messages(each.system_prompt, each.content[:-1]))
        text = "".join(f"<{message['role']}>{message['content']}</>" for message in said)
        assert "".join(map(chr, token_sequence(each.content))) == text
    assert manifest.metrics["tree_completion_tokens"] == 120 * len("a</>")
    assert manifest.metrics["completion_tokens"] == 30 * len("a</>")


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"value": "critic"}, ("rule-broken", "value: critic")),
        ({"critic": "judge"}, ("rule-broken", "value: critic")),
        ({"method": "beam", "c": 2.0}, ("rule-broken", "method: mcts")),
        ({"brancing": 2}, ("unknown-key", "branching")),
    ],
)
def test_mistakes_are_explained(parameters: dict[str, Any], expected: tuple[str, ...]) -> None:
    with user_error(*expected):
        stage("tree_search", policy="actor", **ON, **parameters)


def test_a_critic_is_asked_as_its_own_model_says(world: Path) -> None:
    served = {"model": "m", "endpoints": ["http://127.0.0.1:1/v1"], "sampling": {"temperature": 0.1}}
    parameters = {**SEARCH, "value": "critic", "critic": "critic", "temperature": 0.9, "split": "train"}
    models = {"actor": model("openai", **served), "critic": model("openai", **served)}
    step = job(world, "tree_search", "trees", models, **parameters)
    settled = step.parameters.provenance_config(step.context)["models"]
    assert [settled[role]["sampling"]["temperature"] for role in ("actor", "critic")] == [0.9, 0.1]
    judged = {**actor(), "critic": model("appraiser", turns=["bb=0.9", "bba=0.9"])}
    assert run(world, "tree_search", "judged", judged, **parameters).metrics["tree_critic_calls"] == 3 * 5


def test_the_window_counts_trees(world: Path) -> None:
    step = stage("tree_search", policy="actor", branching=8, **ON)
    context = job(world, "tree_search", "t", actor(), **SEARCH).context
    assert step.window_of(context) == 8  # type: ignore[attr-defined]
    assert stage("tree_search", policy="actor", window=3, **ON).window_of(context) == 3  # type: ignore[attr-defined]
