"""Attacks by the network, and on the harness: its answers, its memory, its trust."""

from __future__ import annotations

from tests.synthesis.sandbox.attacks.attack import NOT_PERMITTED, NOTHING, RAW, Attack

NETWORK = [
    Attack(
        "connect_to_the_host",
        "import socket\nsocket.create_connection(('127.0.0.1', PORT), 2) is not None",
        NOT_PERMITTED,
        True,
    ),
    Attack("connect_by_ipv6", "import socket\nsocket.socket(socket.AF_INET6).fileno() > 0", NOT_PERMITTED),
    Attack(
        "datagram",
        "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('1.1.1.1', 53)) > 0",
        NOT_PERMITTED,
    ),
    Attack(
        "resolve_a_name", "import socket\nlen(socket.getaddrinfo('example.com', 80)) > 0", r"gaierror|PermissionError"
    ),
    Attack(
        "fetch_a_page",
        "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:PORT', timeout=2) is not None",
        r"URLError|PermissionError",
    ),
    Attack("listen", "import socket\nsocket.create_server(('127.0.0.1', 0)) is not None", NOT_PERMITTED, True),
    Attack(
        "unix_socket", "import socket\nsocket.socket(socket.AF_UNIX).connect('LISTENER') is None", NOT_PERMITTED, True
    ),
    Attack("abstract_socket", "import socket\nsocket.socket(socket.AF_UNIX).bind('\\0x') is None", NOT_PERMITTED),
    Attack(
        "kernel_socket",
        "import socket\nsocket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).fileno() > 0",
        NOT_PERMITTED,
        True,
    ),
    Attack(
        "raw_socket", "import socket\nsocket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).fileno() > 0", NOT_PERMITTED
    ),
    Attack("socket_to_the_hypervisor", RAW + "system_call(41, 40, 1, 0)", NOT_PERMITTED),
    Attack("pair_of_another_family", RAW + "system_call(53, 2, 1, 0, ctypes.create_string_buffer(8))", NOT_PERMITTED),
    Attack(
        "pass_a_descriptor",
        "import socket\npair = socket.socketpair()\nsocket.send_fds(pair[0], [b'x'], [0]) > 0",
        NOT_PERMITTED,
        True,
    ),
    Attack("address_of_a_datagram", RAW + "system_call(44, 3, b'x', 1, 0, b'\\0' * 16, 16)", NOT_PERMITTED),
]

PROTOCOL = [
    Attack(
        "answer_with_a_wrong_id",
        """
import os, struct
frame = b'{"id":"0","value":true}'
os.write(3, struct.pack('>I', len(frame)) + frame)
""",
        r"protocol: ",
    ),
    Attack(
        "answer_without_end",
        "import os, struct\nos.write(3, struct.pack('>I', 100)) and None\nimport time; time.sleep(60)",
        r"timeout: ",
        timeout_s=0.5,
    ),
    Attack("announce_a_gigabyte", "import os, struct\nos.write(3, struct.pack('>I', 2**30))", r"too_large: "),
    Attack("flood_the_host", "import os\nwhile True:\n    os.write(3, b'\\xff' * 65536)", r"too_large: "),
    Attack("answer_no_json", "import os, struct\nos.write(3, struct.pack('>I', 3) + b'{{{')", r"protocol: "),
    Attack(
        "answer_a_pickle",
        "import os, struct\nos.write(3, struct.pack('>I', 8) + b'\\x80\\x04K\\x01.   ')",
        r"protocol: ",
    ),
    Attack(
        "answer_deep_json", "import os, struct\nos.write(3, struct.pack('>I', 10**6) + b'[' * 10**6)", r"protocol: "
    ),
    Attack(
        "answer_unknown_fields",
        """
import json, os, struct, sys
frame = sys._getframe()
while 'request' not in frame.f_locals:
    frame = frame.f_back
request = frame.f_locals['request']
frame = json.dumps({'id': request['id'], 'value': 1, 'passed': True}).encode()
os.write(3, struct.pack('>I', len(frame)) + frame)
""",
        r"protocol: ",
    ),
    Attack(
        "answer_with_a_reason_of_the_host",
        """
import json, os, struct, sys
frame = sys._getframe()
while 'request' not in frame.f_locals:
    frame = frame.f_back
request = frame.f_locals['request']
frame = json.dumps({'id': request['id'], 'reason': 'timeout'}).encode()
os.write(3, struct.pack('>I', len(frame)) + frame)
""",
        r"protocol: ",
    ),
    Attack(
        "answer_a_nested_value",
        """
import os, struct, sys
frame = sys._getframe()
while 'request' not in frame.f_locals:
    frame = frame.f_back
body = ('{"id":"' + frame.f_locals['request']['id'] + '","value":' + '[' * 500 + ']' * 500 + '}').encode()
os.write(3, struct.pack('>I', len(body)) + body)
""",
        r"protocol: ",
    ),
    Attack("close_the_channel", "import os\nos.close(3)", r"died: "),
    Attack(
        "close_the_channel_and_stay",
        "import os, time\nos.close(3)\ntime.sleep(60)",
        r"died: .* signal 9",
        timeout_s=2.0,
    ),
    Attack("leave", "import os\nos._exit(0)", r"died: the interpreter ended itself with code 0"),
    Attack("leave_politely", "import sys\nsys.exit(0)", r"exception: (?s:.)*SystemExit"),
    Attack("interrupt", "raise KeyboardInterrupt", r"exception: (?s:.)*KeyboardInterrupt"),
    Attack("giant_output", "print('a' * 10**7)\n1", r"value: 1"),
    Attack("endless_output", "while True:\n    print('a' * 10**5)", r"timeout: ", timeout_s=0.5),
    Attack("giant_value", "list(range(10**6))", r"value: None"),
    Attack(
        "giant_representation", "class A:\n    def __repr__(self):\n        return 'a' * 10**8\nA()", r"value: None"
    ),
    Attack("giant_number", "10**4000", r"value: 10{4000}$"),
    Attack("number_of_too_many_digits", "10**5000", r"exception: ValueError: Exceeds the limit \(4300 digits\)"),
    Attack("half_a_character", "print('\\ud800')\n'\\udfff'", r"value: (None|'\?')"),
    Attack("no_number", "[float('nan'), float('inf')]", r"value: None"),
    Attack(
        "exception_that_cannot_be_shown",
        """
class Bad(Exception):
    def __str__(self):
        raise SystemError
raise Bad
""",
        r"exception: ",
    ),
    Attack("exception_with_a_giant_text", "raise ValueError('a' * 10**8)", r"exception: "),
]

