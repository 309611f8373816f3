"""Rows that are not trained on: which they are, that their loss is right, and what it decides."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
import torch

from agentmill.schemas.config import validate
from agentmill.schemas.monitoring import ValidationConfig
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.rows import PreferenceRow, UnpairedRow
from agentmill.schemas.tables import Table
from agentmill.trainers import train_loop
from agentmill.trainers.command import SftSettings
from agentmill.trainers.dpo import main as dpo_main
from agentmill.trainers.kto import main as kto_main
from agentmill.trainers.monitors import lowest, validation_curve, waited
from agentmill.trainers.reward import main as reward_main
from agentmill.trainers.sft import main
from agentmill.trainers.tokenization import Encoded, encode
from agentmill.trainers.validation import HeldOut, choose_validation, draw_groups, open_validation_table
from agentmill.trainers.validation import validation_batches as batches
from tests.errors import shows, user_error
from tests.trainers.tables import pairs, rows, unpaired_rows, write_table
from tests.trainers.test_resume import kill_at_checkpoint

torch.set_num_threads(1)


def of_tasks(records: list[Any], tasks: int, split: str | None = None) -> list[Any]:
    """The rows, in turn of so many tasks."""
    return [
        msgspec.structs.replace(each, task_id=f"task {number % tasks}", split=split)
        for number, each in enumerate(records)
    ]


def record_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "training.json").read_bytes())
    return found


def tokens_of_steps(folder: Path, steps: int) -> list[int]:
    """Tokens of the rows that so many steps together were made of, from the table of rows by step."""
    table = pq.read_table(folder / "rows_seen.parquet").to_pydict()
    sums: dict[int, int] = {}
    for step, tokens in zip(table["step"], table["tokens"], strict=True):
        sums[(step - 1) // steps] = sums.get((step - 1) // steps, 0) + tokens
    return [sums[place] for place in range(len(sums))]


def test_tasks_are_drawn_whole_by_the_seed_alone(tmp_path: Path) -> None:
    records = of_tasks(rows(40), 10)
    table = Table.open(write_table(tmp_path / "rows", records))
    drawn = draw_groups(table, 0.15, seed=1)
    assert len(drawn) == 2
    assert drawn < {f"task {number}" for number in range(10)}
    mixed = Table.open(write_table(tmp_path / "mixed", records[::-1]))
    assert draw_groups(mixed, 0.15, seed=1) == drawn
    assert len({draw_groups(table, 0.15, seed) for seed in range(8)}) > 4
    held_out = HeldOut(drawn)
    assert sum(held_out.has(row) for row in records) == 8
    assert len(draw_groups(table, 0.0001, seed=1)) == 1


@pytest.mark.parametrize("seed", range(6))
def test_a_task_of_most_rows_is_not_drawn_for_a_small_share(seed: int, tmp_path: Path) -> None:
    records = [
        msgspec.structs.replace(each, task_id=f"task {max(0, number - 29)}") for number, each in enumerate(rows(40))
    ]
    drawn = draw_groups(Table.open(write_table(tmp_path / "rows", records)), 0.05, seed)
    assert len(drawn) == 2
    assert "task 0" not in drawn
    of_two = Table.open(write_table(tmp_path / "two", records[:32]))
    assert len(draw_groups(of_two, 0.01, seed)) == 1
    assert "task 0" not in draw_groups(of_two, 0.01, seed)


def test_rows_without_a_task_stay_with_their_trajectory_and_pairs_with_their_chosen_one(tmp_path: Path) -> None:
    records = [msgspec.structs.replace(each, trajectory_id=f"t{number // 5}") for number, each in enumerate(rows(20))]
    assert draw_groups(Table.open(write_table(tmp_path / "rows", records)), 0.25, 0) < {"t0", "t1", "t2", "t3"}
    chosen = [msgspec.structs.replace(each, chosen_id=f"c{number % 2}") for number, each in enumerate(pairs(8))]
    drawn = draw_groups(Table.open(write_table(tmp_path / "pairs", chosen, PreferenceRow)), 0.1, 0)
    assert drawn in (frozenset({"c0"}), frozenset({"c1"}))


def test_rows_of_one_task_cannot_be_divided(tmp_path: Path) -> None:
    table = Table.open(write_table(tmp_path / "rows", of_tasks(rows(6), 1)))
    with user_error("rows-too-few", "all of one task", "validation_rows"):
        draw_groups(table, 0.5, seed=0)


def test_a_damaged_file_of_rows_is_named(tmp_path: Path) -> None:
    table = Table.open(write_table(tmp_path / "rows", of_tasks(rows(6), 3)))
    (shard,) = table.shards()
    content = shard.read_bytes()
    shard.write_bytes(content[:4] + bytes(len(content) - 200) + content[-196:])
    with user_error("damaged-file", shard.name):
        draw_groups(table, 0.5, seed=0)


def test_a_split_of_the_table_is_taken_and_tasks_on_both_sides_are_counted(tmp_path: Path) -> None:
    records = [*of_tasks(rows(6), 3, "train"), *of_tasks(rows(4), 2, "validation")]
    table = Table.open(write_table(tmp_path / "rows", records))
    source = choose_validation(ValidationConfig(split="validation"), 0, table, table)
    assert source.shared_tasks == 2
    assert source.held_out is not None
    assert [source.held_out.has(row) for row in records] == [False] * 6 + [True] * 4
    with user_error("no-records", "validation: 4", "train: 6", "'test'"):
        choose_validation(ValidationConfig(split="test"), 0, table, table)
    # What YAML makes of `split: None` is a text.
    unsplit = Table.open(write_table(tmp_path / "unsplit", [*records, *of_tasks(rows(2), 1)]))
    with user_error("no-records", "without a split: 2", "'None'"):
        choose_validation(ValidationConfig(split="None"), 0, unsplit, unsplit)


def test_a_table_of_its_own_holds_the_same_record(tmp_path: Path) -> None:
    trained = Table.open(write_table(tmp_path / "rows", of_tasks(rows(6), 3)))
    write_table(tmp_path / "others", of_tasks(rows(4), 2))
    write_table(tmp_path / "pairs", pairs(2), PreferenceRow)
    places = {"rows": str(tmp_path / "rows"), "model": "m", "output": "o"}
    found = open_validation_table(SftSettings(**places, validation_rows=str(tmp_path / "others")), trained)
    assert found is not None
    assert choose_validation(ValidationConfig(), 0, trained, found).shared_tasks == 2
    with user_error("wrong-record-type", "PreferenceRow", "expected SftRow"):
        open_validation_table(SftSettings(**places, validation_rows=str(tmp_path / "pairs")), trained)
    assert open_validation_table(SftSettings(**places), trained) is None
    with user_error("given-twice", "validation_rows", "validation.share"):
        open_validation_table(SftSettings(**places, validation_rows=places["rows"]), trained)
    write_table(tmp_path / "empty", [])
    with user_error("no-records", "agentmill inspect", "validation.share"):
        open_validation_table(SftSettings(**places, validation_rows=str(tmp_path / "empty")), trained)


def test_trajectories_on_both_sides_are_counted_where_rows_have_no_task(tmp_path: Path) -> None:
    records = [msgspec.structs.replace(row, task_id=None, trajectory_id=f"run-{n}") for n, row in enumerate(rows(6))]
    trained, found = (
        Table.open(write_table(tmp_path / name, part))
        for name, part in (("rows", records[:4]), ("others", records[2:]))
    )
    assert choose_validation(ValidationConfig(), 0, trained, found).shared_tasks == 2


@pytest.mark.parametrize("number", [1, 2, 3, 7, 16, 25])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_batches_have_each_row_once_and_one_size_at_each_step(number: int, size: int, processes: int) -> None:
    lengths = [(7 * row) % 5 for row in range(number)]
    shares = [batches(lengths, size, rank, processes) for rank in range(processes)]
    assert len({tuple(map(len, share)) for share in shares}) == 1
    seen = [row for share in shares for batch in share for row in batch]
    assert len(set(seen)) == len(seen) == number - number % processes
    sizes = [len(batch) for batch in shares[0]]
    assert all(size <= each < 2 * size for each in sizes) or len(sizes) <= 1
    if processes == 1:
        flat = [lengths[row] for row in seen]
        assert flat == sorted(flat)


def test_waiting_is_counted_from_the_last_lower_loss() -> None:
    history = [
        {"step": 1, "loss": 9.0},
        *({"step": step, "eval_loss": loss, "eval_runtime": 1.0} for step, loss in enumerate([3.0, 2.0, 2.1, 1.95])),
    ]
    curve = validation_curve(history)
    assert curve == [{"step": step, "loss": loss} for step, loss in enumerate([3.0, 2.0, 2.1, 1.95])]
    assert [waited(curve[:end]) for end in range(1, 5)] == [0, 0, 1, 0]
    assert [waited(curve[:end], 0.1) for end in range(1, 5)] == [0, 0, 1, 2]
    broken = {"step": 5, "loss": float("nan")}
    assert waited([*curve, broken]) == 1
    assert lowest([broken, *curve]) == curve[3]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"validation": {}}, "has no rows"),
        ({"validation": {"share": 0.1, "split": "test"}}, "give one of the two"),
        ({"validation": {"share": 0.1}, "validation_rows": "others"}, "leave out validation.share"),
        ({"validation": {"share": 0.1, "min_delta": 0.1}}, "set `patience` too"),
        ({"validation": {"share": 0.1, "keep": "best"}, "save_steps": None}, "save_steps: null writes none"),
    ],
)
def test_settings_that_do_not_go_together(given: dict[str, Any], named: str) -> None:
    with user_error("rule-broken", named):
        validate(SftSettings, {"rows": "rows", "model": "m", "output": "o", **given}, "test")


def test_a_table_alone_is_validated_on_with_defaults() -> None:
    places = {"rows": "rows", "model": "m", "output": "o"}
    assert SftSettings(**places).validates is None
    assert SftSettings(**places, validation_rows="others").validates == ValidationConfig()


def sequences_of(records: list[Any], tokenizer: Any) -> list[Encoded]:
    return [encode(row, tokenizer) for row in records]


@pytest.mark.slow
def test_the_loss_is_that_of_all_tokens_and_validating_changes_no_step(
    config: Path, tmp_path: Path, tokenizer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Batches of 4 of 7 rows of different lengths: a mean of means would be another number."""
    from transformers import AutoModelForCausalLM

    others = [
        msgspec.structs.replace(
            row,
            trajectory_id="another",
            messages=[
                msgspec.structs.replace(message, weight=0.5 if number % 2 and message.train else message.weight)
                for message in row.messages
            ],
        )
        for number, row in enumerate(rows(7))
    ]
    write_table(tmp_path / "others", others)
    options = ["precision=fp32", "save_dtype=fp32", "lora={rank: 4, dropout: 0.2}", "log_steps=2"]
    assert main(["--config", str(config), *options, f"output={tmp_path / 'plain'}"]) == 0
    table = [f"validation_rows={tmp_path / 'others'}", "validation={every: 3, samples: {n: 2, max_tokens: 6}}"]
    assert main(["--config", str(config), *options, *table]) == 0
    printed = capsys.readouterr().err
    assert "validation, not trained on: read 7 = used 7 + dropped 0; 7 sequences" in printed
    record, plain = record_of(tmp_path / "tuned"), record_of(tmp_path / "plain")
    assert plain["validation"] is None
    for name in ("loss", "accuracy", "tokens", "grad_norm"):
        assert [point[name] for point in record["loss_curve"]] == [point[name] for point in plain["loss_curve"]]
    found = record["validation"]
    assert [point["step"] for point in found["curve"]] == [3, 6, 8]
    assert (found["counts"]["used"], found["kept_step"], found["shared_tasks"]) == (7, 8, 0)

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "tuned", dtype=torch.float32).eval()
    loss, right, tokens = 0.0, 0, 0
    for each in sequences_of(others, tokenizer):
        logits = model(torch.tensor(each.input_ids[None], dtype=torch.long)).logits[0, :-1]
        labels, weights = torch.tensor(each.labels[1:]).long(), torch.tensor(each.weights[1:])
        loss += (torch.nn.functional.cross_entropy(logits, labels, reduction="none") * weights).sum().item()
        right += int((logits.argmax(-1) == labels).sum())
        tokens += int((labels != -100).sum())
    last = found["curve"][-1]
    assert last["loss"] == pytest.approx(loss / tokens, rel=1e-4)
    assert last["accuracy"] == pytest.approx(right / tokens, abs=1e-9)
    assert found["last_loss"] == last["loss"]

    samples = [json.loads(line) for line in (tmp_path / "tuned.samples.jsonl").read_text().splitlines()]
    assert [(sample["step"], sample["row_id"]) for sample in samples] == [
        (step, f"r00{row}") for step in (3, 6, 8) for row in (0, 1)
    ]
    first = encode(others[0], tokenizer)
    prompt = torch.tensor(first.input_ids[None, : int(first.mask.argmax())], dtype=torch.long)
    said = model.generate(prompt, max_new_tokens=6, do_sample=False)[0, prompt.shape[1] :]
    assert samples[4]["continuation"] == tokenizer.decode(said, skip_special_tokens=True)
    assert f"sample at step 8, row {samples[4]['row_id']}: {samples[4]['continuation']!r}" in printed
    assert tokens_of_steps(tmp_path / "tuned", 2) == [point["tokens"] for point in record["loss_curve"]]

    card = (tmp_path / "tuned" / "README.md").read_text()
    assert "Validation: 7 rows that were not trained on = 7 used + 0 dropped." in card
    assert f"| validation loss, step 8 | {last['loss']:.4f} |" in card


