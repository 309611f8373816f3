"""Ids hash identity: the same for the same thing in every process, different for anything else."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from agentmill.schemas.ids import derive_seed, digest, generated_id, ingested_id, row_id
from tests.builders import outcome
from tests.schemas.records import json_objects


def test_digests_are_those_of_the_release() -> None:
    assert digest("a", 1, {"b": [None, True, 0.5], "é": "日"}) == "6d18484dbd04c185c09fd08015678fd4"
    assert derive_seed("a", 1) == 162499538
    assert (
        generated_id("task", "actor", "r1", "sample", {"temperature": 0.7}, 0, 1) == "c4f3fbfd8e27f904b12bdce437263f1b"
    )
    assert ingested_id("d", "train", "00" * 32) == "c374eae0268d8f6b4353608946e2174c"
    assert row_id("t", "sft", {"rows": "step"}, 3) == "287fcfae147a42359cb61bed715666d5"


def test_a_digest_is_sha256_of_sorted_compact_json() -> None:
    parts = ["a", 1, {"é": "日", "b": [None, True, 0.5]}]
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert digest(*parts) == hashlib.sha256(text.encode()).hexdigest()[:32]


def test_a_digest_does_not_depend_on_key_order_or_the_spelling_of_numbers() -> None:
    assert digest({"a": 1, "b": 2.0}) == digest({"b": 2, "a": 1.0})
    assert digest(1e16) == digest(10**16)
    assert digest(0.0) == digest(-0.0)


@pytest.mark.parametrize(
    "other", [("a", "b", "c"), ("ab", "c"), ("a", ["b"]), ("a", None), ("a", "b", None), ("a", True)]
)
def test_parts_are_kept_apart(other: tuple[Any, ...]) -> None:
    assert digest("a", "b") != digest(*other)


def test_true_and_text_are_no_numbers() -> None:
    assert len({digest(value) for value in (1, True, "1", [1], None, 0, False, "")}) == 8


def test_records_can_be_digested() -> None:
    assert digest(outcome("success")) == digest(outcome("success"))
    assert digest(outcome("success")) != digest(outcome("failure"))


@pytest.mark.parametrize("value", [math.nan, math.inf, "\ud800", {"a": object()}, {"a": math.nan}])
def test_what_json_cannot_say_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"JSON|surrogates"):
        digest(value)


@given(json_objects)
def test_any_json_has_a_digest(value: dict[str, Any]) -> None:
    assert digest(value) == digest(dict(reversed(value.items())))
    assert len(digest(value)) == 32


def test_every_part_of_a_generated_identity_matters() -> None:
    base: dict[str, Any] = {
        "task_id": "t",
        "policy": "p",
        "revision": None,
        "strategy": "s",
        "sampling": {"temperature": 1.0},
        "seed": 0,
        "attempt": 0,
        "parent_id": None,
        "branch_turn": None,
    }
    others: dict[str, Any] = {
        "task_id": "u",
        "policy": "q",
        "revision": "r",
        "strategy": "x",
        "sampling": {"temperature": 0.9},
        "seed": 1,
        "attempt": 1,
        "parent_id": "t0",
        "branch_turn": 0,
    }
    ids = {generated_id(**base)} | {generated_id(**{**base, name: value}) for name, value in others.items()}
    assert len(ids) == 10


def test_equal_raw_records_differ_by_occurrence() -> None:
    assert len({ingested_id("d", None, "s", 0), ingested_id("d", None, "s", 1), ingested_id("d", "train", "s", 0)}) == 3


def test_seeds_lie_in_31_bits_and_spread() -> None:
    seeds = [derive_seed("episode", index) for index in range(1000)]
    assert len(set(seeds)) == 1000
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert 0.45 < sum(seeds) / 1000 / 2**31 < 0.55


def test_another_process_agrees() -> None:
    code = "from agentmill.schemas.ids import digest; print(digest('a', {'k': [1.5, 'é']}, None))"
    root = Path(__file__).resolve().parents[2]
    for hash_seed in ("1", "2"):
        environment = {"PYTHONPATH": str(root), "PYTHONHASHSEED": hash_seed}
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert run.stdout.strip() == digest("a", {"k": [1.5, "é"]}, None)
