"""What the functions of a world read cannot be had without them: attacks on the data behind a page."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import ApiAction
from agentmill.synthesis.environments.interpreter.environment import LIMITS, InterpreterEnvironment
from agentmill.synthesis.environments.interpreter.examples import LEDGER, SUM
from agentmill.synthesis.sandbox import pool

MARK = "zx7-hidden-row"
"""In the last row. Attacks put it together from parts, so that they do not find themselves."""

SOURCE = '''
def page(table, number):
    """Rows of a table, two at a time."""
    return [dict(row) for row in _tables[table][2 * number : 2 * (number + 1)]]

def _whole(table):
    return _tables[table]

def fail(kind):
    raise LookupError(kind) if kind == "known" else Odd(kind)

class Odd(ValueError):
    pass

def count():
    _tables["count"].append(1)
    return len(_tables["count"])

def say(text):
    print("saying", text)
    return {"text": text}
'''
ROWS = [{"id": number, "note": f"row {number}"} for number in range(7)] + [{"id": 7, "note": MARK}]
WORLD: EnvironmentSpec = msgspec.structs.replace(LEDGER, environment_id="interpreter-paged", source=SOURCE)
TASK: Task = msgspec.structs.replace(
    SUM,
    environment_id=WORLD.environment_id,
    initial_state={"names": {"_tables": {"notes": ROWS, "count": []}, "shown": [1, 2]}},
    goal={"answer": MARK},
    gold=[],
)

HUNT = """
import gc, sys
half, other = 'zx7-hid', 'den-row'
mark = half + other
def found(each, depth=4):
    if isinstance(each, (str, bytes)):
        text = each if isinstance(each, str) else each.decode(errors='replace')
        return mark in text and each is not mark
    if depth == 0:
        return False
    if isinstance(each, dict):
        return any(found(part, depth - 1) for pair in list(each.items()) for part in pair)
    if isinstance(each, (list, tuple, set, frozenset)):
        return any(found(part, depth - 1) for part in list(each))
    return False
others = lambda names: {name: value for name, value in dict(names).items() if name not in ('mark', 'found', 'others')}
"""

FORGED = """
import json, os, struct, sys
frame = sys._getframe()
while 'request' not in frame.f_locals:
    frame = frame.f_back
ask = {{'function': {function!r}, 'positional': {positional!r}, 'arguments': {{}}, 'number': 999}}
data = json.dumps({{'id': {identifier}, 'ask': ask}}).encode()
os.write(3, struct.pack('>I', len(data)) + data)
size = struct.unpack('>I', os.read(3, 4))[0]
'zx7-hid' + 'den-row' in os.read(3, size).decode()
"""
IDENTIFIER = "frame.f_locals['request']['id']"

MEMORY = """
import ctypes, os
half, other = b'zx7-hid', b'den-row'
libc = ctypes.CDLL(None, use_errno=True)
def search(start, size, step=65536):
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    held, left = False, b''
    for place in range(start, start + size, step):
        count = libc.write(theirs, ctypes.c_void_p(place), ctypes.c_size_t(step))  # fails where nothing is mapped
        if count > 0:
            data = left + os.read(ours, count)
            at = data.find(half)
            while at >= 0:  # what is looked for is never put together, or it would be found
                held = held or data[at + len(half) : at + len(half) + len(other)] == other
                at = data.find(half, at + 1)
            left = data[-32:]
        else:
            left = b''
    return held
places = sorted({id(each) >> 24 for each in [object(), search, os, 'text', *map(str, range(10000, 20000, 100))]})
any(search(place << 24, 1 << 24) for place in places)
"""

ATTACKS = {
    "globals": HUNT + "found(others(globals()))",
    "hidden_name": "'zx7' + '-hid' in str(_tables)",
    "hidden_function": "'zx7-hid' in str(_whole('notes'))",
    "globals_of_the_function": HUNT + "found(others(page.__globals__))",
    "closure_of_the_function": HUNT
    + "any(found(vars(cell.cell_contents) if hasattr(cell.cell_contents, '__dict__') else cell.cell_contents)"
    " for cell in page.__closure__)",
    "code_of_the_function": HUNT + "found(page.__code__.co_consts) or '_tables' in page.__code__.co_names",
    "source_of_the_function": "import inspect\n'_tables' in inspect.getsource(page)",
    "source_in_linecache": "import linecache\n'_tables' + '[table]' in str(linecache.cache)",
    "garbage_collector": HUNT
    + "any(found(part, 1) for each in gc.get_objects() for part in gc.get_referents(each) if part is not mark)",
    "frames": HUNT
    + """
frame, held = sys._getframe(), False
while frame is not None:
    held = held or found(others(frame.f_locals)) or found(others(frame.f_globals))
    frame = frame.f_back
