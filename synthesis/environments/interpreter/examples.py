"""Two small interpreter environments, for the conformance checks and as examples of the format."""

from __future__ import annotations

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import ApiAction

LEDGER = EnvironmentSpec(
    environment_id="interpreter-ledger",
    family="interpreter",
    name="ledger",
    source="def page(number):\n    return _entries[3 * number : 3 * number + 3]\n",
    parameters={"rules": "page(number) gives three entries of a ledger, from page 0; then an empty list."},
)

_ENTRIES = [{"name": name, "amount": amount} for name, amount in zip("abcdefg", (5, -2, 7, 1, -9, 4, 3), strict=True)]

_ALL = "rows, number = [], 0\nwhile page(number):\n    rows += page(number)\n    number += 1\nlen(rows)"

SUM = Task(
    task_id="interpreter-ledger-sum",
    environment_id=LEDGER.environment_id,
    instruction="Submit the sum of all amounts above zero in the ledger.",
    initial_state={"names": {"_entries": _ENTRIES}},
    goal={"answer": 20},
    gold=[
        ApiAction(function="python", kwargs={"code": _ALL}),
        ApiAction(function="python", kwargs={"code": "total = sum(max(row['amount'], 0) for row in rows)\ntotal"}),
        ApiAction(function="python", kwargs={"code": "submit(total)"}),
    ],
)

WORDS = EnvironmentSpec(
    environment_id="interpreter-words",
    family="interpreter",
    name="words",
    source="",
    parameters={"rules": "There is nothing but Python."},
)

LONGEST = Task(
    task_id="interpreter-words-longest",
    environment_id=WORDS.environment_id,
    instruction="Define longest(text): the longest word of a text, the first of several. Then call submit().",
    goal={
        "calls": [
            {"function": "longest", "arguments": {"text": "a bee sees"}, "value": "sees"},
            {"function": "longest", "arguments": {"text": "one two"}, "value": "one"},
        ]
    },
    gold=[
        ApiAction(function="python", kwargs={"code": "def longest(text):\n    return max(text.split(), key=len)"}),
        ApiAction(function="python", kwargs={"code": "longest('to be sure')"}),
        ApiAction(function="python", kwargs={"code": "submit()"}),
    ],
)

EXAMPLES = [(LEDGER, SUM), (WORDS, LONGEST)]
