"""A small run with something of everything that a view shows, and texts that try to be more than text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.rows import Message, PreferenceRow, SftRow
from agentmill.schemas.records.trajectory import CodeAction, Trajectory, Usage
from agentmill.schemas.records.verdict import Label, Node, Selection, Value
from agentmill.schemas.views.annotations import Annotations
from agentmill.schemas.views.sft import Sft
from tests.builders import (
    agent_message,
    called,
    generation,
    instruction,
    outcome,
    seen,
    spec,
    task,
    tokens,
    tool_trajectory,
    trajectory,
    verdict,
)

ATTACKS = (
    "<script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=2>",
    "</script></pre></title><svg onload=window.hacked=3>",
    "');window.hacked=4;agentmill.add('",
    "\\');window.hacked=5;//",
    "\u2028window.hacked=6\u2029//",
    "${window.hacked=7} {{constructor.constructor('window.hacked=8')()}}",
    "javascript:window.hacked=9",
    "<!--<script>",
    "\U0001f600 \u202e evil \x00\x1b[31m \ufeff \u200b\xad\x9b\U000e0041",
)
ATTACK = " ".join(ATTACKS)
HOSTILE_ID = "../x'\"><img src=x onerror=window.hacked=10>#?/%41"


def hostile() -> Trajectory:
    """A trajectory all of whose texts are attacks."""
    call = called("look", 1, ATTACK, __proto__={"hacked": 1}, constructor=ATTACK, big=2**60 + 1)
    return trajectory(
        HOSTILE_ID,
        content=[
            instruction(ATTACK),
            seen(ATTACK, state_digest=ATTACK, name=ATTACK),
            agent_message(ATTACK, 1, description=ATTACK, reasoning_content=ATTACK, agent=ATTACK, role=ATTACK),
            call,
            CodeAction(language=ATTACK, content=ATTACK, turn=1),
            seen(ATTACK, 1, tool_call_id=ATTACK, reward=1e17),
        ],
        task_id=ATTACK,
        environment_id="env-hostile",
        system_prompt=ATTACK,
        generation=generation(model=ATTACK, seed=2**60 + 1),
        split=ATTACK,
        extra={ATTACK: ATTACK},
    )


def text_run(trajectory_id: str, won: bool, model: str | None, round: int = 0) -> Trajectory:
    """A run of two turns in a world that shows its whole state; the first turn is the same in all."""
    start = "You are at home. The ball is on the floor. The box is empty. The door is open."
    moved = start.replace("on the floor", "in the box").replace("box is empty", "box is full")
    last = ("put ball into box", moved, "s3") if won else ("look", start, "s1")
    return trajectory(
        trajectory_id,
        content=[
            instruction(),
            seen(start, state_digest="s1"),
            agent_message("open box", 1, tokens=tokens(5, 6, prompt_ids=(1, 2, 3, 4), segment_start=True)),
            seen(start.replace("box is empty", "box is open"), 1, state_digest="s2"),
            agent_message(last[0], 2, tokens=tokens(7, 8, 9)),
            seen(last[1], 2, reward=float(won), state_digest=last[2]),
        ],
        outcome=outcome("success" if won else "failure"),
        generation=generation(model=model, policy="actor" if model else "expert", round=round),
        usage=Usage(prompt_tokens=1200, completion_tokens=48, cached_tokens=600, seconds=3.25, cost_usd=0.0012),
    )


def write_run(root: Path) -> Path:
    """The run, as a recipe would have left it: eight trajectories in three tables, and what is said of them."""
    demonstrated = text_run("d1", won=True, model=None)
    explored = [text_run(f"e{n}", won=n % 2 == 0, model="tiny", round=n // 2) for n in range(4)]
    others = [tool_trajectory(environment_id="env2", task_id="task2"), hostile()]
    tables: dict[str, Sequence[Record]] = {
        "demonstrations": [demonstrated],
        "explored": explored,
        "evaluation/base/trajectories": others,
        "kept": [demonstrated],
        "environments": [spec(), spec("env2", family="toolbox", name="tools"), spec("env-hostile", name=ATTACK)],
        "tasks": [task(), task("task2", environment_id="env2", goal={"seen": 2**60 + 1})],
        "verdicts": [
            *(verdict(each.trajectory_id, each.outcome.status == "success") for each in [demonstrated, *explored]),
            verdict("t2", passed=False, evidence={"missing": ["loan 9: status lent"], "unwanted": [ATTACK]}),
            verdict(HOSTILE_ID, name=ATTACK, reason=ATTACK, evidence={ATTACK: ATTACK}, item=2),
        ],
        "labels": [
            Label(trajectory_id="e1", name="critical", value="yes", labeller="judge", item=4, reason="It only looked."),
            Label(trajectory_id=HOSTILE_ID, name=ATTACK, value=ATTACK, labeller=ATTACK),
        ],
        "values": [Value(trajectory_id="e1", name="mc", value=0.375, estimator="rollouts", n=8, item=2)],
        "selected": [Selection(trajectory_id="d1", name="sft", kept=True, weight=2.0)],
        "rows": [*sft_rows(demonstrated, "trajectory"), *sft_rows(explored[0], "step")],
        "pairs": [pair(demonstrated, explored[1]), pair(explored[2], explored[3], "p2", "step_pairs")],
        "explored/nodes": nodes(),
        "kept/nodes": nodes()[:2],
    }
    for name, rows in tables.items():
        seed_table(root / name, rows)
    return root


def sft_rows(run: Trajectory, per: str) -> list[SftRow]:
    """Rows of a run as export makes them; the last step alone has loss."""
    where = {"rows": per, "loss": "all"}
    return Sft.model_validate(where).make_rows(run, Annotations())


def pair(chosen: Trajectory, rejected: Trajectory, row_id: str = "p1", view: str = "trajectory_pairs") -> PreferenceRow:
    """A preference row with a hostile prompt."""
    return PreferenceRow(
        row_id=row_id,
        view=view,
        view_parameters={"min_gap": 0.0},
        prompt=[Message(role="system", content="Act by commands."), Message(role="user", content=ATTACK)],
        chosen=[Message(role="assistant", content="put ball into box", train=True)],
        rejected=[Message(role="assistant", content="look", train=True), Message(role="user", content="You look.")],
        chosen_id=chosen.trajectory_id,
        rejected_id=rejected.trajectory_id,
        chosen_score=1.0,
        rejected_score=0.0,
        environment_id="env1",
        task_id="task1",
    )


def nodes() -> list[Node]:
    """A tree of five nodes that two runs share the beginning of."""
    return [
        Node(node_id="n0", tree_id="w", parent_id=None, trajectory_id="e0", turn=0, visits=9, q=0.5),
        Node(node_id="n1", tree_id="w", parent_id="n0", trajectory_id="e0", turn=1, visits=6, q=0.7, prior=0.6),
        Node(node_id="n2", tree_id="w", parent_id="n1", trajectory_id="e0", turn=2, visits=4, q=1.0, terminal=True),
        Node(node_id="n3", tree_id="w", parent_id="n1", trajectory_id="e1", turn=2, visits=2, q=0.0, terminal=True),
        Node(node_id="n4", tree_id="w", parent_id="n0", trajectory_id=None, turn=1, visits=3, extra={ATTACK: ATTACK}),
    ]
