"""What the tokens of a conversation cost, in times of rendering it once and tokenising that text.

    python benchmarks/bench_prefix_texts.py [--turns 10 50 200]

Conversations with tools under templates that TRL ships. `derived` takes the beginnings of a conversation out of the
rendering of the whole, `rendered` renders each by itself. Characters are all that the template renders, in times of
the whole conversation; they do not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from machine import describe
from transformers import AutoTokenizer

from agentmill.schemas.chat import to_template
from agentmill.schemas.records.rows import Message, MessageCall
from agentmill.schemas.templates import renderer as templates
from agentmill.schemas.templates.prefix_texts import PrefixTexts
from agentmill.trainers.chat_template import renderer
from agentmill.trainers.tokenization import encode_texts
from tests.model import tiny_model
from tests.trainers.tables import TOOLS
from tests.trainers.template_families import TEMPLATE_CASES

TEMPLATES = ("qwen2_5", "qwen3_instruct_2507", "qwen3")


def conversation(turns: int) -> list[Message]:
    """Calls and their results."""
    messages = [Message(role="system", content="Use tools."), Message(role="user", content="Where is the key?")]
    for turn in range(turns):
        call = MessageCall(name="look", arguments=f'{{"at":"room {turn}"}}', id=f"call{turn:05}")
        messages.append(Message(role="assistant", content=f"I look into room {turn}.", tool_calls=[call], train=True))
        messages.append(Message(role="tool", content="a box, a door, " * 20, tool_call_id=call.id, name="look"))
    return [*messages, Message(role="assistant", content="It is not here.", train=True)]


def seconds(made: Callable[[], Any], rounds: int = 3) -> float:
    """The least time of some rounds."""
    taken = []
    for _ in range(rounds):
        started = time.perf_counter()
        made()
        taken.append(time.perf_counter() - started)
    return min(taken)


def characters(made: Callable[[], Any]) -> int:
    """How many characters the templates render meanwhile."""
    count, plain = 0, templates.render_template

    def counted(*given: Any) -> str:
        nonlocal count
        text = plain(*given)
        count += len(text)
        return text

    templates.render_template = counted  # type: ignore[assignment]  # only for this measurement
    try:
        made()
    finally:
        templates.render_template = plain
    return count


def measure(name: str, turns: int, tokenizer: Any) -> None:
    """Print a line for each way."""
    messages = conversation(turns)
    plain, render = to_template(messages), renderer(tokenizer)

    def once() -> str:
        text = render(plain, None, False)
        tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return text

    def encode() -> None:
        encode_texts("row", messages, TOOLS, tokenizer)

    whole, one = len(render(plain, None, False)), seconds(once)
    for way, derives in (("derived", True), ("rendered", False)):
        PrefixTexts.derives = derives
        taken = seconds(encode, 3 if derives else 1)
        print(f"{name:22}{turns:6}  {way:10}{taken / one:8.1f}{characters(encode) / whole:14.1f}", flush=True)
    PrefixTexts.derives = True


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, nargs="+", default=[10, 50, 200])
    given = parser.parse_args()
    print(describe("transformers", "jinja2"))
    print(f"{'template':22}{'turns':>6}  {'way':10}{'time':>8}{'characters':>14}")
    tiny = AutoTokenizer.from_pretrained(tiny_model())
    for name in TEMPLATES:
        tokenizer = TEMPLATE_CASES[name]().tokenizer(tiny)
        for turns in given.turns:
            measure(name, turns, tokenizer)


if __name__ == "__main__":
    main()
