"""A real vLLM server with a tiny random model, started by us in a process that is killed at the end."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tokenizers import Tokenizer

from agentmill.pipelines.processes.identity import end_session, pid_of, session_members
from agentmill.pipelines.serving.endpoints import Endpoint, is_free, is_healthy
from agentmill.pipelines.serving.model_folders import model_folder
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.server_config import ServerConfig
from agentmill.pipelines.serving.server_process import ServerRecords, reap_strays
from agentmill.schemas.models import model_revision
from agentmill.schemas.records.trajectory import ApiAction, MessageAction, Trajectory
from agentmill.schemas.views.annotations import NOTHING
from agentmill.schemas.views.sft import Sft
from agentmill.synthesis.policies import make_policy
from agentmill.synthesis.policies.completion import token_sequence
from agentmill.synthesis.policies.policy import Policy
from agentmill.synthesis.rollouts.strategy import Exploration
from agentmill.synthesis.strategies.sample import Sample
from agentmill.synthesis.verifiers.check_outcome import CheckOutcome
from tests.counter_environment import SPEC, CounterEnvironment, counting_task
from tests.model import tiny_adapter, tiny_model

pytestmark = pytest.mark.model

ROOT = Path(__file__).parents[3]
CONTEXT = 384
LAUNCHER = """
import sys, time
from pathlib import Path
import msgspec
from agentmill.pipelines.serving.servers import serve
from agentmill.pipelines.serving.models import ModelConfig
with serve(ModelConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2])) as endpoints:
    print(msgspec.json.encode(endpoints).decode(), flush=True)
    time.sleep(3600)
