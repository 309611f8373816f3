"""What the steps of a plan need from this machine and from others, looked at before the first of them starts.

A step that is finished needs nothing, and what another step of the plan makes is not looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from agentmill.pipelines.doctor import sandbox
from agentmill.pipelines.engine.provenance import check_ours
from agentmill.pipelines.operators.evaluate import Evaluate
from agentmill.pipelines.operators.task_step import TaskStep
from agentmill.pipelines.operators.train import Training
from agentmill.pipelines.recipes.estimate import estimate
from agentmill.pipelines.recipes.hub_models import check_on_hub, hub_models, made_by
from agentmill.pipelines.recipes.plan import Plan, families_of
from agentmill.pipelines.recipes.step import Step
from agentmill.pipelines.serving.chat_template import check_template
from agentmill.pipelines.serving.endpoints import Endpoint, check_endpoint
from agentmill.pipelines.serving.model_folders import BUNDLED, check_base_of, check_model, model_path
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.servers import server_key
from agentmill.pipelines.serving.vllm_command import server_gpus
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.extras import require
from agentmill.schemas.lora import PEFT_NAMES, check_lora_agrees
from agentmill.schemas.model_hub import cached_model, hub_model
from agentmill.schemas.models import (
    ADAPTER_CONFIG,
    TOKENIZER_FILE,
    cache_folder,
    chat_template,
    check_adapter_files,
    model_revision,
    read_json,
)
from agentmill.schemas.templates.folder_tokenizer import tokenizer_folder
from agentmill.schemas.training import TRAINING_TEMPLATE, template_text
from agentmill.synthesis.environments import extra_of, is_sandboxed
from agentmill.synthesis.policies.policy import api_key, header_values

ASKED_AT_ONCE = 8


class Need(msgspec.Struct, frozen=True):
    """Something that a step needs; equal needs of several steps have one ``key``.

    ``check`` raises ``UserError`` if it is not there. Where that depends: on the ``recipe`` and its files, on this
    ``machine`` and what is installed, or on what others answer over the ``network``.
    """

    key: tuple[str, ...]
    depends: Literal["recipe", "machine", "network"]
    check: Callable[[], None]


class Preflight(msgspec.Struct, frozen=True):
    """What a dry run found: what this machine lacks, and what was not looked at."""

    missing: list[str]
    unchecked: list[str]


def check_run(plan: Plan, before: Mapping[str, Step] | None = None) -> None:
    """Look at all that the unfinished steps of ``plan`` need, and whether all of its steps have something to work on.

    ``before`` are the steps of the run so far where tables that differ give way (``--replace``): a step that is no
    longer the same is unfinished. Raises one ``UserError`` for all that is missing, each with the name of its step.
    """
    estimate(plan, enough=True)
    raise_all(missing_of(needed(plan, unfinished(plan, before))))


def check_dry(plan: Plan) -> Preflight:
    """The same without asking anybody over the network, and for a machine that another one may stand in for.

    Raises ``UserError`` for mistakes of the recipe alone.
    """
    estimate(plan, enough=True)
    needs = needed(plan, unfinished(plan))
    raise_all(missing_of({key: each for key, each in needs.items() if each[1].depends == "recipe"}))
    machine = {key: each for key, each in needs.items() if each[1].depends == "machine"}
    asked = [f"{step}: {' '.join(need.key)}" for step, need in needs.values() if need.depends == "network"]
    return Preflight(missing=[str(each) for each in missing_of(machine)], unchecked=asked)


def unfinished(plan: Plan, before: Mapping[str, Step] | None = None) -> list[Step]:
    """The steps that have to be run; ``before`` as for ``check_run``."""
    anew: set[Path] = set()
    steps = []
    for step in (step for step in plan.steps if step.name not in plan.left_out):
        done = (step.folder / step.parameters.result).exists()
        if done and before is not None:
            done = same(step, before.get(step.name)) and anew.isdisjoint(sources(step))
        if not done:
            anew.add(step.folder)
            steps.append(step)
    return steps


def same(step: Step, other: Step | None) -> bool:
    """Whether two steps make the same from the same."""
    fields = ("parameters", "context", "inputs", "models")
    return other is not None and all(getattr(step, name) == getattr(other, name) for name in fields)


def sources(step: Step) -> Iterator[Path]:
    """The folders of the tables and of the models that a step reads."""
    yield from (output.folder for outputs in step.inputs.values() for output in outputs)
    yield from (Path(model.model) for model in step.models.values() if model.managed and model.model is not None)


def needed(plan: Plan, steps: Sequence[Step]) -> dict[tuple[str, ...], tuple[str, Need]]:
    """The needs of ``steps`` by key, each with what the first step that has it is called."""
    trained = made_by(plan)
    found: dict[tuple[str, ...], tuple[str, Need]] = {}
    for step in steps:
        for need in needs_of(step, trained):
            found.setdefault(need.key, (step.where, need))
    return found


def needs_of(step: Step, trained: Mapping[str, Step]) -> Iterator[Need]:
    """What a step needs; the models in ``trained`` are made by other steps."""
    parameters = step.parameters
    # What a task step writes is no single table, so ``check_ours`` would refuse it.
    if not isinstance(parameters, TaskStep):
        yield Need(("folder", str(step.folder)), "recipe", partial(check_ours, step.folder))
    if isinstance(parameters, Training):
        yield from needs_of_training(step.name, parameters, step.models["model"], trained)
    yield from needs_of_hub(step, trained)
    for field in parameters.tokenizers:
        folder = getattr(parameters, field)
        if folder is not None and folder not in trained and not awaits_download(folder, weights=False):
            yield Need(("tokenizer", folder), "recipe", partial(check_tokenizer, field, folder))
    for model in step.models.values():
        yield from needs_of_requests(model)
        if model.managed:
            yield from needs_of_managed(model, trained, serves=not isinstance(parameters, Training))
        else:
            yield from needs_of_endpoints(model)
    yield from needs_of_gpus(step)
    if parameters.runs_code():
        yield Need(("sandbox",), "machine", partial(check_sandbox, "this step runs"))
    own_extra = parameters.needs_extra()
    if own_extra is not None:
        yield Need(("extra", own_extra), "machine", partial(require, own_extra))
    for family in sorted(families_used(step)):
        extra = extra_of(family)
        if extra is not None:
            yield Need(("extra", extra), "machine", partial(require, extra))
        if is_sandboxed(family):
            yield Need(("sandbox",), "machine", check_sandbox)


def needs_of_hub(step: Step, trained: Mapping[str, Step]) -> Iterator[Need]:
    """The models on the Hub that a run downloads."""
    for text, model, weights in hub_models(step, trained):
        if awaits_download(text, weights):
            key = ("model" if weights else "tokenizer", text, "would be downloaded from the Hub")
            yield Need(key, "network", partial(check_on_hub, model, weights))


def awaits_download(named: str, weights: bool = True) -> bool:
    """Whether a model is on the Hub, so that its files can be looked at only after a download."""
    model = hub_model(named)
    return model is not None and cached_model(model, weights) is None


def needs_of_training(name: str, training: Training, model: ModelConfig, trained: Mapping[str, Step]) -> Iterator[Need]:
    """What the training of ``model`` in the step ``name`` needs apart from its tables."""
    yield Need(("extra", "train"), "machine", partial(require, "train"))
    for logger in training.report_to:
        yield Need(("extra", logger), "machine", partial(require, logger))
    if "launch" in training.model_fields_set:
        yield Need(("launch of", name), "recipe", training.check_launch)
        yield Need(("processes of", name), "machine", training.check_processes)
    if training.machine_settings:
        given = ", ".join([*training.machine_settings, *training.trl])
        yield Need(("settings", training.trainer, given, name), "machine", training.check_machine)
    adapter = model.adapter_path
    if adapter is not None and not awaits_download(adapter):
        check = partial(check_adapter_settings, training, adapter, trained.get(adapter))
        yield Need(("settings of the adapter", adapter, name), "recipe", check)
    yield from needs_of_template(training, model, trained)


def needs_of_template(training: Training, base: ModelConfig, trained: Mapping[str, Step]) -> Iterator[Need]:
    """What a training needs to render conversations: the file it names, or the chat template of its model."""
    given, model = training.chat_template, str(base.model)
    if given is not None and training.keeps_adapter:
        yield Need(("served template", model, given), "recipe", partial(check_served_template, base, given))
    if given not in (None, TRAINING_TEMPLATE):
        yield Need(("template file", given), "recipe", partial(_discard, partial(template_text, given)))
    elif not model.startswith(BUNDLED) and model not in trained:
        yield Need(("trained template", model), "recipe", partial(check_own_template, model))


def families_used(step: Step) -> frozenset[str]:
    """The families of the environments that a step reads, and of those that it has a model write and then tries."""
    read = families_of([each for outputs in step.inputs.values() for each in outputs]) or frozenset()
    return read | ((step.parameters.families(None) or frozenset()) if step.models else frozenset())


def needs_of_managed(config: ModelConfig, trained: Mapping[str, Step], *, serves: bool) -> Iterator[Need]:
    """What a model of ours needs to be trained, or with ``serves`` to be served."""
    model, server = str(config.model), config.server
    if model not in trained and not awaits_download(model):
        yield Need(("model", model), "recipe", partial(check_model, model))
    if model.startswith(BUNDLED) and not (cache_folder() / model.removeprefix(BUNDLED)).is_dir():
        yield Need(("extra", "train"), "machine", partial(require, "train"))
    # What a step trains has no revision yet.
    base = None if model in trained or awaits_download(model) else model
    for adapter in server.lora.values():
        if adapter not in trained and not awaits_download(adapter):
            yield Need(("adapter", adapter, model), "recipe", partial(check_adapter, adapter, base))
    if not serves:
        return
    size, replicas = str(server.tensor_parallel_size), str(server.replicas)
    yield Need(("vllm", size, replicas), "machine", partial(_discard, partial(server_gpus, {"": config})))
    own_template = server.chat_template is None and "--tokenizer-mode" not in server.arguments
    if own_template and not model.startswith(BUNDLED) and model not in trained:
        yield Need(("chat template", model), "recipe", partial(check_chat_template, model))


def needs_of_gpus(step: Step) -> Iterator[Need]:
    """That the models which a step serves together fit on the GPUs."""
    parameters = step.parameters
    if isinstance(parameters, Evaluate):
        # Models that are compared play one after the other.
        together = [parameters.roles(name, step.models) for name in parameters.models]
    else:
        together = [] if isinstance(parameters, TaskStep) else [step.models]
    for models in together:
        served = {server_key(model): model for model in models.values() if model.managed}
        # Of one alone another check speaks.
        if len(served) > 1:
            yield Need(("vllm", *sorted(served)), "machine", partial(_discard, partial(server_gpus, served)))


def needs_of_requests(config: ModelConfig) -> Iterator[Need]:
    """What the requests of a model take from the environment: the key, and headers."""
    variable = config.api_key_variable
    if variable is not None:
        yield Need(("key", variable), "machine", partial(_discard, partial(api_key, variable)))
    for name, value in config.headers.items():
        yield Need(("header", name, value), "machine", partial(_discard, partial(header_values, {name: value})))


def needs_of_endpoints(config: ModelConfig) -> Iterator[Need]:
    """What a model behind endpoints needs: that they answer and serve it."""
    variable, headers = config.api_key_variable, config.headers
    named = {**headers, **({"key": f"env:{variable}"} if variable else {})}
    sent = [f"with {name}: {value}" for name, value in sorted(named.items())]
    for url in config.endpoints:
        endpoint = Endpoint(base_url=url, model=config.acting_name)
        yield Need((url, "serves", endpoint.model, *sent), "network", partial(ask, endpoint, variable, headers))


def ask(endpoint: Endpoint, variable: str | None, headers: Mapping[str, str]) -> None:
    """See that an endpoint answers and serves the model. Without the key or headers that it wants it is not asked."""
    try:
        key, sent = api_key(variable), header_values(headers)
    except UserError:
        return
    check_endpoint(endpoint, key, headers=sent)


def check_tokenizer(field: str, folder: str) -> None:
    """Raises ``UserError`` for a folder without a tokenizer."""
    if not (tokenizer_folder(folder) / TOKENIZER_FILE).is_file():
        raise UserError(
            f"{field}: there is no {folder}/{TOKENIZER_FILE}; expected the folder of a model or a tokenizer",
            ErrorCode.TOKENIZER_MISSING,
        )


def check_adapter(folder: str, base: str | None = None) -> None:
    """Raises ``UserError`` for a folder that is no whole adapter, or one of another model than ``base``, where given.

    Of a ``base`` that is not there another check speaks.
    """
    check_adapter_files(model_path(folder), folder)
    if base is None:
        return
    model = cache_folder() / base.removeprefix(BUNDLED) if base.startswith(BUNDLED) else model_path(base)
    if (model / "config.json").is_file():
        check_base_of(folder, base, partial(model_revision, model))


def check_adapter_settings(training: Training, adapter: str, maker: Step | None) -> None:
    """Raises ``UserError`` for settings of matrices that are not those of the adapter to go on from."""
    if maker is None:
        check_lora_agrees(training.lora, read_json(model_path(adapter) / ADAPTER_CONFIG), adapter)
    # The settings of one that goes on from another one are those of that.
    elif isinstance(maker.parameters, Training) and maker.models["model"].adapter is None and maker.parameters.lora:
        made = maker.parameters.lora.model_dump()
        check_lora_agrees(training.lora, {PEFT_NAMES[name]: made[name] for name in PEFT_NAMES}, maker.name)


def check_chat_template(model: str) -> None:
    """Raises ``UserError`` for a model that cannot be asked; of one that is not there another check speaks."""
    folder = model_path(model)
    if (folder / "config.json").is_file():
        check_template(folder)


def check_served_template(base: ModelConfig, given: str) -> None:
    """Raises ``UserError`` where an adapter of ``base`` is trained with another template than it is served with."""
    if base.server.chat_template != str(Path(given).expanduser()):
        raise UserError(
            f"chat_template: {given} is not what an adapter is served with, which is the template of its model\n"
            "set lora.merge, or name the same file as `server.chat_template` of the model",
            ErrorCode.TEMPLATES_DIFFER,
        )


def check_own_template(model: str) -> None:
    """Raises ``UserError`` for a model without a chat template; of one that is not there another check speaks."""
    folder = model_path(model)
    if (folder / "config.json").is_file() and not chat_template(folder):
        raise UserError(
            f"the model folder {model} has no chat template, so it cannot be trained on conversations\n"
            "name a file with one as `chat_template` of the training, or start from an instruct model",
            ErrorCode.MODEL_WITHOUT_TEMPLATE,
        )


def check_sandbox(who: str = "these environments run") -> None:
    """Raises ``UserError`` where foreign code cannot be run; ``who`` runs it."""
    found = sandbox()
    if found.state != "ok":
        raise UserError(
            f"{who} code in a sandbox: {found.detail}\n{found.advice}".rstrip(),
            ErrorCode.SANDBOX_UNAVAILABLE,
        )


def missing_of(needs: Mapping[tuple[str, ...], tuple[str, Need]]) -> list[UserError]:
    """What is wrong with ``needs``, in their order; those that wait for others are looked at side by side."""
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        asked = {key: pool.submit(_wrong, need) for key, (_, need) in needs.items() if need.depends == "network"}
        found = {key: _wrong(need) for key, (_, need) in needs.items() if key not in asked}
        found |= {key: each.result() for key, each in asked.items()}
    wrong = ((step, found[key]) for key, (step, _) in needs.items())
    return [UserError(f"{step}: {error}", error.code) for step, error in wrong if error is not None]


def raise_all(mistakes: Sequence[UserError]) -> None:
    """Raises one ``UserError`` for all of them."""
    codes = {each.code for each in mistakes}
    if mistakes:
        raise UserError("\n".join(map(str, mistakes)), codes.pop() if len(codes) == 1 else ErrorCode.SEVERAL_MISTAKES)


def _wrong(need: Need) -> UserError | None:
    try:
        need.check()
    except UserError as error:
        return error
    return None


def _discard(call: Callable[[], object]) -> None:
    call()
