"""What a training sees of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentmill.schemas.config import validate
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import CODE_FILE, UserError
from agentmill.trainers.command import SftSettings, exit_code_of, use_one_gpu
from tests.errors import user_error


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({}, "0"),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, "2"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8a6c"}, "GPU-8a6c"),
        ({"CUDA_VISIBLE_DEVICES": ""}, ""),  # by which all are hidden
        ({"CUDA_VISIBLE_DEVICES": "2,3", "WORLD_SIZE": "2"}, "2,3"),
        ({"WORLD_SIZE": "2"}, None),
    ],
)
def test_one_process_takes_one_gpu(given: dict[str, str], seen: str | None) -> None:
    environment = dict(given)
    use_one_gpu(environment)
    assert environment.get("CUDA_VISIBLE_DEVICES") == seen


def test_an_output_has_a_name() -> None:
    with user_error("rule-broken", "output"):
        validate(SftSettings, {"rows": "r", "model": "m", "output": "/"}, "test")


def test_a_mistake_leaves_its_code_behind_those_of_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that emptied the file and was ended then would leave none."""
    codes = tmp_path / "codes"
    codes.write_text("unknown-name\n")
    monkeypatch.setenv(CODE_FILE, str(codes))

    def work() -> None:
        raise UserError("wrong", ErrorCode.NOT_A_FOLDER)

    assert exit_code_of(work, "interrupted") == 2
    assert codes.read_text().split() == ["unknown-name", "not-a-folder"]
