"""What the model continues at each validation."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from datasets import Dataset

from agentmill.schemas.config import validate
from agentmill.schemas.monitoring import SampleConfig
from agentmill.trainers.command import RewardSettings
from agentmill.trainers.data import RowCounts, TrainingRows
from agentmill.trainers.samples import Prompt, Sample, SampleGenerations, validation_prompts
from tests.errors import user_error


def examples(**columns: list[Any]) -> TrainingRows:
    return TrainingRows(Dataset.from_dict(columns), RowCounts())


def test_a_prompt_ends_before_the_first_token_with_loss() -> None:
    found = validation_prompts(
        examples(
            row_ids=[["a"], ["a"], ["b"], ["c"], ["d"]],
            input_ids=[[1, 2, 3], [1, 2, 3, 4], [5, 6], [7, 8], [9, 9]],
            mask=[[False, True, True], [False, False, False, True], [True, True], [False, True], [False, True]],
        ),
        2,
    )
    # A row has one prompt though it may be several sequences; one that begins with loss has none.
    assert found == [Prompt("a", [1]), Prompt("c", [7])]
    # A model that has no more positions could not go on from a longer prompt.
    long = examples(row_ids=[["a"], ["b"]], input_ids=[[1, 2, 3], [5, 6]], mask=[[False, False, True], [False, True]])
    assert validation_prompts(long, 2, longest=1) == [Prompt("b", [5])]
    of_pairs = examples(row_ids=[["p"]], chosen_ids=[[1, 2]], chosen_mask=[[False, True]], rejected_ids=[[1, 3]])
    assert validation_prompts(of_pairs, 4) == [Prompt("p", [1])]


class Speaker:
    """A model that says 7 and ends after ``length`` tokens."""

    device = torch.device("cpu")

    def __init__(self, length: int) -> None:
        self._length = length

    def generate(self, input_ids: torch.Tensor, max_new_tokens: int, do_sample: bool, **_: Any) -> torch.Tensor:
        assert not do_sample
        return torch.cat([input_ids, torch.full((1, min(self._length, max_new_tokens)), 7)], 1)


class Words:
    pad_token_id = None
    eos_token_id = 2

    @staticmethod
    def decode(ids: list[int], **_: Any) -> str:
        return " ".join(map(str, ids))


def state(step: int, first: bool = True) -> Any:
    return SimpleNamespace(global_step=step, is_world_process_zero=first)


def lines(path: Path) -> list[Sample]:
    return [msgspec.json.decode(line, type=Sample) for line in path.read_bytes().splitlines()]


def test_continuations_are_written_by_step_and_made_again_after_a_stop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tuned.samples.jsonl"
    prompts = [Prompt("a", [1, 1]), Prompt("b", [3])]
    sampling = SampleGenerations(SampleConfig(n=2, max_tokens=3), prompts, Words, path)
    sampling.on_train_begin(None, state(0), None)
    sampling.on_evaluate(None, state(5), None, model=Speaker(2))
    sampling.on_evaluate(None, state(10), None, model=Speaker(9))
    sampling.on_evaluate(None, state(15, first=False), None, model=Speaker(1))
    assert lines(path) == [
        Sample(5, "a", "1 1", "7 7", True),
        Sample(5, "b", "3", "7 7", True),
        Sample(10, "a", "1 1", "7 7 7", False),
        Sample(10, "b", "3", "7 7 7", False),
    ]
    assert "sample at step 5, row b: '7 7'" in capsys.readouterr().err
    with path.open("ab") as file:
        file.write(b'{"step": 15, "row')
    sampling.on_train_begin(None, state(5), None)
    assert [sample.step for sample in lines(path)] == [5, 5]
    sampling.on_train_begin(None, state(0), None)
    assert lines(path) == []
    path.write_text("my notes\n")
    with user_error("output-not-ours", str(path)):
        sampling.on_train_begin(None, state(0), None)
    assert path.read_text() == "my notes\n"


def test_a_reward_model_says_nothing() -> None:
    given = {"rows": "r", "model": "m", "output": "o", "validation": {"share": 0.1, "samples": {}}}
    with user_error("rule-broken", "continues none"):
        validate(RewardSettings, given, "test")
