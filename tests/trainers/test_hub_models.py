"""A training from a model on the Hub begins with one commit and goes on with it, whatever becomes of the branch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agentmill.trainers import hub_models
from agentmill.trainers.command import DpoSettings, SftSettings
from agentmill.trainers.hub_models import main, revisions_file, revisions_of, with_pinned_models
from tests.errors import user_error
from tests.fake_hub import FakeHub, direct, model_files
from tests.model import tiny_adapter


class World(NamedTuple):
    hub: FakeHub
    folder: Path

    def settings(self, model: str, **more: Any) -> SftSettings:
        return SftSettings(rows="rows", model=model, output=str(self.folder / "tuned"), **more)


@pytest.fixture
def world(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    hub = FakeHub()
    hub.push("org/tiny", model_files(model))
    with hub.served() as address:
        direct(monkeypatch, address, tmp_path / "cache")
        for name, value in (("HF_ENDPOINT", address), ("HF_HUB_CACHE", str(tmp_path / "cache"))):
            monkeypatch.setenv(name, value)
        # As a training sets it, for itself alone.
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        monkeypatch.setattr(hub_models, "GIVEN_OFFLINE", None)
        yield World(hub, tmp_path)


def test_a_training_stays_at_the_commit_that_it_began_with(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    first = world.hub.branches["org/tiny"]["main"]
    settings = world.settings("org/tiny")
    assert with_pinned_models(settings).model == f"org/tiny@{first}"
    said = capfd.readouterr().err
    assert f"downloading org/tiny@{first} from the Hub: " in said
    assert f"model: org/tiny on the Hub, commit {first}" in said

    world.hub.push("org/tiny", {**world.hub.versions["org/tiny", first], "generation_config.json": b"{}"})
    world.hub.requests.clear()
    assert with_pinned_models(settings).model == f"org/tiny@{first}"
    assert not world.hub.requests
    second = world.hub.branches["org/tiny"]["main"]
    assert with_pinned_models(world.settings("org/tiny", resume=False)).model == f"org/tiny@{second}"
    assert revisions_of(world.folder / "tuned") == {"org/tiny": second}
    assert with_pinned_models(world.settings(f"org/tiny@{first}")).model == f"org/tiny@{first}"


def test_what_is_finished_has_its_commits_in_its_record(world: World) -> None:
    (world.folder / "tuned").mkdir()
    (world.folder / "tuned/training.json").write_text(json.dumps({"revisions": {"org/tiny": "0" * 40}}))
    assert revisions_of(world.folder / "tuned") == {"org/tiny": "0" * 40}
    revisions_file(world.folder / "other").write_text("{")
    with user_error("damaged-file", ".other.revisions.json"):
        revisions_of(world.folder / "other")


def test_references_and_the_models_of_adapters_are_fetched_too(world: World, model: Path) -> None:
    commit = world.hub.branches["org/tiny"]["main"]
    adapter = json.loads((tiny_adapter() / "adapter_config.json").read_bytes())
    named = json.dumps({**adapter, "base_model_name_or_path": "org/tiny"}).encode()
    lora = world.hub.push("org/lora", model_files(tiny_adapter()) | {"adapter_config.json": named})
    given = DpoSettings(rows="rows", model="org/lora", reference="org/tiny", output=str(world.folder / "tuned"))
    pinned = with_pinned_models(given)
    assert (pinned.model, pinned.reference) == (f"org/lora@{lora}", f"org/tiny@{commit}")
    assert revisions_of(world.folder / "tuned") == {"org/lora": lora, "org/tiny": commit}

    local = world.settings(str(model))
    assert with_pinned_models(local) is local


def test_the_model_that_is_named_for_an_adapter_is_fetched_and_not_its_own(world: World) -> None:
    commit = world.hub.branches["org/tiny"]["main"]
    adapter = Path(shutil.copytree(tiny_adapter(), world.folder / "adapter"))
    held = json.loads((adapter / "adapter_config.json").read_bytes())
    (adapter / "adapter_config.json").write_text(json.dumps({**held, "base_model_name_or_path": "org/gone"}))
    with user_error("hub-repo-missing", "org/gone"):
        with_pinned_models(world.settings(str(adapter)))
    pinned = with_pinned_models(world.settings(str(adapter), base="org/tiny"))
    assert (pinned.model, pinned.base) == (str(adapter), f"org/tiny@{commit}")
    assert revisions_of(world.folder / "tuned") == {"org/tiny": commit}


def test_mistakes_are_those_of_the_hub(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with user_error("hub-repo-missing", "there is no model org/none on the Hub", "no folder is called org/none"):
        with_pinned_models(world.settings("org/none"))
    # The user's own wish to stay offline counts in the process that downloads, too.
    monkeypatch.setattr(hub_models, "GIVEN_OFFLINE", "1")
    with user_error("hub-unreachable", "HF_HUB_OFFLINE is set", "hf download org/tiny", "models--org--tiny"):
        with_pinned_models(world.settings("org/tiny"))
    assert main(["runs/x/y"]) == 2
    assert "usage: " in capsys.readouterr().err


def test_a_trained_model_names_the_commit(world: World, config: Path) -> None:
    from agentmill.trainers.merge import main as merge_main
    from agentmill.trainers.sft import main as sft_main

    commit = world.hub.branches["org/tiny"]["main"]
    world.hub.push("org/lora", model_files(tiny_adapter()))
    assert sft_main(["--config", str(config), "model=org/tiny", "max_steps=1", "lora={rank: 4, merge: false}"]) == 0
    record = json.loads((world.folder / "tuned/training.json").read_bytes())
    assert (record["settings"]["model"], record["revisions"]) == (f"org/tiny@{commit}", {"org/tiny": commit})
    assert f"of `org/tiny@{commit}`, revision `" in (world.folder / "tuned/README.md").read_text()
    assert not list(world.folder.glob(".tuned*"))
    assert merge_main(["org/lora", "--base", "org/tiny", "--out", str(world.folder / "merged")]) == 0
    assert (world.folder / "merged/model.safetensors").is_file()
    # An adapter finds its model, and the same command has nothing to do, without the Hub.
    world.hub.requests.clear()
    assert sft_main(["--config", str(config), "model=org/tiny", "max_steps=1", "lora={rank: 4, merge: false}"]) == 0
    more = ["max_steps=1", f"model={world.folder / 'tuned'}", f"output={world.folder / 'more'}"]
    assert sft_main(["--config", str(config), *more]) == 0
    assert not list(world.folder.glob(".*.revisions*"))
    # TRL's count of its users is off in a training's own process.
    assert not [each for each in world.hub.requests if "telemetry" not in each]
    assert json.loads((world.folder / "more/training.json").read_bytes())["base_model"] == f"org/tiny@{commit}"


def test_an_adapter_of_ours_on_the_hub_is_merged_without_its_card(world: World, config: Path) -> None:
    """A download has the files of the model alone; the record of the training is one of them."""
    from agentmill.trainers.merge import main as merge_main
    from agentmill.trainers.sft import main as sft_main

    assert sft_main(["--config", str(config), "max_steps=1", "lora={rank: 4, merge: false}"]) == 0
    world.hub.push("org/ours", model_files(world.folder / "tuned"))
    assert merge_main(["org/ours", "--out", str(world.folder / "merged")]) == 0
    made = {path.name for path in (world.folder / "merged").iterdir()}
    assert {"model.safetensors", "training.json"} <= made
    assert "README.md" not in made
