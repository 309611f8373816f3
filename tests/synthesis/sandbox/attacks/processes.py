"""Attacks by processes, signals, memory and the kernel's other doors."""

from __future__ import annotations

from tests.synthesis.sandbox.attacks.attack import NO_MEMORY, NOT_PERMITTED, RAW, TIMED_OUT, Attack

PROCESSES = [
    Attack("fork", "import os\n(os.fork() or os._exit(0)) > 0", NOT_PERMITTED, True),
    Attack("fork_bomb", "import os\nwhile True:\n    os.fork()", NOT_PERMITTED),
    Attack("vfork", RAW + "system_call(58)", NOT_PERMITTED),
    Attack("raw_clone", RAW + "system_call(56, 17, 0, 0, 0, 0)", NOT_PERMITTED),
    Attack("clone_into_a_new_user", RAW + "system_call(56, 0x10000000 | 17, 0, 0, 0, 0)", NOT_PERMITTED),
    Attack("clone3", RAW + "system_call(435, ctypes.create_string_buffer(88), 88)", r"OSError: \[Errno 38\]"),
    Attack("execute", "import os\nos.execv('/python/bin/python3', ['python3', '-c', '1'])", NOT_PERMITTED),
    Attack("execute_from_memory", RAW + "system_call(322, 3, b'', None, None, 0x1000)", NOT_PERMITTED),
    Attack("subprocess", "import subprocess\nsubprocess.run(['/bin/true']).returncode == 0", r"\[Errno (1|2)\]", True),
    Attack("shell", "import os\nos.system('true') == 0", r"value: False", True),
    Attack(
        "multiprocessing",
        """
import multiprocessing
worker = multiprocessing.get_context('fork').Process(target=int)
worker.start()
worker.join()
worker.exitcode == 0
""",
        r"\[Errno (1|38)\]|PermissionError",
        True,
    ),
    Attack(
        "thread_bomb",
        """
import threading, time
threading.stack_size(32768)
threads = [threading.Thread(target=time.sleep, args=(3,), daemon=True) for _ in range(200)]
for thread in threads:
    thread.start()
True
""",
        r"RuntimeError: can't start new thread",
        True,
    ),
    Attack("new_namespaces", RAW + "system_call(272, 0x10000000)", NOT_PERMITTED, True),
    Attack("enter_a_namespace", RAW + "system_call(308, 0, 0)", NOT_PERMITTED),
    Attack("trace_the_keeper", RAW + "system_call(101, 16, 1, 0, 0)", NOT_PERMITTED),
    Attack("be_traced", RAW + "system_call(101, 0, 0, 0, 0)", NOT_PERMITTED, True),
    Attack("read_the_keeper", RAW + "system_call(310, 1, 0, 0, 0, 0, 0)", NOT_PERMITTED),
    Attack("write_the_keeper", RAW + "system_call(311, 1, 0, 0, 0, 0, 0)", NOT_PERMITTED),
    Attack("kill_the_keeper", "import os, signal\nos.kill(1, signal.SIGKILL) is None", NOT_PERMITTED),
    Attack("kill_everything", "import os, signal\nos.kill(-1, signal.SIGKILL) is None", NOT_PERMITTED),
    Attack("kill_the_host", "import os, signal\nos.kill(HOST_PID, signal.SIGTERM) is None", NOT_PERMITTED),
    Attack("signal_a_thread", RAW + "system_call(234, 1, 1, 9)", NOT_PERMITTED),
    Attack("signal_by_descriptor", "import os\nos.pidfd_open(1) >= 0", NOT_PERMITTED),
    Attack(
        "host_by_its_socket", "import os, socket\nsocket.socket(fileno=os.dup(3)).getsockopt(1, 77) >= 0", NOT_PERMITTED
    ),
    Attack(
        "process_behind_a_pair_of_sockets",
        "import socket\nsocket.socketpair()[0].getsockopt(socket.SOL_SOCKET, 77) >= 0",
        NOT_PERMITTED,
        True,
    ),
    Attack(
        "credentials_of_the_host",
        "import os, socket\nlen(socket.socket(fileno=os.dup(3)).getsockopt(1, socket.SO_PEERCRED, 12)) > 0",
        NOT_PERMITTED,
    ),
    Attack(
        "credentials_behind_a_pair_of_sockets",
        "import socket\nlen(socket.socketpair()[0].getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)) > 0",
        NOT_PERMITTED,
        True,
    ),
    Attack("signal_by_a_file", "import fcntl, os\nfcntl.fcntl(0, fcntl.F_SETOWN, 1) == 0", NOT_PERMITTED),
    Attack(
        "raise_the_limits",
        """
import resource
resource.setrlimit(resource.RLIMIT_AS, (-1, -1)) is None
""",
        r"PermissionError|not allowed to raise",
    ),
    Attack("become_root", "import os\nos.setuid(0) is None", NOT_PERMITTED),
    Attack("take_capabilities", RAW + "system_call(126, None, None)", NOT_PERMITTED),
    Attack("take_back_the_filter", RAW + "system_call(157, 22, 0, 0, 0, 0)", NOT_PERMITTED),
    Attack("be_dumped", RAW + "system_call(157, 4, 1, 0, 0, 0)", NOT_PERMITTED, True),
    Attack("thread_with_its_own_descriptors", RAW + "system_call(56, 0x10900, 0, 0, 0, 0)", NOT_PERMITTED),
    Attack("thread_with_a_descriptor", RAW + "system_call(56, 0x3D1F00, 0, 0, 0, 0)", NOT_PERMITTED),
    Attack("other_priority", "import os\nos.setpriority(os.PRIO_PROCESS, 0, -20) is None", NOT_PERMITTED),
]

