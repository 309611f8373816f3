"""Attacks on files: what of the host can be read, and what can be changed."""

from __future__ import annotations

from tests.synthesis.sandbox.attacks.attack import (
    NO_SPACE,
    NOT_FOUND,
    NOT_PERMITTED,
    NOTHING,
    RAW,
    READ_ONLY,
    Attack,
)

READING = [
    Attack("password_file", "'root' in open('/etc/passwd').read()", NOT_FOUND, True),
    Attack("shadow_file", "len(open('/etc/shadow').read()) > 0", NOT_FOUND),
    Attack("secret_file", "'gold' in open('SECRET_FILE').read()", NOT_FOUND, True),
    Attack("secret_through_dots", "'gold' in open('/tmp/../tmp/..//' + 'SECRET_FILE').read()", NOT_FOUND, True),
    Attack(
        "secret_relative_to_a_descriptor",
        """
import os
folder = os.open('/', os.O_RDONLY)
'gold' in os.fdopen(os.open('SECRET_FILE'.lstrip('/'), os.O_RDONLY, dir_fd=folder)).read()
""",
        NOT_FOUND,
        True,
    ),
    Attack(
        "symlink_to_the_secret",
        """
import os, tempfile
link = os.path.join(tempfile.mkdtemp(), 'link')
os.symlink('SECRET_FILE', link)
'gold' in open(link).read()
""",
        NOT_FOUND,
        True,
    ),
    Attack("home_folder", "import os\nlen(os.listdir(os.path.expanduser('~'))) > 0", NOT_FOUND),
    Attack("project_source", "import os\nany(name == 'attacks' for name in os.listdir('PROJECT'))", NOT_FOUND, True),
    Attack("installed_packages", "import msgspec\nTrue", r"ModuleNotFoundError", True),
    Attack(
        "packages_beside_the_standard_library",
        """
import glob, os
folders = ['/usr/lib*', '/lib*', os.path.dirname(os.path.dirname(os.__file__))]
any(glob.glob(f'{folder}/*/{kind}-packages/*') for folder in folders for kind in ('site', 'dist'))
""",
        NOTHING,
        True,
    ),
    Attack("environment_of_this_process", "'gold' in open('/proc/self/environ').read()", NOT_FOUND),
    Attack("environment_of_the_host", "'gold' in open('/proc/HOST_PID/environ').read()", NOT_FOUND),
    Attack("environment_of_the_keeper", "len(open('/proc/1/environ').read()) > 0", NOT_FOUND),
    Attack("memory_of_the_keeper", "open('/proc/1/mem', 'rb').readable()", NOT_FOUND),
    Attack("root_of_the_keeper", "import os\n'etc' in os.listdir('/proc/1/root')", NOT_FOUND),
    Attack("kernel_settings", "len(open('/proc/sys/kernel/hostname').read()) > 0", NOT_FOUND, True),
    Attack("devices_in_sys", "import os\nlen(os.listdir('/sys/class')) > 0", NOT_FOUND, True),
    Attack("memory_device", "open('/dev/mem', 'rb').readable()", NOT_FOUND),
    Attack("terminal", "import os\nos.open('/dev/tty', os.O_RDWR) >= 0", NOT_FOUND),
    Attack(
        "environment_variables",
        """
import os
any('gold' in value for value in os.environ.values())
""",
        NOTHING,
        True,
    ),
    Attack("host_name", "import os, socket\nos.uname().nodename == 'HOST_NAME'", NOTHING, True),
    Attack(
        "inherited_descriptors",
        """
import os
def is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
any(is_open(number) for number in range(4, 5000))
""",
        NOTHING,
    ),
    Attack(
        "secret_anywhere_on_disk",
        """
import os
found = []
for folder, _, names in os.walk('/'):
    for name in names:
        if not folder.startswith(('/usr/lib', '/python/lib', '/proc', '/sys')):
            try:
                found.append('gold-answer' in open(os.path.join(folder, name), errors='ignore').read(10**6))
            except OSError:
                pass
any(found)
""",
        NOTHING,
    ),
    Attack("file_handle", RAW + "system_call(304, -100, ctypes.create_string_buffer(128), 0)", NOT_PERMITTED),
]

WRITING = [
    Attack("canary", "open('CANARY', 'w').write('gone') > 0", NOT_FOUND),
    Attack(
        "symlink_to_the_canary",
        """
import os
os.symlink('CANARY', '/tmp/link')
open('/tmp/link', 'w').write('gone') > 0
""",
        NOT_FOUND,
    ),
    Attack("new_file_in_the_root", "open('/x', 'w').write('x') > 0", READ_ONLY),
    Attack("new_folder_in_dev", "import os\nos.mkdir('/dev/x') is None", READ_ONLY),
    Attack("standard_library", "import os\nopen(os.__file__, 'a').write('x') > 0", READ_ONLY),
    Attack(
        "module_for_the_next_session",
        """
import sys
open(sys.path[1] + '/site-packages/usercustomize.py', 'w').write('x') > 0
""",
        r"\[Errno (2|13|30)\]",
    ),
    Attack("system_library", "open('/usr/lib/x.so', 'w').write('x') > 0", READ_ONLY),
    Attack("keeper", "open('/keeper.py', 'r+').write('x') > 0", READ_ONLY),
    Attack("remove_the_keeper", "import os\nos.unlink('/keeper.py') is None", r"\[Errno (1|16|30)\]"),
    Attack(
        "hard_link_to_the_keeper", "import os\nos.link('/keeper.py', '/tmp/keeper.py') is None", r"\[Errno (18|1)\]"
    ),
    Attack("remount_writable", RAW + "system_call(165, None, b'/', None, 32, None)", NOT_PERMITTED),
    Attack(
        "mount_proc", RAW + "os.mkdir('/tmp/p')\nsystem_call(165, b'proc', b'/tmp/p', b'proc', 0, None)", NOT_PERMITTED
    ),
    Attack("unmount", RAW + "system_call(166, b'/tmp', 2)", NOT_PERMITTED),
    Attack("new_mount_interface", RAW + "system_call(428, -100, b'/', 1)", NOT_PERMITTED),
    Attack("change_root", "import os\nos.chroot('/tmp') is None", NOT_PERMITTED),
    Attack("pivot_root", RAW + "system_call(155, b'/', b'/tmp')", NOT_PERMITTED),
    Attack("device_node", "import os\nos.mknod('/tmp/disk', 0o60600, os.makedev(254, 0)) is None", NOT_PERMITTED),
    Attack("change_owner", "import os\nopen('/tmp/x', 'w').close()\nos.chown('/tmp/x', 0, 0) is None", NOT_PERMITTED),
    Attack(
        "fill_one_file",
        """
with open('/tmp/big', 'wb') as file:
    for _ in range(100):
        file.write(bytes(2**20))
True
""",
        NO_SPACE,
    ),
    Attack(
        "fill_many_files",
        """
for number in range(100):
    with open(f'/tmp/{number}', 'wb') as file:
        file.write(bytes(2**20))
True
""",
        NO_SPACE,
    ),
    Attack(
        "many_empty_files",
        """
for number in range(100_000):
    open(f'/tmp/{number}', 'w').close()
True
""",
        NO_SPACE,
    ),
    Attack(
        "very_long_file", "import os\nos.truncate(os.open('/tmp/x', os.O_CREAT | os.O_RDWR), 2**40) is None", NO_SPACE
    ),
]
