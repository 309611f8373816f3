"""Chat templates that take too much are ended, those that fail are told, and the others come to their text."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.templates.process import (
    MOST_CHARACTERS,
    SOURCE_BYTES,
    TemplateProcess,
    check_size,
    read_template,
)
from agentmill.schemas.templates.rendering import TemplateError
from tests.errors import user_error

QUESTION: JsonObject = {"messages": [{"role": "user", "content": "é \ud83d"}]}


@pytest.fixture
def process() -> Iterator[TemplateProcess]:
    made = TemplateProcess(timeout_s=0.5, memory_bytes=2**28)
    yield made
    made.close()


@pytest.fixture
def patient() -> Iterator[TemplateProcess]:
    """One that no busy machine keeps from coming to its other limits."""
    made = TemplateProcess(timeout_s=60.0, memory_bytes=2**28)
    yield made
    made.close()


def test_a_template_comes_to_its_text(process: TemplateProcess) -> None:
    source = """
{%- for each in messages %}
{%- if loop.index == 2 %}{% break %}{% endif %}
{{- '<' + each.role + '>' + each | tojson }}{% generation %}{{ each.content }}{% endgeneration %}
{%- endfor %}{{ name | default('none') }}"""
    names = {"messages": [{"role": "user", "content": "é<"}, {"role": "user", "content": "second"}]}
    assert process.render(source, names) == '<user>{"role": "user", "content": "é<"}é<none'
    assert process.render("{{ messages[0].content }}", QUESTION) == "é \ud83d"
    assert len(process.render("{{ strftime_now('%Y') }}", {})) == 4


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "more than 0.5 s"),
        ("{{ 10 ** (10 ** 9) }}", "takes more than"),
        (
            "{% set x = namespace(n=7) %}{% for a in range(60) %}{% set x.n = x.n * x.n %}{% endfor %}",
            "takes more than",
        ),
    ],
)
def test_a_template_that_takes_too_long_is_refused(source: str, why: str, process: TemplateProcess) -> None:
    assert_refused(source, why, process)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{{ 'a' * 10 ** 10 }}", "takes more than 256 MiB of memory"),
        ("{{ '%10000000000d' % 1 }}", "takes more than 256 MiB of memory"),
        ("{{ 'a' | center(10 ** 10) }}", "takes more than 256 MiB of memory"),
        (
            "{% set x = namespace(t='aaaaaaaa') %}{% for a in range(90) %}{% set x.t = x.t + x.t %}{% endfor %}",
            "takes more than 256 MiB of memory",
        ),
        ("{% for a in range(99999) %}{{ 'a' * 10000 }}{% endfor %}", f"a text of more than {MOST_CHARACTERS:,} char"),
    ],
)
def test_a_template_that_makes_too_much_is_refused(source: str, why: str, patient: TemplateProcess) -> None:
    assert_refused(source, why, patient)


def assert_refused(source: str, why: str, process: TemplateProcess) -> None:
    with user_error("template-too-costly", why):
        process.render(source, QUESTION)
    assert process.render("{{ 1 + 1 }}", {}) == "2"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{{ raise_exception('no\n  system') }}", "TemplateError: no system"),
        ("{{ messages[0].content.__class__.__mro__ }}", "SecurityError: access to attribute '__class__' "),
        ("{{ messages.append(1) }}", "SecurityError: access to attribute 'append' "),
        ("{{ 1 // 0 }}", "ZeroDivisionError: "),
        ("{{ nothing.more }}", "UndefinedError: 'nothing' is undefined"),
        ("{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}", "RecursionError: "),
    ],
)
def test_a_template_that_fails_is_told_of(source: str, why: str, process: TemplateProcess) -> None:
    with pytest.raises(TemplateError, match=f"the chat template fails on the conversation: {why}"):
        process.render(source, QUESTION)
    with pytest.raises(TypeError, match="can only concatenate"):
        process.render("{{ 'a' + 1 }}", QUESTION)


def test_a_fork_has_a_process_of_its_own(process: TemplateProcess) -> None:
    assert process.render("{{ 1 }}", {}) == "1"
    with process._lock:  # as another thread may hold it at the fork
        fork = os.fork()
        if fork == 0:
            right = process.render("{{ 2 }}", {}) == "2"
            process.close()
            os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 0
    assert process.render("{{ 3 }}", {}) == "3"


def test_the_process_ends_with_who_started_it_and_by_its_own_clock() -> None:
    reader, writer = os.pipe()
    fork = os.fork()
    if fork == 0:
        made = TemplateProcess(timeout_s=1.0)
        assert made.render("{{ 1 }}", {}) == "1"
        assert made._process is not None
        os.write(writer, str(made._process.pid).encode())
        made.render("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", {})
    left = psutil.Process(int(os.read(reader, 20)))
    os.kill(fork, signal.SIGKILL)
    os.waitpid(fork, 0)
    assert psutil.wait_procs([left], timeout=10)[1] == []


def test_a_process_that_was_ended_is_started_again(process: TemplateProcess) -> None:
    assert process.render("{{ 1 }}", {}) == "1"
    assert process._process is not None
    process._process.kill()
    with user_error("template-too-costly"):
        process.render("{{ 1 }}", {})
    assert process.render("{{ 1 }}", {}) == "1"


def test_templates_are_bounded_in_size(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("é" * 10)
    assert read_template(tmp_path / "t.jinja") == "é" * 10
    (tmp_path / "t.jinja").write_text("a" * (SOURCE_BYTES + 1))
    with user_error("file-too-large", "1,048,576"):
        read_template(tmp_path / "t.jinja")
    with user_error("file-too-large", "1,048,577", "1,048,576"):
        check_size("a" * (SOURCE_BYTES + 1))
    (tmp_path / "t.jinja").write_bytes(b"\xff")
    with user_error("not-utf8"):
        read_template(tmp_path / "t.jinja")


@pytest.mark.parametrize("empty", ["", " \n"])
def test_an_empty_template_is_refused(empty: str, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text(empty)
    with user_error("template-invalid", "is empty"):
        read_template(tmp_path / "t.jinja")


@pytest.mark.parametrize("source", ["{% if %}", "{{ messages | unknown }}", "{% for message in messages %}"])
def test_a_template_that_jinja_cannot_read_is_refused(source: str, process: TemplateProcess) -> None:
    with user_error("template-invalid", "is no Jinja template"):
        process.render(source, QUESTION)
