"""Configuration: what is read is what stands there, and every mistake is one clear line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError, model_validator

from agentmill.schemas.config import Config, config_digest, differences, dump_yaml, override, read_yaml, validate
from agentmill.schemas.errors import UserError
from tests.errors import user_error
from tests.schemas.records import AWKWARD, floats


class Sampling(Config):
    temperature: float = Field(default=1.0, ge=0)
    kind: Literal["nucleus", "greedy"] = "nucleus"


class Model(Config):
    name: str
    sampling: Sampling = Sampling()


class Run(Config):
    seed: int = 0
    models: dict[str, Model] = {}
    steps: list[Sampling] = []
    model_dir: str | None = None
    either: Sampling | Model | None = None

    @model_validator(mode="after")
    def _seed_is_lucky(self) -> Run:
        if self.seed == 13:
            raise ValueError("13 brings bad luck, take another seed")
        return self


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "quickstart.yaml"


def mistake(file: Path, text: str) -> str:
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        read_yaml(file)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(file), "FILE")


def test_yaml_1_2_values(file: Path) -> None:
    file.write_text(
        "\ufeffa: 5e-7\nb: 1e6\nc: no\nd: 2026-01-01\ne: 010\nf: [.5, true, null, ~]\ng: '5e-7'\nh: 1_000\n"
    )
    data = read_yaml(file)
    assert data == {
        "a": 5e-7,
        "b": 1e6,
        "c": "no",
        "d": "2026-01-01",
        "e": 10,
        "f": [0.5, True, None, None],
        "g": "5e-7",
        "h": 1000,
    }
    assert isinstance(data["a"], float)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "FILE, line 4: the key 'c' is given twice"),
        ("a: 1\na: 2\n", "FILE, line 2: the key 'a' is given twice"),
        ("a: b: c\n", "FILE, line 1: mapping values are not allowed here"),
        ("a: [1\n", "FILE, line 2: while parsing a flow sequence, expected ',' or ']', but got '<stream end>'"),
        (
            "a:\n\t- 1\n",
            "FILE, line 2: while scanning for the next token, found character '\\t' that cannot start any token",
        ),
        ("- 1\n", "FILE: expected keys and values, got a list"),
        ("just text\n", "FILE: expected keys and values, got text"),
        ("", "FILE: expected keys and values, got nothing"),
        ("a: {1: 2}\n", "FILE: the key 1 in a is no text; put it in quotes"),
        ("a: {b: [.nan]}\n", "FILE: a.b.0 is nan, expected a finite number"),
        ("a: -.inf\n", "FILE: a is -inf, expected a finite number"),
        ("a: *b\n", "FILE, line 1: found undefined alias 'b'"),
        ("a: !!python/object/apply:os.getcwd []\n", "FILE, line 1: could not determine a constructor for the tag"),
        ("a: \x01\n", "FILE is no YAML: unacceptable character #x0001"),
        ("a: 1\n---\nb: 2\n", "FILE, line 2: expected a single document in the stream"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_line(text: str, message: str, file: Path) -> None:
    assert mistake(file, text).startswith(message)


def test_unreadable_files_are_named(tmp_path: Path, file: Path) -> None:
    file.write_bytes(b"a: \xff")
    with user_error("not-utf8", "quickstart.yaml", "3"):
        read_yaml(file)
    with user_error("no-such-file", "quikstart.yaml", "quickstart.yaml"):
        read_yaml(tmp_path / "quikstart.yaml")
    with user_error("not-a-file"):
        read_yaml(tmp_path)
    with user_error("not-readable", "not a directory"):
        read_yaml(file / "quickstart.yaml")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"sed": 1}, "unknown key 'sed'; known: either, model_dir, models, seed, steps. Did you mean 'seed'?"),
        ({"seed": "x"}, "seed: expected a valid integer, got 'x'."),
        ({"seed": 1.5}, "seed: expected a valid integer, got 1.5."),
        ({"seed": None}, "seed: expected a valid integer, got None."),
        ({"seed": True}, "seed: expected a valid number, got True."),
        ({"seed": 13}, "the configuration: 13 brings bad luck, take another seed"),
        ({"steps": 3}, "steps: expected a valid list, got 3."),
        ({"steps": [{}, {"temperature": -1}]}, "steps.1.temperature: expected greater than or equal to 0, got -1."),
        ({"steps": [{"temperature": math.nan}]}, "steps.0.temperature: expected a finite number, got nan."),
        (
            {"steps": [{"kind": "gredy"}]},
            "steps.0.kind: expected 'nucleus' or 'greedy', got 'gredy'. Did you mean 'greedy'?",
        ),
        ({"models": {"actor": {}}}, "the key 'name' in models.actor is missing"),
        (
            {"models": {"actor": {"name": "a", "sampling": {"temprature": 1}}}},
            "unknown key 'temprature' in models.actor.sampling; known: kind, temperature. Did you mean 'temperature'?",
        ),
        ({"models": {"actor": {"name": 5}}}, "models.actor.name: expected a valid string, got 5."),
        ([], "the configuration: expected a mapping, got []."),
        ({"sed": 1, "seed": "x"}, "seed: expected a valid integer, got 'x'. (and 1 more)"),
    ],
)
def test_what_is_wrong_in_the_data_is_said_with_key_given_and_expected(data: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        validate(Run, data, "run.yaml")
    assert str(caught.value) == f"run.yaml: {message}"


def test_all_keys_that_are_missing_in_one_place_are_named() -> None:
    class Server(Config):
        host: str
        port: int

    class Servers(Config):
        seed: int = 0
        main: Server

    with pytest.raises(UserError) as caught:
        validate(Servers, {"seed": "x", "main": {}}, "run.yaml")
    assert str(caught.value) == "run.yaml: seed: expected a valid integer, got 'x'. (and 2 more)"
    with pytest.raises(UserError) as caught:
        validate(Servers, {"main": {}}, "run.yaml")
    assert str(caught.value) == "run.yaml: the keys 'host' and 'port' in main are missing"


def test_keys_inside_a_union_are_known(file: Path) -> None:
    with user_error("unknown-key", "temprature", "either.Sampling", "temperature"):
        validate(Run, {"either": {"temprature": 1}}, "run.yaml")


def test_a_config_is_immutable_and_coerces_nothing_odd() -> None:
    run = validate(Run, {"seed": 3, "steps": [{"temperature": 1}]}, "run.yaml")
    assert run.steps[0].temperature == 1.0
    with pytest.raises(ValidationError, match="frozen"):
        run.seed = 4


DATA: dict[str, Any] = {"seed": 1, "steps": [{"n": 8}, {"n": 9}], "models": {"actor": {"t": 0.5}}}


def test_a_packaged_configuration_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_yaml("configs/quickstart.yaml")["name"] == "quickstart"
    with user_error("no-such-file", "configs/quickstar.yaml"):
        read_yaml("configs/quickstar.yaml")
    own = tmp_path / "configs/quickstart.yaml"
    own.parent.mkdir()
    own.write_text("name: own\n")
    assert read_yaml("configs/quickstart.yaml") == {"name": "own"}


@pytest.mark.parametrize(
    ("assignment", "path", "value"),
    [
        ("seed=5", ["seed"], 5),
        ("steps.1.n=5e-7", ["steps", 1, "n"], 5e-7),
        ("steps.0.new=[1, {a: b}]", ["steps", 0, "new"], [1, {"a": "b"}]),
        ("models.actor.t=", ["models", "actor", "t"], None),
        ("models.actor.t='7'", ["models", "actor", "t"], "7"),
        ("models.actor.url=http://a:1/v1?b=c", ["models", "actor", "url"], "http://a:1/v1?b=c"),
        ("models={}", ["models"], {}),
        ("steps.0={n: 1}", ["steps", 0], {"n": 1}),
    ],
)
def test_overrides_replace_one_value(assignment: str, path: list[Any], value: Any) -> None:
    before = repr(DATA)
    found: Any = override(DATA, [assignment])
    for part in path:
        found = found[part]
    assert found == value
    assert type(found) is type(value)
    assert repr(DATA) == before


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("model.actor.t=1", "the configuration has no key 'model'. Did you mean 'models'?"),
        ("models.acter.t=1", "models has no key 'acter'. Did you mean 'actor'?"),
        ("steps.2.n=1", "steps is a list of 2; expected an index below it"),
        ("steps.-1.n=1", "steps is a list of 2; expected an index below it"),
        ("steps.first.n=1", "steps is a list of 2; expected an index below it"),
        ("seed.x=1", "seed is a number, it has no keys"),
    ],
)
def test_overrides_of_what_is_not_there_are_refused(assignment: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        override(DATA, ["seed=2", assignment])
    assert str(caught.value) == f"override {assignment!r}: {message}"


@pytest.mark.parametrize("assignment", ["seed", "=1", ""])
def test_overrides_need_a_key_and_a_value(assignment: str) -> None:
    with user_error("override-malformed"):
        override(DATA, [assignment])


def test_overrides_with_broken_yaml_are_refused() -> None:
    with user_error("not-yaml", "seed=[1"):
        override(DATA, ["seed=[1"])


def test_differences_are_listed_by_path() -> None:
    old = {"steps": [{"n": 8, "same": 1}, {"n": 9}], "gone": "x", "seed": 1, "kind": "1"}
    new = {"steps": [{"n": 12, "same": 1.0}], "seed": None, "new": {"a": [1]}, "kind": 1}
    assert differences(old, new) == [
        "steps.0.n: 8 -> 12",
        "steps.1: {n: 9} -> (absent)",
        "gone: x -> (absent)",
        "seed: 1 -> null",
        "kind: '1' -> 1",
        "new: (absent) -> {a: [1]}",
    ]
    assert differences(old, old) == []
    assert config_digest(old) == config_digest(dict(reversed(old.items())))
    assert config_digest(old) != config_digest(new)


yaml_texts = st.one_of(
    st.sampled_from(
        [
            *AWKWARD,
            "5e-7",
            "2026-01-01",
            "yes",
            "~",
            "a: b",
            "- a",
            "#",
            "!x",
            "&a",
            "*a",
            "\t",
            "a\n\nb\n",
            "=",
            "0x1F",
        ]
    ),
    st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"), max_size=8),
)
yaml_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), floats, yaml_texts),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(yaml_texts, inner, max_size=3),
    max_leaves=8,
)


@given(data=st.dictionaries(yaml_texts, yaml_values, max_size=4))
def test_what_is_written_is_read_back(data: dict[str, Any], file: Path) -> None:
    file.write_text(dump_yaml(data))
    assert read_yaml(file) == data
    assert config_digest(read_yaml(file)) == config_digest(data)


def bomb(levels: int, line: str) -> str:
    """Nine lines or so that stand for ten to the power of ``levels`` values."""
    ten = [", ".join([f"*a{level}"] * 10) for level in range(levels)]
    aliased = [f"a{level + 1}: &a{level + 1} {line.format(names)}" for level, names in enumerate(ten)]
    return "\n".join(["a0: &a0 {k0: 1, l0: 2}", *aliased, ""])


@pytest.mark.parametrize("line", ["[{0}]", "{{k: [{0}]}}", "{{<<: [{0}]}}"])
def test_aliases_that_stand_for_billions_of_values_are_refused_at_once(file: Path, line: str) -> None:
    said = mistake(file, bomb(9, line))
    assert said == "FILE: its aliases expand to more than 1,000,000 values; write fewer of them"


def test_aliases_that_stand_for_few_values_are_read(file: Path) -> None:
    file.write_text(bomb(3, "[{0}]"))
    assert len(read_yaml(file)["a3"][9][9]) == 10


def test_an_alias_inside_of_what_it_names_is_refused(file: Path) -> None:
    assert mistake(file, "a: 1\nb: &b [1, *b]\n") == "FILE, line 2: an alias is inside of what it names"


@pytest.mark.parametrize("depth", [199, 400, 5_000])
@pytest.mark.parametrize("brackets", ["[]", "{}"])
def test_nested_brackets_are_read_or_refused(file: Path, depth: int, brackets: str) -> None:
    opening = "[" if brackets == "[]" else "{k: "
    text = f"a: {opening * depth}{brackets[1] * depth}\n"
    if depth == 199:
        file.write_text(text)
        assert list(read_yaml(file)) == ["a"]
    else:
        assert mistake(file, text).endswith("values are nested deeper than 200 levels")


def test_a_number_of_thousands_of_digits_is_refused(file: Path) -> None:
    assert mistake(file, f"a: [0x{'f' * 20_000}]\n") == "FILE: a.0 has 80,000 bits, expected 4,096 at most"
    assert "FILE is no YAML" in mistake(file, f"a: {'7' * 20_000}\n")