HARNESS = [
    Attack(
        "secret_in_memory",
        """
import gc
def text_of(each):
    return each if isinstance(each, str) else ''
needle = 'gold-' + 'answer'
any(needle in text_of(x) and x is not needle and 'needle' not in x
    for part in gc.get_objects() for x in gc.get_referents(part))
""",
        NOTHING,
    ),
    Attack(
        "memory_of_the_host",
        "import ctypes\nctypes.string_at(HOST_ADDRESS, 18) == b'gold-' + b'answer-73f1c2'",
        r"died: the interpreter was ended by signal 11",
    ),
    Attack(
        "settings_of_the_keeper",
        """
import sys
frame, found = sys._getframe(), []
while frame is not None:
    found += [name for name in frame.f_locals if name in ('control', 'gold', 'task')]
    frame = frame.f_back
import os
def is_open(control):
    try:
        os.fstat(control.fileno())
        return os.write(control.fileno(), b'x') > 0
    except OSError:
        return False
frame = sys._getframe()
while 'control' not in frame.f_locals:
    frame = frame.f_back
is_open(frame.f_locals['control'])
""",
        NOTHING,
    ),
    Attack(
        "patched_json",
        """
import json
json.dumps = lambda *arguments, **options: '{"id": "0"}'
True
""",
        r"protocol: ",
    ),
    Attack(
        "patched_answer",
        """
import sys
frame = sys._getframe()
while frame.f_back is not None:
    frame = frame.f_back
frame.f_globals.update(dict.fromkeys(["cut", "plain"], lambda *arguments: 'forged' * 10**5))
1
""",
        r"too_large: ",
    ),
    Attack("null_pointer", "import ctypes\nctypes.string_at(0)", r"died: the interpreter was ended by signal 11"),
    Attack("abort", "import os\nos.abort()", r"died: the interpreter was ended by signal (6|11)"),
    Attack(
        "object_that_reduces",
        """
class Bomb:
    def __reduce__(self):
        return (eval, ('1',))
Bomb()
""",
        r"value: None",
    ),
    Attack(
        "trace_function",
        "import sys\nsys.settrace(lambda *arguments: 1 / 0)\n1",
        r"exception: (?s:.)*<cell 1>(?s:.)*ZeroDivisionError",
    ),
    Attack(
        "alarm_after_the_answer",
        "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\nwhile True:\n    pass",
        r"died: the interpreter was ended by signal 14",
    ),
]