held
""",
    "frames_of_an_error": HUNT
    + """
def frames(trace):
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next
try:
    page('nothing', 0)
except KeyError as error:
    held = any(found(others(each.f_locals)) or found(others(each.f_globals)) for each in frames(error.__traceback__))
held
""",
    "modules": HUNT + "any(found(others(vars(module)), 6) for module in list(sys.modules.values()))",
    "memory_file": "'zx7-hid' in open('/proc/self/mem', 'rb').read(100).decode()",
    "memory_of_the_other_process": "open('/proc/2/mem', 'rb').readable()",
    "own_memory": MEMORY,
    "files": HUNT
    + """
import os
held = []
for folder, _, names in os.walk('/tmp'):
    held += [mark in open(os.path.join(folder, name), errors='ignore').read() for name in names]
any(held)
""",
    "trace_of_the_call": HUNT
    + """
held = []
def trace(frame, event, argument):
    held.append(found(others(frame.f_locals)))
    return trace
sys.settrace(trace)
try:
    page('notes', 0)
finally:
    sys.settrace(None)
any(held)
""",
    "number_that_becomes_everything": """
class Whole:
    def __rmul__(self, other): return None if not hasattr(self, 'seen') else 10**9
    def __add__(self, other): self.seen = True; return self
    def __index__(self): return 10**9
len(page('notes', Whole())) > 2
""",
    "whole_number_with_other_arithmetic": """
class Number(int):
    def __rmul__(self, other): return 0
    def __add__(self, other): return Big(10**9)
class Big(int):
    def __rmul__(self, other): return 10**9
len(page('notes', Number(0))) > 2
""",
    "negative_page": "len(page('notes', -4)) > 2 or len(page('notes', -1)) > 2",
    "true_page": "len(page('notes', True)) > 2",
    "replaced_table": "page('notes', 0).__class__.__len__ is None or '_tables' in dir()",
    "patched_json": """
import json
json.dumps = lambda value, **options: __import__('builtins').repr(value)
len(page('notes', 0)) > 2
""",
    "forged_call_of_a_hidden_function": FORGED.format(function="_whole", positional=["notes"], identifier=IDENTIFIER),
    "forged_call_of_eval": FORGED.format(function="eval", positional=["str(_tables)"], identifier=IDENTIFIER),
    "forged_call_of_the_listing": FORGED.format(function="_names", positional=[], identifier=IDENTIFIER),
    "forged_call_of_another_request": FORGED.format(function="page", positional=["notes", 3], identifier="'other'"),
    "forged_offer": """
import json, os, struct
data = json.dumps({'id': '0', 'offer': {'_whole': ''}}).encode()
os.write(3, struct.pack('>I', len(data)) + data)
""",
    "forged_request_of_code": """
import json, os, struct, sys
frame = sys._getframe()
while 'request' not in frame.f_locals:
    frame = frame.f_back
data = json.dumps({'id': frame.f_locals['request']['id'], 'code': 'str(_tables)'}).encode()
os.write(3, struct.pack('>I', len(data)) + data)
""",
}


@pytest.fixture
def paged() -> Iterator[InterpreterEnvironment]:
    environment = InterpreterEnvironment(WORLD)
    environment.reset(TASK, 0)
    yield environment
    environment.close()


def seen(environment: InterpreterEnvironment, code: str) -> str:
    transition = environment.step(ApiAction(function="python", kwargs={"code": code}))
    return str(getattr(transition.observation, "content", ""))


@pytest.mark.parametrize("attack", ATTACKS)
def test_hidden_rows_are_only_had_by_reading_pages(attack: str, paged: InterpreterEnvironment) -> None:
    assert seen(paged, "page('notes', 0)[0]") == "{'id': 0, 'note': 'row 0'}"
    told = seen(paged, ATTACKS[attack])
    assert told.splitlines()[-1] != "True", told
    assert MARK not in told
    if not paged._lost:
        assert seen(paged, "len(page('notes', 3))") == "2"


@pytest.mark.parametrize(
    "attack", ["globals", "garbage_collector", "frames", "modules", "own_memory", "source_in_linecache"]
)
def test_an_attack_finds_what_is_in_its_own_session(attack: str) -> None:
    """So that nothing is found because nothing is there."""
    with pool(LIMITS).session() as session:
        assert session.run(SOURCE).ok
        session.run("def keep(tables):\n    global _tables\n    _tables = tables")
        assert session.call("keep", {"tables": {"notes": ROWS}}).ok
        session.run("import sys; sys.kept = _tables; page('notes', 3)")
        assert session.run(ATTACKS[attack]).value is True


def test_all_pages_are_read_in_several_calls(paged: InterpreterEnvironment) -> None:
    read = """
