"""Episodes that a provider dropped for a while are played again by the same command; a step may have to use a share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentmill.schemas.tables import Counts, Table
from tests.errors import shows
from tests.fake_openai import MODEL, FakeOpenAi, Reply, raw, status, text
from tests.pipelines.cli.tables import DEMONSTRATE, agentmill, write_environments, write_recipe

EPISODES = 20


class Provider:
    """Answers some requests, and for a while says nothing that can be used for the others."""

    def __init__(self, share: int, reply: Reply) -> None:
        self.asked = 0
        self.down = True
        self._share, self._reply = share, reply
        self._bad: set[str] = set()

    def __call__(self, body: dict[str, Any]) -> Reply:
        self.asked += 1
        bad = self.down and body["seed"] % 100 < self._share
        return self._reply if bad else text("look")


def recipe(folder: Path, server: FakeOpenAi, **step: Any) -> Path:
    actor = {"policy": "vllm", "model": MODEL, "endpoints": [server.url], "max_retries": 0, "patience_s": 0}
    sample = {**DEMONSTRATE, "operator": "sample", "policy": "actor", "k": EPISODES, "max_turns": 1, **step}
    return write_recipe(folder, sample, models={"actor": actor})


@pytest.mark.parametrize(
    ("reply", "reason"), [(raw(b"<html>busy</html>"), "malformed"), (status(500), "server_error")], ids=["junk", "500"]
)
def test_episodes_of_a_provider_that_was_down_are_played_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reply: Reply, reason: str
) -> None:
    write_environments(tmp_path)
    provider = Provider(50, reply)
    with FakeOpenAi(provider) as server:
        path = recipe(tmp_path, server)
        assert agentmill("run", path) == 1
        printed = capsys.readouterr().err
        assert "inputs were dropped for what may pass (" in printed
        assert f"{reason} " in printed
        assert f"and go on with: agentmill run {path}" in printed
        assert not (tmp_path / "run/demonstrations/manifest.json").exists()
        provider.down, before = False, provider.asked
        assert agentmill("run", path) == 0
        again = provider.asked - before
        printed = capsys.readouterr().err
    table = Table.open(tmp_path / "run/demonstrations")
    read = table.manifest.counts.read
    assert table.manifest.counts == Counts(read=read, used=read, dropped=0, written=read)
    assert 0 < again < read, "what was used is not asked for again"
    assert f"{read} inputs, {read - again} done before" in printed


def test_a_few_such_episodes_are_dead_letters_and_flags_say_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_environments(tmp_path, copies=10)
    provider = Provider(3, raw(b"junk"))
    with FakeOpenAi(provider) as server:
        path = recipe(tmp_path, server)
        assert agentmill("run", path, "--retry-dropped") == 1
        assert "were dropped for what may pass" in capsys.readouterr().err
        assert agentmill("run", path) == 0
        counts = Table.open(tmp_path / "run/demonstrations").manifest.counts
        assert 0 < counts.dropped <= 0.05 * counts.read


def test_what_was_dropped_may_be_left_behind(tmp_path: Path) -> None:
    write_environments(tmp_path)
    with FakeOpenAi(Provider(50, raw(b"junk"))) as server:
        path = recipe(tmp_path, server)
        assert agentmill("run", path, "--no-retry-dropped") == 0
        counts = Table.open(tmp_path / "run/demonstrations").manifest.counts
        assert counts.dropped > 0.05 * counts.read


def test_a_step_that_uses_less_than_it_has_to_ends_with_its_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_environments(tmp_path)
    with FakeOpenAi(Provider(50, raw(b"junk"))) as server:
        path = recipe(tmp_path, server, min_used=0.9)
        assert agentmill("run", path, "--no-retry-dropped") == 1
        printed = capsys.readouterr().err
        assert "less than min_used 0.9, of its" in printed
        assert "(malformed " in printed
        assert agentmill("run", recipe(tmp_path, server, min_used=0.1), "--no-retry-dropped") == 0
        asked, path = len(server.requests), recipe(tmp_path, server, min_used=0.9)
        assert agentmill("run", path, "--no-retry-dropped") == 1
        assert len(server.requests) == asked, "the same command asks nothing again"
        assert agentmill("run", path, "--no-retry-dropped", "--replace") in (0, 1)
        assert len(server.requests) > asked, "as the message says, the table is made anew"


@pytest.mark.parametrize("share", [-0.1, 1.5, "half", True])
def test_a_share_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], share: Any) -> None:
    write_environments(tmp_path)
    assert agentmill("run", write_recipe(tmp_path, {**DEMONSTRATE, "min_used": share}), "--dry-run") == 2
    assert shows(capsys.readouterr().err, "number-out-of-range", "min_used", repr(share))