TIME = [
    Attack("endless_loop", "while True:\n    pass", TIMED_OUT, timeout_s=0.5),
    Attack(
        "deaf_loop",
        """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    try:
        while True:
            pass
    except BaseException:
        pass
""",
        TIMED_OUT,
        timeout_s=0.5,
    ),
    Attack("long_sleep", "import time\ntime.sleep(3600)", TIMED_OUT, timeout_s=0.5),
    Attack("loop_in_c", "sum(range(10**15)) > 0", TIMED_OUT, timeout_s=0.5),
    Attack("regular_expression", "import re\nre.match('(a+)+$', 'a' * 60 + 'b') is None", TIMED_OUT, timeout_s=0.5),
]

PROCESSOR = [
    Attack("processor_time", "while True:\n    pass", r"cpu: the interpreter has used up its 1 s"),
    Attack(
        "processor_time_of_threads",
        """
import threading, zlib
data = bytes(10**7)
def burn():
    while True:
        zlib.crc32(data)
for _ in range(8):
    threading.Thread(target=burn, daemon=True).start()
burn()
""",
        r"cpu: the interpreter has used up its 1 s",
    ),
    Attack(
        "deep_recursion",
        """
import sys
sys.setrecursionlimit(10**9)
def dive():
    return dive()
dive()
""",
        r"died: the interpreter was ended by signal 11|memory: |RecursionError|SystemError|cpu: ",
    ),
]
"""In an interpreter that has one second of processor time."""

MEMORY = [
    Attack("one_big_string", "len('a' * 10**10) > 0", NO_MEMORY),
    Attack("growing_list", "data = []\nwhile True:\n    data.append(bytes(10**6))", NO_MEMORY),
    Attack("anonymous_mapping", "import mmap\nlen(mmap.mmap(-1, 2**32)) > 0", r"\[Errno 12\]"),
    Attack("memory_file", "import os\nos.memfd_create('x') >= 0", NOT_PERMITTED, True),
    Attack(
        "posix_shared_memory",
        """
from multiprocessing import shared_memory
shared = shared_memory.SharedMemory(create=True, size=100)
shared.unlink()
True
""",
        r"FileNotFoundError|PermissionError|ImportError",
        True,
    ),
    Attack("system_v_shared_memory", RAW + "system_call(29, 0, 4096, 0o1600)", NOT_PERMITTED),
    Attack("message_queue", RAW + "system_call(240, b'x', 0o102, 0o600, None)", NOT_PERMITTED),
    Attack("locked_memory", RAW + "system_call(149, 0, 0)", NOT_PERMITTED),
    Attack("many_pipes", "import os\npipes = [os.pipe() for _ in range(1000)]\nlen(pipes) == 1000", r"\[Errno 24\]"),
    Attack(
        "bigger_socket_buffers",
        "import socket\nsocket.socketpair()[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**17) is None",
        NOT_PERMITTED,
        True,
    ),
    Attack("bigger_pipes", "import fcntl, os\nfcntl.fcntl(os.pipe()[0], 1031, 2**20) > 0", NOT_PERMITTED, True),
]

KERNEL = [
    Attack("bpf", RAW + "system_call(321, 0, 0, 0)", NOT_PERMITTED),
    Attack(
        "socket_filter",
        """
import ctypes, socket
code = ctypes.create_string_buffer(bytes.fromhex('0600000000000400'))  # return 0x40000: let everything through
program = (1).to_bytes(8, 'little') + ctypes.addressof(code).to_bytes(8, 'little')
socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, 26, program) is None
""",
        NOT_PERMITTED,
        True,
    ),
    Attack("memory_of_a_socket", RAW + "system_call(55, 3, 1, 55, None, None)", NOT_PERMITTED),
    Attack("option_of_another_level", RAW + "system_call(55, 3, 0x100000001, 3, None, None)", NOT_PERMITTED),
    Attack("performance_events", RAW + "system_call(298, 0, 0, 0, 0, 0)", NOT_PERMITTED),
    Attack("key_ring", RAW + "system_call(250, 0, -3, 0, 0, 0)", NOT_PERMITTED),
    Attack("page_faults", RAW + "system_call(323, 0)", NOT_PERMITTED),
    Attack("asynchronous_calls", RAW + "system_call(425, 8, ctypes.create_string_buffer(256))", NOT_PERMITTED),
    Attack("file_events", RAW + "system_call(300, 0, 0)", NOT_PERMITTED),
    Attack("personality", RAW + "system_call(135, 0x0400000)", NOT_PERMITTED, True),
    Attack(
        "calls_of_another_abi",
        RAW + "system_call(0x40000000 + 39)",
        r"died: the interpreter was ended by signal 31|\[Errno (1|38)\]",
    ),
    Attack(
        "calls_of_32_bits",
        """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex('b814000000cd80c3'))  # mov eax, 20 (getpid); int 0x80; ret
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
ctypes.CFUNCTYPE(ctypes.c_int)(address)() > 0
""",
        r"died: the interpreter was ended by signal (31|11)|value: False",
    ),
]
