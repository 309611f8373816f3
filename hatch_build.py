"""Building a wheel: where ``AGENTMILL_COMPILE=1`` is set, Cython compiles what reads records.

Reading small records is calls of small functions: the interpreter itself is most of its cost. Checkouts, and wheels
built without the variable, hold Python alone and do the same, slower.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILED = (
    "schemas/encoding.py",
    "schemas/ids.py",
    "schemas/formats/arguments.py",
    "schemas/formats/call_reading.py",
    "schemas/formats/chat_tools.py",
    "schemas/formats/conversation.py",
    "schemas/formats/dialects/dialect.py",
    "schemas/formats/dialects/function_xml.py",
    "schemas/formats/dialects/react.py",
    "schemas/formats/format.py",
    "schemas/formats/json_text.py",
    "schemas/formats/links.py",
    "schemas/formats/message_fields.py",
    "schemas/formats/message_reading.py",
    "schemas/formats/openai.py",
    "schemas/formats/sharegpt.py",
    "schemas/formats/sharegpt_turns.py",
    "schemas/formats/wording.py",
    "schemas/profiles/fields.py",
    "schemas/profiles/profile.py",
)
"""Where the time of reading goes: messages, the dialects measured in ``bench_normalize.py``, fields, Arrow.

Annotations are taken as types, but for modules that turn this off in their first line: what they offer may be called by
code whose types nobody checks, or a ``.pxd`` file beside them, which Cython alone reads, has types of C for the same.
"""


class CompiledReaders(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel, beside their sources, which Python then passes over."""

    def dependencies(self) -> list[str]:
        """What has to be there to build."""
        return ["cython>=3.1", "setuptools>=70"] if _wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless a checkout is installed to be worked on: its sources would no longer count."""
        if version == "editable" or not _wanted():
            return
        # Kept until the wheel is made, and gone with the hook, also where compiling fails.
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        for module in _compile(Path(self.root), folder):
            build_data["force_include"][str(module)] = str(module.relative_to(folder / "lib"))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Leave nothing behind."""
        del version, build_data, artifact_path
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def _wanted() -> bool:
    return os.environ.get("AGENTMILL_COMPILE", "0") not in ("", "0")


def _compile(root: Path, folder: Path) -> list[Path]:
    """The compiled modules, in ``folder/lib``. Raises ``RuntimeError`` where there is no compiler."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext
    from setuptools.errors import CompileError

    names = {path: path.removesuffix(".py").replace("/", ".") for path in COMPILED}
    extensions = cythonize(
        [Extension(name, [str(root / path)], extra_compile_args=["-O2", "-g0"]) for path, name in names.items()],
        include_path=[str(root)],
        build_dir=str(folder / "c"),
        quiet=True,
        compiler_directives={"language_level": 3, "annotation_typing": True},
    )
    command = build_ext(Distribution({"name": "agentmill", "ext_modules": extensions}))
    command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "o")
    command.parallel = os.cpu_count()
    command.ensure_finalized()
    try:
        command.run()
    except CompileError as error:
        raise RuntimeError(
            f"AGENTMILL_COMPILE needs a C compiler, such as gcc; unset it to do without: {error}"
        ) from None
    return sorted((folder / "lib").rglob("*.so"))
