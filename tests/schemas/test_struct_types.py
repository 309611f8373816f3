"""Struct types are looked at once, before threads decode them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from agentmill.schemas.struct_types import prepare_struct_types

ROOT = Path(__file__).resolve().parents[2]

IN_THREADS = """
import sys, threading, types
import msgspec
from agentmill.schemas.struct_types import prepare_struct_types

sys.setswitchinterval(1e-6)
FIELDS = "".join(f"    f{n}: 'list[dict[str, int | None]]' = msgspec.field(default_factory=list)\\n" for n in range(20))
VALUE = {"inner": None}
for _ in range(29):
    VALUE = {"inner": VALUE, "f3": [{"a": 1}]}
for number in range(100):
    module = sys.modules["made"] = types.ModuleType("made")
    module.msgspec = msgspec
    for n in range(30):
        inner = f"S{n - 1}" if n else "None"
        exec(f"class S{n}(msgspec.Struct):\\n    inner: '{inner}'\\n" + FIELDS, module.__dict__)
    prepare_struct_types()
    at_once = threading.Barrier(8)

    def decode():
        at_once.wait()
        msgspec.convert(VALUE, module.S29)

    threads = [threading.Thread(target=decode) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
"""


def test_threads_decode_a_type_at_the_same_time() -> None:
    done = subprocess.run([sys.executable, "-c", IN_THREADS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_type_that_cannot_be_decoded_is_passed_over() -> None:
    class Odd(msgspec.Struct):
        place: Path | bytes

    prepare_struct_types()
    assert msgspec.to_builtins(Odd(b"")) == {"place": ""}
