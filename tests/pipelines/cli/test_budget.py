"""A budget that is spent, or a provider that refuses all, ends a stage cleanly; the same command takes it up."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Never

import msgspec
import pytest

from agentmill.pipelines.recipes.plan import Plan
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.tables import Table
from agentmill.synthesis.policies.cost import LEDGER, read_ledger
from tests.errors import shows
from tests.fake_openai import MODEL, FakeOpenAi, Reply, status, text
from tests.pipelines.cli.tables import DEMONSTRATE, agentmill, write_environments, write_recipe

SAMPLE = {**DEMONSTRATE, "operator": "sample", "policy": "actor", "max_turns": 2, "window": 2, "as": "explored"}


def actor(server: FakeOpenAi, **fields: Any) -> dict[str, Any]:
    prices = {"input": 1_000_000, "output": 0}
    return {"policy": "openai", "model": MODEL, "endpoints": [server.url], "prices": prices, **fields}


@pytest.mark.parametrize("runner", [{"name": "embedded"}, {"name": "multi_processing", "workers": 2}])
def test_a_stage_that_spent_its_budget_goes_on_with_a_larger_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], runner: dict[str, Any]
) -> None:
    write_environments(tmp_path, copies=12)
    with FakeOpenAi([text("look")]) as server:
        models = {"actor": actor(server, budget={"tokens": 1})}
        recipe = write_recipe(tmp_path, SAMPLE, models=models, runner=runner)
        assert agentmill("run", recipe) == 1
        said = capsys.readouterr().err
        asked = len(server.requests)
        assert 1 <= asked <= int(runner.get("workers", 1)), "one request more than the budget at most for each worker"
        assert "step explored stopped, the budget of actor is spent: " in said
        assert "the 0 inputs that have ended are kept\n" in said
        assert said.splitlines()[-1] == f"raise that limit, or wait, and go on with: agentmill run {recipe}"
        assert not (tmp_path / "run/explored/manifest.json").exists()
        assert agentmill("run", recipe) == 1
        assert len(server.requests) == asked, "nothing is begun with a budget that was spent before"
        assert agentmill("run", recipe, "models.actor.budget.tokens=1000000") == 0
        assert len(server.requests) == 24 + asked, "what was cut short is played again"
        finish = capsys.readouterr().out
    (spent,) = read_ledger(tmp_path / "run" / LEDGER)
    assert (spent.model, spent.step, spent.requests) == ("actor", "explored", 24 + asked)
    summary = msgspec.json.decode((tmp_path / "run/summary.json").read_bytes())
    assert summary["stages"]["explored"]["tokens"] == summary["tokens"] == spent.prompt_tokens + spent.completion_tokens
    assert summary["cost_usd"] == spent.cost_usd
    cells = {line.split()[0]: line.split() for line in finish.splitlines() if line.split()}
    row, total = cells["explored"], cells["total"]
    assert row[-2:] == total[-2:] == [f"{summary['tokens']:,}", f"{spent.cost_usd:,.0f}"]
    table = Table.open(tmp_path / "run/explored")
    assert table.manifest.counts.written == 12
    rows = list(table.rows())
    assert {row.usage.cost_usd for row in rows} == {float(row.usage.prompt_tokens) for row in rows}
    assert table.manifest.metrics["cost_usd"] == sum(row.usage.cost_usd for row in rows)


def test_a_budget_in_dollars(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_environments(tmp_path, copies=4)
    with FakeOpenAi([text("look")]) as server:
        models = {"actor": actor(server, budget={"usd": 0.5})}
        assert agentmill("run", write_recipe(tmp_path, SAMPLE, models=models)) == 1
    assert len(server.requests) == 1
    assert "of 0.50 USD; the 0 inputs that have ended are kept" in capsys.readouterr().err


def test_a_run_that_stops_says_what_it_has_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_environments(tmp_path, copies=1)
    with FakeOpenAi([text("look"), status(400, message="no more")]) as server:
        recipe = write_recipe(tmp_path, SAMPLE, models={"actor": actor(server)})
        assert agentmill("run", recipe) == 1
        (spent,) = read_ledger(tmp_path / "run" / LEDGER)
        told = f"so far the models of this run have taken {spent.prompt_tokens + spent.completion_tokens:,} tokens, "
        assert capsys.readouterr().err.splitlines()[-3].startswith(told)
        assert agentmill("run", recipe, "models.actor.sampling.max_tokens=0") == 2
        assert "so far" not in capsys.readouterr().err


def test_a_ledger_that_is_damaged_meanwhile_does_not_hide_what_ended_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_environments(tmp_path, copies=1)

    def ended(plan: Plan, *_: object) -> Never:
        plan.run_dir.mkdir()
        (plan.run_dir / LEDGER).write_bytes(b"no database" * 100)
        raise UserError("the device is full", ErrorCode.NO_SPACE)

    monkeypatch.setattr("agentmill.pipelines.cli.run.run_plan", ended)
    recipe = write_recipe(tmp_path, DEMONSTRATE)
    assert agentmill("run", recipe) == 2
    assert shows(capsys.readouterr().err, "no-space", "the device is full")
    assert agentmill("run", recipe) == 2
    assert shows(capsys.readouterr().err, "damaged-file", tmp_path / "run" / LEDGER)


def test_entries_of_one_model_have_budgets_of_their_own(tmp_path: Path) -> None:
    write_environments(tmp_path, copies=2)
    again = {**SAMPLE, "policy": "frugal", "as": "again"}
    with FakeOpenAi([text("look")]) as server:
        models = {"actor": actor(server, budget={"tokens": 1_000_000}), "frugal": actor(server, budget={"tokens": 1})}
        recipe = write_recipe(tmp_path, SAMPLE, again, models=models)
        assert agentmill("run", recipe) == 1
    assert len(server.requests) == 4 + 1, "the other entry had spent nothing when it first asked"
    with closing(sqlite3.connect(tmp_path / "run" / LEDGER)) as ledger:
        spent = dict(ledger.execute("SELECT model, tokens FROM spent").fetchall())
    assert sorted(spent) == ["actor", "frugal"]
    assert all(tokens > 1 for tokens in spent.values())


@pytest.mark.parametrize("runner", [{"name": "embedded"}, {"name": "multi_processing", "workers": 2}])
def test_a_provider_that_refuses_all_stops_the_stage_and_costs_no_episode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], runner: dict[str, Any]
) -> None:
    write_environments(tmp_path, copies=12)
    left = [9]

    def metered(body: dict[str, Any]) -> Reply:
        left[0] -= 1
        return text("look") if left[0] >= 0 else status(429, {"retry-after": "3600"}, "come back tomorrow")

    with FakeOpenAi(metered) as server:
        models = {"actor": actor(server, limits={"patience_s": 1})}
        recipe = write_recipe(tmp_path, SAMPLE, models=models, runner=runner)
        assert agentmill("run", recipe) == 1
        said = capsys.readouterr().err.splitlines()
        assert f"step explored stopped, {server.url} refuses for now (HTTP 429: " in said[-2]
        assert "come back tomorrow" in said[-2]
        kept = int(said[-2].rpartition("; the ")[2].split()[0])
        assert 9 - 2 * int(runner.get("workers", 1)) <= 2 * kept <= 9, "what had ended is kept"
        assert said[-1] == f"raise that limit, or wait, and go on with: agentmill run {recipe}"
        assert not (tmp_path / "run/explored/manifest.json").exists()
        left[0] = 1_000
        assert agentmill("run", recipe) == 0
    manifest = Table.open(tmp_path / "run/explored").manifest
    assert (manifest.counts.written, manifest.counts.dropped) == (12, 0)
    assert 1_000 - left[0] == 24 - 2 * kept, "what was kept is not lived again"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"budget": {"usd": 1}, "prices": None}, ("rule-broken", "`budget.usd` needs `prices`")),
        ({"budget": {"euro": 1}}, ("unknown-key", "'euro'")),
        (
            {"policy": "expert", "model": None, "endpoints": [], "budget": {"tokens": 1}},
            ("rule-broken", "'expert'", "`budget`"),
        ),
        ({"limits": {"request_per_minute": 1}}, ("unknown-key", "'requests_per_minute'")),
    ],
)
def test_mistakes_are_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fields: dict[str, Any], message: tuple[str, ...]
) -> None:
    write_environments(tmp_path)
    models = {"actor": {"policy": "openai", "model": MODEL, "endpoints": ["http://127.0.0.1:9/v1"], **fields}}
    assert agentmill("run", write_recipe(tmp_path, SAMPLE, models=models)) == 2
    assert shows(capsys.readouterr().err, *message)
