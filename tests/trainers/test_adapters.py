"""Trainings that go on from an adapter: its own matrices learn, and it is the reference, never its model."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig as PeftLoraConfig
from peft import get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from agentmill.schemas.config import dump_yaml
from agentmill.schemas.lora import LoraConfig
from agentmill.schemas.records.rows import PreferenceRow, UnpairedRow
from agentmill.trainers.adapters import (
    ModelFiles,
    check_adapted,
    check_lora_targets,
    linear_layers,
    load_adapter,
    load_merged,
    with_lora_of,
)
from agentmill.trainers.command import DpoSettings
from agentmill.trainers.dpo import dpo_method
from agentmill.trainers.dpo import main as dpo_main
from agentmill.trainers.kto import main as kto_main
from agentmill.trainers.merge import main as merge_main
from agentmill.trainers.model_io import load_weights
from agentmill.trainers.preference_data import encode_pair
from agentmill.trainers.sft import main as sft_main
from agentmill.trainers.trl_trainer import load_start, make_trainer, trl_arguments
from tests.errors import shows, user_error
from tests.model import tiny_adapter
from tests.trainers.preference import batch_of, loaded, started
from tests.trainers.tables import pairs, rows, unpaired_rows, write_table

torch.set_num_threads(1)

LORA = "lora={rank: 4, alpha: 12, dropout: 0.1, target_modules: [q_proj, v_proj], merge: false}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def config(folder: Path, model: Path) -> Path:
    """Four short steps of supervised fine-tuning."""
    settings = {"rows": str(write_table(folder / "rows", rows())), "model": str(model), "output": str(folder / "first")}
    path = folder / "train.yaml"
    path.write_text(dump_yaml({**settings, "max_steps": 4, "batch_size": 4, "learning_rate": 2e-2, "save_steps": 2}))
    return path


@pytest.fixture(scope="module")
def adapter(config: Path) -> Path:
    """An adapter of ours."""
    assert sft_main(["--config", str(config), LORA]) == 0
    return config.parent / "first"


def record_of(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "training.json").read_bytes())
    return record


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "adapter_model.safetensors")


def test_an_adapter_on_a_shared_head_is_merged_into_a_head_of_its_own(
    tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    base = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), tie_word_embeddings=True, **shape))
    base.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    config = PeftLoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "lm_head"], init_lora_weights=False)
    get_peft_model(base, config).save_pretrained(tmp_path / "adapter")
    ids = torch.arange(12)[None]
    with torch.no_grad():
        adapted = load_adapter(load_weights(tmp_path / "base", "CAUSAL_LM", torch.float32), tmp_path / "adapter")
        wanted = adapted.eval()(input_ids=ids).logits
        merge = [str(tmp_path / "adapter"), "--out", str(tmp_path / "merged"), "--base", str(tmp_path / "base")]
        assert merge_main(merge) == 0
        found = load_weights(tmp_path / "merged", "CAUSAL_LM", torch.float32).eval()(input_ids=ids).logits
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    assert "each has its own now" in capsys.readouterr().err
    plain = load_weights(tmp_path / "base", "CAUSAL_LM", torch.float32)
    with user_error("lora-differs", "the output head lm_head", "agentmill merge"):
        check_adapted(plain, LoraConfig(target_modules=["q_proj"]), tmp_path / "adapter")


def test_layers_of_gpt2_are_linear_ones(tmp_path: Path) -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=8, n_layer=2, n_head=2))
    assert linear_layers(model) == {"c_attn", "c_fc", "c_proj"}
    check_lora_targets(model, LoraConfig(target_modules=["c_attn"]))
    # PEFT keeps whole names, as c_proj is in two places.
    paths = [f"transformer.h.{n}.{name}" for n in (0, 1) for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc")]
    (tmp_path / "adapter_config.json").write_text(json.dumps({"target_modules": [*paths, "mlp.c_proj"]}))
    check_adapted(model, LoraConfig(), tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"target_modules": paths[:1]}))
    with user_error("lora-differs", "all-linear"):
        check_adapted(model, LoraConfig(), tmp_path)


def test_its_own_matrices_learn_on(adapter: Path, config: Path, model: Path, tmp_path: Path) -> None:
    """The training starts at the loss of the adapter, and ends with an adapter of the same model and settings."""
    more = ["--config", str(config), f"model={adapter}", f"output={tmp_path / 'more'}", "max_steps=2"]
    assert sft_main([*more, "lora={merge: false}", "learning_rate=1e-9"]) == 0
    record, before = record_of(tmp_path / "more"), record_of(adapter)
    assert record["settings"]["lora"] == before["settings"]["lora"]
    assert record["trained_parameters"] == before["trained_parameters"]
    assert record["base_model"] == str(model)
    assert record["base_revision"] == before["base_revision"]
    after, start = weights(tmp_path / "more"), weights(adapter)
    assert after.keys() == start.keys()
    for name, each in after.items():
        assert torch.allclose(each, start[name], atol=1e-6), name
    card = (tmp_path / "more/README.md").read_text()
    assert f"of the adapter `first`, revision `{record['identity']['adapter_revision']}`, of `{model.name}`" in card

    # As a whole model it is what the same steps on the adapter, and then a merge, make.
    assert sft_main([*more, "lora={merge: false}", f"output={tmp_path / 'alone'}"]) == 0
    assert merge_main([str(tmp_path / "alone"), "--out", str(tmp_path / "merged")]) == 0
    assert sft_main([*more, f"output={tmp_path / 'whole'}"]) == 0
    from transformers import AutoModelForCausalLM

    whole, merged = (AutoModelForCausalLM.from_pretrained(tmp_path / each).state_dict() for each in ("whole", "merged"))
    assert all(torch.equal(whole[name], merged[name]) for name in whole)
    assert any(not torch.equal(each, start[name]) for name, each in weights(tmp_path / "alone").items())


def test_its_chat_template_is_that_of_the_adapter(adapter: Path, config: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(adapter, tmp_path / "copy"))
    template = copy / "chat_template.jinja"
    template.write_text(template.read_text().replace("Tools, one a line", "Tools, each in a line"))
    assert sft_main(["--config", str(config), f"model={copy}", f"output={tmp_path / 'more'}", "max_steps=1"]) == 0
    assert (tmp_path / "more/chat_template.jinja").read_bytes() == template.read_bytes()


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ("{rank: 8}", "lora.rank is 8, and the adapter {adapter} to go on from has 4"),
        ("{alpha: 8}", "lora.alpha is 8.0, and the adapter {adapter} to go on from has 12"),
        ("{target_modules: [q_proj]}", "lora.target_modules is ['q_proj'], and the adapter"),
        ("{target_modules: all-linear}", "lora.target_modules is all-linear, and the adapter"),
    ],
)
def test_other_matrices_are_refused(
    lora: str, message: str, adapter: Path, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--config", str(config), f"model={adapter}", f"output={tmp_path / 'more'}", f"lora={lora}"]
    assert sft_main(more) == 2
    assert shows(capsys.readouterr().err, "lora-differs", message.format(adapter=adapter), f"agentmill merge {adapter}")


def test_settings_that_agree_and_another_dropout_are_taken(adapter: Path, config: Path, tmp_path: Path) -> None:
    lora = "lora={rank: 4, alpha: 12, target_modules: [v_proj, q_proj], dropout: 0.0, merge: false}"
    more = ["--config", str(config), f"model={adapter}", f"output={tmp_path / 'more'}", "max_steps=1"]
    assert sft_main([*more, lora]) == 0
    held = json.loads((tmp_path / "more/adapter_config.json").read_bytes())
    assert (held["r"], held["lora_alpha"], held["lora_dropout"]) == (4, 12.0, 0.0)


@pytest.mark.parametrize("trainer", ["sft", "dpo"])
def test_a_training_that_stops_goes_on_exactly(trainer: str, adapter: Path, config: Path, tmp_path: Path) -> None:
    from agentmill.trainers.run_dir import WorkFolder

    main = {"sft": sft_main, "dpo": dpo_main}[trainer]
    more = ["--config", str(config), f"model={adapter}", "lora={merge: false}", "max_steps=4"]
    if trainer == "dpo":
        more.append(f"rows={write_table(tmp_path / 'rows', pairs(), PreferenceRow)}")
    assert main([*more, f"output={tmp_path / 'unbroken'}"]) == 0
    mark = WorkFolder.mark_complete

    def stop(work: WorkFolder, step: int) -> None:
        mark(work, step)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WorkFolder, "mark_complete", stop)
        assert main([*more, f"output={tmp_path / 'more'}"]) == 130
    assert main([*more, f"output={tmp_path / 'more'}"]) == 0
    found, expected = weights(tmp_path / "more"), weights(tmp_path / "unbroken")
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    curves = [[point["loss"] for point in record_of(tmp_path / name)["loss_curve"]] for name in ("more", "unbroken")]
    assert curves[0] == curves[1]


@pytest.mark.parametrize("trainer", ["dpo", "kto"])
def test_the_reference_is_the_adapter(trainer: str, adapter: Path, config: Path, model: Path, tmp_path: Path) -> None:
    """At the first step the model and its reference are the same: nothing is gained on it yet."""
    main = {"dpo": dpo_main, "kto": kto_main}[trainer]
    records = (pairs(), PreferenceRow) if trainer == "dpo" else (unpaired_rows(), UnpairedRow)
    table = write_table(tmp_path / "rows", *records)
    settings = {"rows": str(table), "model": str(adapter), "max_steps": 2, "batch_size": 4, "learning_rate": 1e-2}
    path = tmp_path / f"{trainer}.yaml"
    path.write_text(dump_yaml({**settings, "output": str(tmp_path / "out"), "lora": {"dropout": 0.0, "merge": False}}))
    change = "chosen_change"

    assert main(["--config", str(path)]) == 0
    record = record_of(tmp_path / "out")
    identity = record["identity"]
    assert identity["reference_revision"] == f"{identity['base_revision']}+{identity['adapter_revision']}"
    assert record["loss_curve"][0][change] == pytest.approx(0, abs=1e-6)
    assert record["loss_curve"][1][change] != pytest.approx(0, abs=1e-4)
    assert record["trained_parameters"] == record_of(adapter)["trained_parameters"]
    assert sorted(path.name for path in (tmp_path / "out").glob("*ref*")) == []

    # Its model is the reference only where it is named; another adapter can be, too.
    base = [f"reference={model}", f"output={tmp_path / 'base'}", "max_steps=1"]
    assert main(["--config", str(path), *base]) == 0
    far = record_of(tmp_path / "base")["loss_curve"][0][change]
    assert far != pytest.approx(0, abs=1e-3)
    crossed = [f"model={model}", f"reference={adapter}", "lora=null", f"output={tmp_path / 'crossed'}", "max_steps=1"]
    assert main(["--config", str(path), *crossed]) == 0
    assert record_of(tmp_path / "crossed")["loss_curve"][0][change] == pytest.approx(-far, rel=1e-2)


def test_the_reference_has_no_dropout(adapter: Path, model: Path, tmp_path: Path) -> None:
    start = replace(started(tmp_path, model, pairs(2)), adapter=adapter)
    settings = with_lora_of(DpoSettings(rows="r", model="m", output="o", max_steps=1, batch_size=2), adapter)
    assert settings.lora is not None
    assert settings.lora.dropout == 0.1
    loaded_rows, _ = loaded(start, settings, encode_pair)
    arguments = trl_arguments(settings, start, method := dpo_method(settings, loaded_rows, None, 0), "fp32")
    whole = load_start(start, settings, "fp32", "CAUSAL_LM")
    trainer: Any = make_trainer(settings, start, method, arguments, (whole, None))
    trainer.model.train()
    batch = batch_of(trainer, [0, 1])
    first, second = (trainer.with_references(batch) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in trainer.value_names())
    own, again = (trainer.forward_masked(trainer.model, batch).log_probs for _ in range(2))
    assert not torch.equal(own, again)


def test_mistakes(adapter: Path, config: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(start: Path, *more: str) -> str:
        assert sft_main(["--config", str(config), f"model={start}", f"output={tmp_path / 'x'}", *more]) == 2
        return capsys.readouterr().err

    assert shows(refused(tiny_adapter()), "base-model-unknown", "training.json", "agentmill merge --base")
    lost = Path(shutil.copytree(adapter, tmp_path / "lost"))
    (lost / "training.json").unlink()
    held = json.loads((lost / "adapter_config.json").read_bytes())
    for change, code, part in (
        ({"base_model_name_or_path": "/nowhere/base"}, "model-missing", "belongs to /nowhere/base: the model folder"),
        ({"peft_type": "IA3"}, "model-of-wrong-kind", "of the kind IA3"),
        ({"task_type": "SEQ_CLS"}, "model-of-wrong-kind", "scores text and cannot continue it"),
    ):
        (lost / "adapter_config.json").write_text(json.dumps({**held, **change}))
        assert shows(refused(lost), code, part)
    # What PEFT notes of its model is enough for adapters of others.
    (lost / "adapter_config.json").write_text(json.dumps({**held, "base_model_name_or_path": str(model)}))
    assert shows(
        refused(lost, "save_dtype=fp32", "lora={merge: false}"), "rule-broken", "save_dtype is of whole models"
    )
    from safetensors.torch import save_file

    some = {name: each for name, each in weights(adapter).items() if "q_proj" in name}
    save_file(some, lost / "adapter_model.safetensors")
    assert shows(refused(lost), "model-incomplete", f"the adapter {lost} lacks 4 of the tensors", "v_proj")
    (lost / "adapter_model.safetensors").unlink()
    assert shows(refused(lost), "model-incomplete", f"the adapter {lost} holds no weights")


def test_an_adapter_in_part_and_one_of_another_model_are_not_loaded(adapter: Path, model: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    part, deeper, wider = (Path(shutil.copytree(adapter, tmp_path / name)) for name in ("part", "deeper", "wider"))
    held = weights(adapter)
    first = {name: each for name, each in held.items() if ".layers.0." in name}
    save_file(first, part / "adapter_model.safetensors")
    third = {name.replace(".layers.0.", ".layers.2."): each.clone() for name, each in first.items()}
    save_file({**held, **third}, deeper / "adapter_model.safetensors")
    wide = {name: torch.cat([each, each], 1) if "lora_A" in name else each for name, each in held.items()}
    save_file({name: each.contiguous() for name, each in wide.items()}, wider / "adapter_model.safetensors")

    for folder, code, words in (
        (part, "model-incomplete", f"lacks {len(held) - len(first)} of the tensors"),
        (deeper, "base-model-differs", f"has {len(third)} tensors for layers that the model does not have"),
        (wider, "base-model-differs", "does not fit the model"),
    ):
        with user_error(code, words):
            load_merged(model, folder, "CAUSAL_LM")
        with user_error(code, words):
            load_adapter(load_weights(model, "CAUSAL_LM", torch.float32), folder, dropout=0.0)


def test_the_model_of_an_adapter_can_be_named(
    adapter: Path, config: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An adapter that was moved names a folder of another machine."""
    moved, other = Path(shutil.copytree(adapter, tmp_path / "moved")), Path(shutil.copytree(model, tmp_path / "other"))
    record = record_of(adapter)
    record["settings"]["model"] = "/nowhere/base"
    (moved / "training.json").write_text(json.dumps(record))
    (other / "generation_config.json").write_text("{}")
    more = ["--config", str(config), f"output={tmp_path / 'more'}", "max_steps=1", "lora={merge: false}"]
    for given, code in (
        ([f"model={moved}"], "model-missing"),
        ([f"model={moved}", f"base={other}"], "base-model-differs"),
        ([f"model={model}", f"base={model}"], "key-not-for-this"),
    ):
        assert sft_main([*more, *given]) == 2
        assert shows(capsys.readouterr().err, code)
    assert sft_main([*more, f"model={moved}", f"base={model}"]) == 0
    assert record_of(tmp_path / "more")["base_model"] == str(model)

    table = write_table(tmp_path / "rows", pairs(), PreferenceRow)
    named = [f"rows={table}", f"model={model}", f"reference={moved}", f"reference_base={model}"]
    assert dpo_main([*more[:2], f"output={tmp_path / 'dpo'}", *named[:2], named[3]]) == 2
    assert shows(capsys.readouterr().err, "key-not-for-this", "reference_base", "leave it out")
    assert dpo_main([*more[:2], f"output={tmp_path / 'dpo'}", "max_steps=1", *named]) == 0
    assert record_of(tmp_path / "dpo")["identity"]["reference_revision"] == ModelFiles(model, moved).revision


def test_the_revision_of_an_adapter_has_both_folders(adapter: Path, model: Path) -> None:
    base, revision = ModelFiles(model).revision, ModelFiles(model, adapter).revision
    assert revision.startswith(f"{base}+")