"""


class Served(msgspec.Struct):
    """A server, who launched it, and where."""

    config: ModelConfig
    endpoints: list[Endpoint]
    launcher: subprocess.Popen[str]
    run_dir: Path
    leader: int


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    run_dir = tmp_path_factory.mktemp("run")
    config = ModelConfig(
        policy="vllm",
        model=str(tiny_model()),
        server=ServerConfig(max_model_len=CONTEXT, max_num_seqs=8, lora={"odd": str(tiny_adapter())}),
    )
    command = [sys.executable, "-c", LAUNCHER, config.model_dump_json(), str(run_dir)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as launcher:
        try:
            assert launcher.stdout is not None
            endpoints = msgspec.json.decode(launcher.stdout.readline(), type=list[Endpoint])
            [record] = ServerRecords(run_dir).read()
            leader = pid_of(record.leader)
            yield Served(config=config, endpoints=endpoints, launcher=launcher, run_dir=run_dir, leader=leader)
        finally:
            launcher.kill()
    end_session(leader, 10)


async def lived(served: Served, sampling: dict[str, object], seed: int = 0, **parameters: object) -> Trajectory:
    revision = model_revision(model_folder(str(tiny_model())))
    return await episode(make_policy(served.config.settings(served.endpoints, revision, sampling)), seed, **parameters)


async def episode(policy: Policy, seed: int = 0, **parameters: object) -> Trajectory:
    explored = Exploration(
        task=counting_task(20), spec=SPEC, make_environment=CounterEnvironment, policies={"actor": policy}, seed=seed
    )
    strategy = Sample(**parameters)
    [piece] = strategy.planned(explored)
    [trajectory] = [one async for one in strategy.explore(explored, piece)]
    await policy.close()
    return trajectory


async def test_sampled_tokens_and_log_probabilities_are_stored_as_deltas(served: Served) -> None:
    trajectory = await lived(served, {"max_tokens": 8, "temperature": 1.0}, max_turns=3, max_invalid=None)
    turns = [item for item in trajectory.content if isinstance(item, MessageAction)]
    assert len(turns) == 3
    for turn in turns:
        assert turn.tokens is not None
        assert 1 <= len(turn.tokens.sampled_ids) <= 8
        assert len(turn.tokens.logprobs) == len(turn.tokens.sampled_ids)
        assert all(-math.inf < logprob <= 0 for logprob in turn.tokens.logprobs)
    assert turns[0].tokens is not None
    assert turns[0].tokens.segment_start
    usage = trajectory.usage
    assert usage.completion_tokens == sum(len(turn.tokens.sampled_ids) for turn in turns if turn.tokens)
    assert usage.prompt_tokens is not None
    assert usage.cached_tokens is not None
    assert trajectory.generation is not None
    assert trajectory.generation.model == tiny_model().name
    assert trajectory.generation.sampling["max_tokens"] == 8
    assert (await CheckOutcome().verify(counting_task(20), trajectory, CounterEnvironment())).passed is False


async def test_constrained_turns_are_admissible_and_one_token_sequence(served: Served) -> None:
    trajectory = await lived(served, {"max_tokens": 16}, max_turns=6, constrain="admissible")
    commands = [item.content for item in trajectory.content if isinstance(item, MessageAction)]
    assert len(commands) == 6
    assert set(commands) <= {"add 1", "add 2"}
    assert not any(item.error for item in trajectory.content)
    verdict = await CheckOutcome().verify(counting_task(20), trajectory, CounterEnvironment())
    assert verdict.status == "scored"
    assert verdict.evidence["number"] == sum(int(command[-1]) for command in commands)


async def test_turns_extend_the_sequence_where_the_text_maps_back_to_the_tokens(served: Served) -> None:
    token = Tokenizer.from_file(str(tiny_model() / "tokenizer.json")).token_to_id("add")
    settings = served.config.settings(served.endpoints)
    only_add = msgspec.structs.replace(settings, sampling={"max_tokens": 1, "allowed_token_ids": [token]})
    trajectory = await episode(make_policy(only_add), max_turns=4, max_invalid=None)
    turns = [item for item in trajectory.content if isinstance(item, MessageAction)]
    assert [turn.content for turn in turns] == ["add"] * 4
    assert [turn.tokens.segment_start for turn in turns if turn.tokens] == [True, False, False, False]
    assert [turn.tokens.sampled_ids for turn in turns if turn.tokens] == [[token]] * 4
    assert trajectory.usage.prompt_tokens is not None
    assert len(token_sequence(trajectory.content)) < trajectory.usage.prompt_tokens


async def test_an_adapter_acts_under_its_own_name(served: Served) -> None:
    sampling = {"max_tokens": 8, "temperature": 0.0}
    config = ModelConfig.model_validate({**served.config.model_dump(), "adapter": "odd"})
    endpoints = [msgspec.structs.replace(endpoint, model="odd") for endpoint in served.endpoints]
    base = await episode(make_policy(served.config.settings(served.endpoints, None, sampling)), max_turns=1)
    odd = await episode(make_policy(config.settings(endpoints, None, sampling)), max_turns=1)
    assert base.content[2] != odd.content[2]
    assert odd.generation is not None
    assert odd.generation.model == f"{tiny_model().name}+odd"


async def test_the_seed_decides_and_nothing_else(served: Served) -> None:
    sampling = {"max_tokens": 8, "temperature": 1.0}
    one, same, other = [(await lived(served, sampling, seed, max_turns=2)).content for seed in (1, 1, 2)]
    assert one == same
    assert one[2] != other[2]


async def test_required_tool_calls_are_calls(served: Served) -> None:
    sampling = {"max_tokens": 160, "temperature": 0.3, "tool_choice": "required", "parallel_tool_calls": False}
    trajectory = await lived(served, sampling, scaffold="tools", max_turns=1)
    [call] = [item for item in trajectory.content if isinstance(item, ApiAction)]
    assert call.function == "add"
    assert call.raw_arguments is None
    assert call.kwargs["amount"] in (1, 2)
    assert call.tool_call_id == "call00100"
    assert call.tokens is not None
    answer = trajectory.content[-1]
    assert (answer.tool_call_id, answer.error) == ("call00100", False)


async def test_calls_written_as_text_are_calls_and_rows_show_the_prompts(served: Served) -> None:
    call = r'<tool_call>\n\{"name": "add", "arguments": \{"amount":1\}\}\n</tool_call>'
    config = served.config.model_copy(update={"extra_body": {"structured_outputs": {"regex": call}}})
    policy = make_policy(config.settings(served.endpoints, None, {"max_tokens": 160}))
    trajectory = await episode(policy, scaffold="tools_hermes", max_turns=2)
    calls = [item for item in trajectory.content if isinstance(item, ApiAction)]
    assert [(each.function, each.kwargs) for each in calls] == [("add", {"amount": 1})] * 2
    (row,) = Sft(tool_format="hermes").make_rows(trajectory, NOTHING)
    tokenizer = Tokenizer.from_file(str(tiny_model() / "tokenizer.json"))
    # Constrained, a model samples other tokens than its tokenizer has for the same text, so only texts can be compared.
    first = tokenizer.decode(row.tokens[0].input_ids[: row.tokens[0].turns[0].end], False)
    last = tokenizer.decode(row.tokens[-1].input_ids, False)
    assert last.startswith(first)
    assert "Tools:" not in first.split("You can use these tools")[0]
    assert last.count("<tool_response>") == 1
    assert sum(len(segment.turns) for segment in row.tokens) == 2


async def test_a_full_context_truncates_the_episode(served: Served) -> None:
    trajectory = await lived(served, {"max_tokens": 64, "stop": ["\n\n\n\n"]}, max_turns=30, max_invalid=None)
    assert (trajectory.outcome.truncated, trajectory.outcome.reason) == (True, "context_overflow")
    assert len(trajectory.content) > 2


def test_a_killed_launcher_takes_all_of_vllm_along(served: Served) -> None:
    assert len(session_members(served.leader)) >= 4
    port = int(served.endpoints[0].base_url.split(":")[2].removesuffix("/v1"))
    served.launcher.send_signal(signal.SIGKILL)
    served.launcher.wait()
    deadline = time.monotonic() + 30
    while session_members(served.leader) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert session_members(served.leader) == []
    assert not is_healthy(served.endpoints[0].base_url)
    assert is_free(port)
    assert reap_strays(served.run_dir) == []
    assert ServerRecords(served.run_dir).read() == []
