"""What goes up of a tuned model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from huggingface_hub import constants

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.processes.identity import LOCK
from agentmill.pipelines.publish.checks import Check
from agentmill.pipelines.publish.model import ADAPTER, model
from agentmill.pipelines.publish.publication import Order
from agentmill.schemas.models import adapter_base, cache_folder, model_revision
from agentmill.schemas.records.manifest import write_manifest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.tables import Table
from tests.builders import run_of_source, trajectory
from tests.errors import user_error

MEASURED: JsonObject = {
    "n": 8,
    "episodes": 8,
    "ci95": [0.0, 1.0],
    "pass_at_k": {},
    "invalid_action_rate": 0.0,
    "loop_rate": 0.0,
    "truncation_rate": 0.0,
    "turns_per_success": 1.0,
    "completion_tokens_per_success": None,
}
CONFIG = {"base_model_name_or_path": "/home/jane/models/base", "peft_type": "LORA", "r": 8}


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """An adapter as a trainer leaves it: it names its base by where that lies."""
    folder = tmp_path / "tuned"
    folder.mkdir()
    (folder / ADAPTER).write_bytes(msgspec.json.encode(CONFIG))
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    (folder / "training.json").write_text('{"settings": {"model": "/home/jane/models/base"}}')
    (folder / "tokenizer.json").write_text('{"vocab": {"/usr/bin": 1}}')
    (folder / "README.md").write_text("---\nlibrary_name: peft\n---\n\n# tuned\n")
    return folder


def order(folder: Path, base_model: str | None) -> Order:
    return Order(path=folder, repo="org/tuned", licence="mit", base_model=base_model)


def test_an_adapter_is_published_with_the_name_of_its_base_on_the_hub(adapter: Path) -> None:
    found = model(order(adapter, "org/base"))
    published = found.files[ADAPTER].source
    assert isinstance(published, bytes)
    assert msgspec.json.decode(published) == {**CONFIG, "base_model_name_or_path": "org/base"}
    assert msgspec.json.decode((adapter / ADAPTER).read_bytes()) == CONFIG
    assert {each.name: each.items for each in found.checks}["local paths"] == ["local_path in training.json"]


@pytest.mark.parametrize(
    ("record", "base"),
    [
        ({"settings": {"model": "/home/jane/models/base"}}, "org/base"),
        ({"settings": {"model": "org/base@" + "0" * 40}}, "org/base@" + "0" * 40),
        ({"settings": {"model": "runs/x/first"}, "base_model": "/home/jane/models/base"}, "org/base"),
        ({"settings": {"model": "org/another@" + "0" * 40}}, "org/base"),
    ],
)
def test_who_downloads_an_adapter_finds_its_base_on_the_hub(adapter: Path, record: dict[str, Any], base: str) -> None:
    (adapter / "training.json").write_bytes(msgspec.json.encode({**record, "base_revision": "abc"}))
    found = model(order(adapter, "org/base"))
    downloaded = adapter.parent / "downloaded"
    downloaded.mkdir()
    for name in (ADAPTER, "training.json"):
        source = found.files[name].source
        assert isinstance(source, bytes)
        (downloaded / name).write_bytes(source)
    assert adapter_base(downloaded) == base
    held = msgspec.json.decode((downloaded / "training.json").read_bytes())
    assert held == {**record, "base_revision": "abc", "base_model": base}


def test_an_adapter_of_a_folder_here_is_of_no_use_elsewhere(adapter: Path) -> None:
    with user_error("base-model-unknown", "--base-model", "ORG/NAME"):
        model(order(adapter, None))


TOKEN = "ghp_" + "aB3d" * 9


def checked(folder: Path, **fields: Any) -> dict[str, Check]:
    return {each.name: each for each in model(msgspec.structs.replace(order(folder, "org/base"), **fields)).checks}


def test_only_what_a_model_consists_of_goes_up_and_the_rest_is_named(adapter: Path) -> None:
    for name in ("train.log", "run.py", "training_args.bin", "notes.txt", ".env"):
        (adapter / name).write_text(TOKEN)
    (adapter / "checkpoint-10").mkdir()
    (adapter / "LICENSE").write_text("terms")
    found = model(order(adapter, "org/base"))
    sent = {"README.md", "LICENSE", "training.json", "tokenizer.json", ADAPTER, "adapter_model.safetensors"}
    assert found.files.keys() == sent
    checks = {each.name: each for each in found.checks}
    assert checks["secrets"].level == "passed"
    assert checks["files"].items == ["checkpoint-10", "notes.txt", "run.py", "train.log", "training_args.bin"]
    card = found.files["README.md"].source
    assert isinstance(card, bytes)
    assert "not sent, for they are no part of a model: checkpoint-10; notes.txt" in card.decode().replace("\\", "")


def test_a_model_that_lacks_a_part_of_its_weights_is_refused(adapter: Path) -> None:
    (adapter / ADAPTER).unlink()
    (adapter / "config.json").write_text("{}")
    first, second = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    index = {"weight_map": {"a": first, "b": second, "c": first}}
    (adapter / "model.safetensors.index.json").write_bytes(msgspec.json.encode(index))
    (adapter / first).write_bytes(b"weights")
    with user_error("model-incomplete", second, "model.safetensors.index.json"):
        model(order(adapter, "org/base"))
    (adapter / second).write_bytes(b"weights")
    assert checked(adapter)["files"].level == "passed"
    (adapter / "model.safetensors.index.json").write_text("{")
    with user_error("damaged-file", "model.safetensors.index.json"):
        model(order(adapter, "org/base"))


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja", "LICENSE", "README.md", "training.json"])
def test_all_text_that_goes_up_is_looked_through(adapter: Path, name: str) -> None:
    held = (adapter / name).read_text() if (adapter / name).exists() else ""
    ends = {"tokenizer.json": f'{{"a": "x\\n{TOKEN}"}}', "training.json": f'{{"a": "x\\n{TOKEN}"}}'}
    (adapter / name).write_text(ends.get(name, f"{held}\n{TOKEN}\n"))
    check = checked(adapter)["secrets"]
    assert (check.level, check.items) == ("refused", [f"github_token in {name}"])


def test_the_description_is_looked_through_too(adapter: Path) -> None:
    assert checked(adapter, description=f"with {TOKEN}")["secrets"].items == ["github_token in README.md"]


@pytest.mark.parametrize("base", ["/home/jane/base", "base", "../org/base", "org/base/x"])
def test_a_base_is_one_on_the_hub(adapter: Path, base: str) -> None:
    with user_error("base-model-unknown", "--base-model", base):
        model(order(adapter, base))
    (adapter / ADAPTER).unlink()
    (adapter / "config.json").write_text("{}")
    (adapter / "README.md").write_text(f"---\nbase_model: {base}\n---\n")
    with user_error("base-model-unknown", "README.md", base):
        model(order(adapter, None))
    assert model(order(adapter, "org/base")).files


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (ADAPTER, b"{"),
        (ADAPTER, b"[]"),
        ("README.md", b"---\nbad: [\n---\n"),
        ("README.md", b"---\n- a\n---\n"),
        ("README.md", b"\xff\xfe"),
        ("training.json", b"{"),
    ],
)
def test_a_damaged_file_is_named(adapter: Path, name: str, content: bytes) -> None:
    (adapter / name).write_bytes(content)
    with user_error("damaged-file", name):
        model(order(adapter, "org/base"))


def trained(folder: Path, run: Path, licence: str | None, base: Path | str = "") -> None:
    """Let ``folder`` be trained in ``run``, on rows that were made of runs of a foreign data set."""
    source = seed_table(run / "found", [run_of_source("org/data", licence)])
    rows = seed_table(run / "rows", [trajectory("a")])
    write_manifest(rows.folder, msgspec.structs.replace(rows.manifest, inputs={"of": source.digest}))
    (run / "recipe.yaml").write_text("name: small\n")
    (run / LOCK).touch()
    record = {"rows_digest": Table.open(rows.folder).digest, "settings": {"rows": str(rows.folder), "model": str(base)}}
    (folder / "training.json").write_bytes(msgspec.json.encode(record))


def test_licences_of_the_rows_are_held_against_that_of_the_model(adapter: Path, tmp_path: Path) -> None:
    trained(adapter, tmp_path, "CC-BY-NC-4.0")
    assert checked(adapter)["licences"].level == "refused"
    assert "org/data is under CC-BY-NC-4.0: non-commercial" in checked(adapter)["licences"].detail
    assert checked(adapter, licence="cc-by-nc-4.0")["licences"].level == "passed"
    trained(adapter, tmp_path, None)
    assert "say which it is with --source-licence org/data=LICENCE" in checked(adapter)["licences"].detail
    assert checked(adapter, source_licences={"org/data": "mit"})["licences"].level == "passed"
    assert checked(adapter, licence=None, source_licences={"org/data": "mit"})["licences"].detail.startswith("mit;")


def test_rows_of_a_model_outside_of_the_run_and_of_its_tuned_base_count(adapter: Path, tmp_path: Path) -> None:
    base = tmp_path / "elsewhere/first"
    base.mkdir(parents=True)
    trained(base, tmp_path / "one", "CC-BY-NC-4.0")
    trained(adapter, tmp_path / "two", "MIT", base)
    check = checked(adapter)["licences"]
    assert check.level == "refused"
    assert "non-commercial, which mit does not keep" in check.detail


def evaluated(folder: Path, run: Path, operator: str, revisions: dict[str, str | None]) -> None:
    """Let ``folder`` be trained in ``run``, and models with those revisions succeed in half as many tasks, each."""
    measures: dict[str, JsonObject] = {}
    for number, (label, revision) in enumerate(revisions.items(), 1):
        played = seed_table(run / "compared/unseen" / label / "trajectories", [trajectory("a")])
        config = {"models": {"actor": {"policy": "vllm", "revision": revision}}}
        write_manifest(played.folder, msgspec.structs.replace(played.manifest, config=config))
        measures[label] = MEASURED | {"success": 0.5**number}
    labels = list(revisions)
    difference = {"value": 0.1, "ci95": [0.0, 0.2], "p_value": 1.0, "n": 8, "better": 1, "worse": 1}
    measures["paired_difference"] = {**difference, "model": labels[-1], "reference": labels[0]}
    counts = {"read": 1, "used": 1, "dropped": 0, "written": 1, "seconds": 1.0, "where": "x"}
    stages = {folder.name: {**counts, "operator": operator}, "compared": {**counts, "operator": "evaluate"}}
    summary = {"name": "small", "seed": 0, "run_dir": str(run), "stages": stages, "evaluation": {"unseen": measures}}
    (run / "recipe.yaml").write_text("name: small\n")
    (run / LOCK).touch()
    (run / "summary.json").write_bytes(msgspec.json.encode(summary))


def test_a_base_that_is_not_here_is_noted(adapter: Path, tmp_path: Path) -> None:
    base = tmp_path / "runs/first/tuned"
    base.mkdir(parents=True)
    trained(base, tmp_path / "one", "MIT")
    trained(adapter, tmp_path / "two", "MIT", base)
    assert checked(adapter)["licences"].level == "passed"
    base.rename(tmp_path / "moved")
    check = checked(adapter)["licences"]
    assert check.level == "note"
    assert check.detail.startswith("not checked: the model that it started from is not here, nor what that was")


def test_a_base_is_found_where_the_training_was_started(adapter: Path, tmp_path: Path) -> None:
    base = tmp_path / "runs/first/tuned"
    base.mkdir(parents=True)
    trained(base, tmp_path / "one", "CC-BY-NC-4.0")
    trained(adapter, tmp_path / "two", "MIT", "runs/first/tuned")
    assert "non-commercial" in checked(adapter)["licences"].detail


@pytest.mark.parametrize("base", ["bundled:smollm2-135m-instruct", cache_folder() / "none"])
def test_a_base_that_nobody_here_trained_needs_no_note(adapter: Path, tmp_path: Path, base: Path | str) -> None:
    trained(adapter, tmp_path, "MIT", base)
    assert checked(adapter)["licences"].level == "passed"


def test_a_base_of_the_hub_is_looked_at_in_the_cache(
    adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0" * 40
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    trained(adapter, tmp_path / "unknown", "MIT", f"org/base@{commit}")
    assert checked(adapter)["licences"].level == "note"
    base = tmp_path / "cache/models--org--base/snapshots" / commit
    base.mkdir(parents=True)
    assert checked(adapter)["licences"].level == "passed"
    trained(base, tmp_path / "one", "CC-BY-NC-4.0")
    trained(adapter, tmp_path / "two", "MIT", f"org/base@{commit}")
    assert "non-commercial" in checked(adapter)["licences"].detail


def card_of(folder: Path) -> str:
    content = model(order(folder, "org/base")).files["README.md"].source
    assert isinstance(content, bytes)
    return content.decode()


def results_of(folder: Path) -> list[Any]:
    """The results in the metadata of the card, without their index."""
    index = yaml.safe_load(card_of(folder).split("---\n")[1]).get("model-index", [])
    return [(each["dataset"]["split"], each["metrics"][0]["value"]) for one in index for each in one["results"]]


@pytest.mark.parametrize(
    ("labels", "success"),
    [
        ({"base": "0" * 16, "tuned": "own"}, 0.25),
        ({"tuned": "own", "base": "0" * 16}, 0.5),
        ({"base": "0" * 16, "tuned_constrained": "own", "tuned": "own", "another": "1" * 16}, 0.125),
        ({"base": "0" * 16, "another": "1" * 16}, None),
        ({"base": "0" * 16, "tuned": None}, None),
    ],
)
def test_results_are_those_of_the_published_model(
    adapter: Path, tmp_path: Path, labels: dict[str, str | None], success: float | None
) -> None:
    own = f"{'0' * 16}+{model_revision(adapter)}"
    evaluated(adapter, tmp_path, "train_sft", {label: own if each == "own" else each for label, each in labels.items()})
    assert results_of(adapter) == ([] if success is None else [("unseen", success)])
    assert "## Evaluation" in card_of(adapter)


def test_a_reward_model_has_no_results_of_who_acted(adapter: Path, tmp_path: Path) -> None:
    evaluated(adapter, tmp_path, "train_reward", {"alone": "0" * 16, "with_search": "1" * 16})
    assert results_of(adapter) == []
    assert "## Evaluation" not in card_of(adapter)


def test_what_was_not_checked_is_said_in_the_card(adapter: Path) -> None:
    checks = checked(adapter)
    assert (checks["licences"].level, checks["licence of the base"].level) == ("note", "note")
    card = model(order(adapter, "org/base")).files["README.md"].source
    assert isinstance(card, bytes)
    assert "| licences | note | not checked: the rows of 1 training(s) that made it are not here" in card.decode()
    assert "| licence of the base | note | not checked: what the licence of the base model asks for |" in card.decode()
