"""Models on the Hub are downloaded once, at a commit, without pickles; what cannot be had is explained."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from huggingface_hub import constants

from agentmill.schemas.model_hub import (
    HubModel,
    cached_model,
    fetch_model,
    hub_model,
    missing_files,
    pin_model,
    pinned_model,
)
from tests.errors import user_error
from tests.fake_hub import FakeHub, direct

# How huggingface_hub 2.4 hands large files to httpx2.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

WEIGHTS = bytes(range(256)) * 4096
FILES = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": WEIGHTS, "chat_template.jinja": b"x"}
OTHERS = {"README.md": b"#", "pytorch_model.bin": b"pickle", "onnx/model.safetensors": b"x", "figure.png": b"x"}
TINY = HubModel("org/tiny")


class World(NamedTuple):
    hub: FakeHub
    home: Path
    printed: list[str]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    hub = FakeHub()
    hub.push("org/tiny", {**FILES, **OTHERS})
    with hub.served() as address:
        direct(monkeypatch, address, tmp_path / "cache")
        yield World(hub, tmp_path / "cache", [])


def offline(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_what_is_a_model_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert hub_model("Qwen/Qwen2.5-0.5B-Instruct") == HubModel("Qwen/Qwen2.5-0.5B-Instruct")
    assert hub_model("org/name@refs/pr/1") == HubModel("org/name", "refs/pr/1")
    for text in ("gpt2", "bundled:x", "./org/name", "/org/name", "~/name", "a/b/c", "org/name@", "org/", "hf://org/x"):
        assert hub_model(text) is None, text
    (tmp_path / "org/name").mkdir(parents=True)
    assert hub_model("org/name") is None
    assert hub_model("org/name@v1") == HubModel("org/name", "v1")
    assert pinned_model("a/b", {"a/b": "c0"}) == "a/b@c0"
    assert pinned_model("a/b@v1", {"a/b": "c0"}) == "a/b@v1"


def test_a_model_is_downloaded_once_and_then_used_offline(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = world.hub.branches["org/tiny"]["main"]
    size = sum(map(len, FILES.values()))
    assert missing_files(TINY) == {name: len(data) for name, data in FILES.items()}
    folder = fetch_model(TINY, world.printed.append)
    assert folder.name == commit
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*")) == sorted(FILES)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert world.printed == [
        f"downloading org/tiny@{commit} from the Hub: 4 files, {size / 1e6:,.1f} MB, into {world.home}"
    ]

    world.hub.requests.clear()
    pinned = HubModel("org/tiny", commit)
    assert fetch_model(pinned, world.printed.append) == cached_model(pinned) == folder
    assert not world.hub.requests
    offline(monkeypatch)
    assert fetch_model(pinned, world.printed.append) == folder
    assert fetch_model(TINY, world.printed.append) == folder
    assert world.printed[1:] == [
        f"the Hub cannot be asked for the newest org/tiny; taking the one in the cache, commit {commit}"
    ]


def test_a_branch_that_moves_is_a_new_commit_and_the_pinned_one_stays(world: World) -> None:
    first = pin_model(TINY, world.printed.append)
    assert first.is_pinned
    before = fetch_model(first, world.printed.append)
    world.hub.push("org/tiny", {**FILES, "config.json": b'{"a": 1}'})
    assert fetch_model(first, world.printed.append) == before
    after = fetch_model(TINY, world.printed.append)
    assert (before / "config.json").read_bytes() == b"{}"
    assert (after / "config.json").read_bytes() == b'{"a": 1}'


def test_a_tokenizer_needs_no_weights(world: World) -> None:
    folder = fetch_model(TINY, world.printed.append, weights=False)
    assert sorted(path.name for path in folder.iterdir()) == ["chat_template.jinja", "config.json", "tokenizer.json"]
    pinned = HubModel("org/tiny", folder.name)
    assert cached_model(pinned, weights=False) == folder
    assert cached_model(pinned) is None
    assert set(missing_files(pinned)) == {"model.safetensors"}


def test_a_download_that_breaks_off_is_continued(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100_000)
    world.hub.files_left = 0
    with user_error("hub-refuses", "org/tiny@", "run the same command again, it goes on"):
        fetch_model(TINY, world.printed.append)
    world.hub.files_left, world.hub.cut_after = None, 500_000
    world.hub.sent_bytes = 0
    folder = fetch_model(TINY, world.printed.append)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    # What came before the cut is not sent again.
    assert world.hub.cut_after is None
    assert world.hub.sent_bytes < len(WEIGHTS) - 500_000 + 10_000


@pytest.mark.parametrize(
    ("model", "code", "parts"),
    [
        ("org/none", "hub-repo-missing", ["no model org/none", "no folder is called org/none", "hf auth login"]),
        ("org/tiny@v9", "hub-revision-missing", ["org/tiny@v9", "branch, a tag or a commit"]),
        ("org/closed", "hub-gated", ["org/closed", "hf auth login", "hf download org/closed"]),
        ("org/pickled", "may-run-code", ["pytorch_model.bin", "org/pickled@refs/pr/NUMBER", "save_pretrained"]),
        ("org/empty", "model-incomplete", ["holds no weights"]),
        ("org/other", "model-incomplete", ["neither config.json nor adapter_config.json"]),
    ],
)
def test_what_cannot_be_had(
    model: str, code: str, parts: list[str], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    world.hub.push("org/closed", FILES)
    world.hub.gated.add("org/closed")
    world.hub.push("org/pickled", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    world.hub.push("org/empty", {"config.json": b"{}"})
    world.hub.push("org/other", {"model.safetensors": b"x"})
    named = hub_model(model)
    assert named is not None
    with user_error(code, *parts) as caught:
        fetch_model(named, world.printed.append)
    assert "hf_secret" not in "\n".join([str(caught.value), *world.printed])
    assert not list(world.home.rglob("*.bin"))


def test_without_a_network(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    advice = ["hf download org/tiny --revision v1", "models--org--tiny", str(world.home), "HF_HOME"]
    with monkeypatch.context() as patch:
        offline(patch)
        with user_error("hub-unreachable", "org/tiny@v1", "HF_HUB_OFFLINE", *advice):
            fetch_model(HubModel("org/tiny", "v1"), world.printed.append)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with user_error("hub-unreachable", "org/tiny@v1", *advice):
        fetch_model(HubModel("org/tiny", "v1"), world.printed.append)


def test_a_cache_without_all_shards_is_not_enough(world: World) -> None:
    index = json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}).encode()
    files = {
        "config.json": b"{}",
        "model.safetensors.index.json": index,
        "one.safetensors": b"1",
        "two.safetensors": b"2",
    }
    commit = world.hub.push("org/sharded", files)
    folder = fetch_model(HubModel("org/sharded"), world.printed.append)
    pinned = HubModel("org/sharded", commit)
    assert cached_model(pinned) == folder
    (folder / "two.safetensors").unlink()
    assert cached_model(pinned) is None