@pytest.mark.slow
def test_rows_set_aside_are_in_no_step_and_the_best_model_is_kept(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rate that rises until it wrecks the model: it learns for some steps, and the training ends early."""
    write_table(tmp_path / "rows", of_tasks(rows(24), 8))
    wild = ["max_steps=30", "learning_rate=0.2", "warmup=0.5", "packing=true", "max_length=256"]
    wild += ["validation={share: 0.2, every: 1, keep: best, patience: 3}", "save_steps=4", "max_dropped=0.5"]
    kill_at_checkpoint(config, 4, *wild)
    assert main(["--config", str(config), *wild]) == 0
    printed = capsys.readouterr().err
    record = record_of(tmp_path / "tuned")
    found = record["validation"]
    assert (record["counts"]["read"], found["counts"]["read"]) == (18, 6)
    assert tokens_of_steps(tmp_path / "tuned", 1) == [point["tokens"] for point in record["loss_curve"]]
    drawn = draw_groups(Table.open(tmp_path / "rows"), 0.2, 0)
    held = {row.row_id for row in of_tasks(rows(24), 8) if row.task_id in drawn}
    trained = set(pq.read_table(tmp_path / "tuned" / "rows_seen.parquet")["row_id"].to_pylist())
    assert len(held) == 6
    assert trained == {row.row_id for row in rows(24)} - held
    losses = [point["loss"] for point in found["curve"]]
    best = min(range(len(losses)), key=losses.__getitem__)
    assert found["kept_step"] == found["best_step"] == best + 1
    assert record["steps"] == len(losses) == best + 4 < 30
    assert record["stopped"] == f"at step {best + 4}: 3 validations without a lower loss (validation.patience)"
    assert f"the model of step {best + 1} of {best + 4} is kept" in printed
    lowest = f"lowest before {losses[best]:.4f} at step {best + 1}"
    assert f"validation at step {best + 4}: loss {losses[-1]:.4f}" in printed
    assert lowest in printed

    table = f"validation_rows={tmp_path / 'again'}"
    write_table(tmp_path / "again", [row for row in of_tasks(rows(24), 8) if row.task_id in drawn])
    kept = [f"model={tmp_path / 'tuned'}", "learning_rate=1e-12", "max_steps=1", "max_length=256", table]
    assert main(["--config", str(config), *kept, f"output={tmp_path / 'measured'}"]) == 0
    measured = record_of(tmp_path / "measured")["validation"]
    assert measured["shared_tasks"] == len(drawn)
    # The weights that are kept are in bf16.
    assert measured["last_loss"] == pytest.approx(losses[best], rel=0.02)
    assert losses[-1] > 1.1 * losses[best]
    assert best > 0


OTHERS: list[tuple[str, Callable[..., int], list[Any], type[Record], list[str]]] = [
    ("dpo", dpo_main, pairs(), PreferenceRow, ["lora={rank: 4}"]),
    ("kto", kto_main, unpaired_rows(), UnpairedRow, []),
    ("reward", reward_main, pairs(), PreferenceRow, []),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "train", "records", "kind", "options"), OTHERS, ids=[each[0] for each in OTHERS])
def test_preferences_are_validated(
    name: str,
    train: Callable[..., int],
    records: list[Any],
    kind: type[Record],
    options: list[str],
    tmp_path: Path,
    model: Path,
) -> None:
    """All validation rows alike, so that their loss does not depend on how they are put into batches."""
    alike = [msgspec.structs.replace(records[0], row_id=str(number), weight=2.0) for number in range(5)]
    if name == "kto":
        alike += [msgspec.structs.replace(records[1], row_id=f"bad {number}", weight=2.0) for number in range(5)]
    given = {"rows": write_table(tmp_path / "rows", records, kind), "model": model, "output": tmp_path / "tuned"}
    given |= {"validation_rows": write_table(tmp_path / "others", alike, kind)}
    path = tmp_path / "train.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in given.items()))
    short = ["max_steps=4", "batch_size=4", "learning_rate=1e-3", "validation={every: 2, keep: best}"]
    assert train(["--config", str(path), *short, *options]) == 0
    found = record_of(tmp_path / "tuned")["validation"]
    assert [point["step"] for point in found["curve"]] == [2, 4]
    assert found["kept_step"] == found["best_step"]
    last = found["curve"][-1]
    if name == "kto":
        assert last["kl"] >= 0
        assert last["margin"] is not None
        return
    # The loss of one pair, twice for its weight, by the margin that is reported.
    expected = 2 * torch.nn.functional.softplus(torch.tensor(-last["margin"])).item()
    assert last["loss"] == pytest.approx(expected, rel=1e-3)
    assert last["accuracy"] == 1.0


def test_kto_needs_two_rows_to_validate_on(
    kto_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_table(tmp_path / "one", unpaired_rows(1), UnpairedRow)
    assert kto_main(["--config", str(kto_config), f"validation_rows={tmp_path / 'one'}"]) == 2
    assert shows(capsys.readouterr().err, "rows-too-few", "1 rows to validate on", "validation_rows")


@pytest.mark.slow
def test_the_best_model_is_kept_where_no_loss_is_lower_by_enough(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every loss is the lowest so far. A training that ended early and was killed then makes no further step."""
    write_table(tmp_path / "rows", of_tasks(rows(24), 8))
    falling = ["max_steps=30", "max_length=256", "log_steps=7", "learning_rate=1e-3"]
    falling += ["validation={share: 0.2, every: 2, keep: best, patience: 2, min_delta: 5.0}", "save_steps=6"]

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train_loop, "write_model", killed)
    assert main(["--config", str(config), *falling]) == 130
    monkeypatch.undo()
    assert main(["--config", str(config), *falling]) == 0
    record = record_of(tmp_path / "tuned")
    found = record["validation"]
    losses = [point["loss"] for point in found["curve"]]
    assert losses == sorted(losses, reverse=True)
    assert (record["steps"], found["kept_step"], found["best_step"]) == (6, 6, 6)
    assert record["stopped"] == "at step 6: 2 validations without a lower loss (validation.patience)"
    # No step is missing in the curve, though none is a multiple of log_steps.
    assert [point["step"] for point in record["loss_curve"]] == [2, 4, 6]
    assert tokens_of_steps(tmp_path / "tuned", 2) == [point["tokens"] for point in record["loss_curve"]]
    assert record["tokens"] == sum(point["tokens"] for point in record["loss_curve"])