rows, number = [], 0
while page('notes', number):
    rows += page('notes', number=number)
    number += 1
rows
"""
    assert seen(paged, read) == repr(ROWS)
    assert paged.step(ApiAction(function="python", kwargs={"code": "submit(rows[-1]['note'])"})).reward == 1.0


def test_functions_say_what_they_do_print_and_raise_as_if_they_were_here(paged: InterpreterEnvironment) -> None:
    assert seen(paged, "page.__doc__") == repr("page(table, number)\n\nRows of a table, two at a time.")
    assert seen(paged, "print('first')\nsay('x')") == "first\nsaying x\n{'text': 'x'}"
    begun, place, *rest = seen(paged, "page('nothing', 0)").splitlines()
    assert begun == "Traceback (most recent call last):"
    assert re.fullmatch(r'  File "<cell \d>", line 1, in <module>', place)
    assert rest == ["    page('nothing', 0)", "KeyError: 'nothing'"]
    assert seen(paged, "try:\n    fail('known')\nexcept LookupError as error:\n    print(error.args)") == "('known',)"
    assert seen(paged, "try:\n    fail('odd')\nexcept ValueError as error:\n    print(error)") == "Odd: odd"
    assert seen(paged, "page('notes')").endswith("missing 1 required positional argument: 'number'")
    assert seen(paged, "page('notes', {1})").endswith(
        "page() takes plain data only: Object of type set is not JSON serializable"
    )
    assert seen(paged, "shown") == "[1, 2]"


def test_a_thread_that_calls_after_its_cell_is_refused(paged: InterpreterEnvironment) -> None:
    start = """
import threading
go, said = threading.Event(), []
def late():
    go.wait(10)
    import time
    time.sleep(0.1)
    try:
        said.append(page('notes', 3))
    except RuntimeError as error:
        said.append(str(error))
thread = threading.Thread(target=late)
thread.start()
go.set()
"""
    seen(paged, start)
    time.sleep(0.3)
    assert seen(paged, "thread.join(); said") == "['page() can only be called while a cell runs']"


def test_threads_of_a_cell_may_call_at_the_same_time(paged: InterpreterEnvironment) -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as workers:
    pages = list(workers.map(lambda number: page('notes', number % 4), range(40)))
[each[0]['id'] for each in pages] == [2 * (number % 4) for number in range(40)]
"""
    assert seen(paged, code) == "True"


def test_the_world_goes_back_with_the_session(paged: InterpreterEnvironment) -> None:
    assert seen(paged, "count(), count()") == "(1, 2)"
    before, digested = paged.snapshot(), paged.state_digest()
    assert seen(paged, "count()") == "3"
    paged.restore(before)
    assert paged.state_digest() == digested
    assert seen(paged, "count()") == "3"
    assert "is as it was before" in seen(paged, "count()\nimport os\nos._exit(0)")
    assert seen(paged, "count()") == "4"


def test_a_function_that_ends_its_process_undoes_the_cell() -> None:
    spec = msgspec.structs.replace(WORLD, source=SOURCE + "\ndef leave():\n    import os\n    os._exit(3)\n")
    with contextlib.closing(InterpreterEnvironment(spec)) as environment:
        environment.reset(TASK, 0)
        seen(environment, "x = count()")
        assert "is as it was before this code" in seen(environment, "x = 5\nleave()")
        assert seen(environment, "x, count()") == "(1, 2)"


def test_only_listed_functions_are_offered_where_there_is_a_list_and_all_data_are_hidden() -> None:
    parameters: dict[str, Any] = {**WORLD.parameters, "functions": [{"name": "page"}, {"name": "submit"}]}
    spec = msgspec.structs.replace(WORLD, parameters=parameters)
    with contextlib.closing(InterpreterEnvironment(spec)) as environment:
        told = environment.reset(TASK, 0)
        assert "shown" not in str(told.content)
        assert (
            seen(environment, "[name for name in ('page', 'say', 'count', 'shown') if name in globals()]") == "['page']"
        )
        assert seen(environment, "submit(5)").endswith("The answer was handed in.")


def test_functions_are_graded_where_they_call_the_world() -> None:
    goal = {"calls": [{"function": "note", "arguments": {"number": 7}, "value": MARK}]}
    task: Task = msgspec.structs.replace(TASK, goal=goal)
    with contextlib.closing(InterpreterEnvironment(WORLD)) as environment:
        environment.reset(task, 0)
        seen(
            environment,
            "number = count()\ndef note(number):\n    return page('notes', number // 2)[number % 2]['note']",
        )
        assert environment.check().passed
        assert seen(environment, "count()") == "2"  # the judge has a world of its own
