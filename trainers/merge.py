"""A whole model out of a LoRA adapter: ``python -m agentmill.trainers.merge ADAPTER --out FOLDER [--base MODEL]``.

Exit codes: 0 done, 2 a mistake to correct, 130 interrupted; nothing is left at FOLDER unless it is whole.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from agentmill.trainers.command import exit_code_of, prepare_environment, say

if __name__ == "__main__":
    prepare_environment()

from transformers import AutoTokenizer
from transformers.utils import logging

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.trainers.adapters import adapter_folder, adapter_task, base_of, load_merged
from agentmill.trainers.chat_template import WILL_STOP, stop_behind_turns
from agentmill.trainers.data import ROWS_SEEN
from agentmill.trainers.model_io import load_errors, save_whole
from agentmill.trainers.run_dir import RECORD, space_errors

CARD = "README.md"
PEFT, WHOLE = "library_name: peft", "library_name: transformers"
"""A line of the model card, by the kind of folder."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m agentmill.trainers.merge", description="A whole model out of an adapter."
    )
    parser.add_argument("adapter", type=Path, help="folder of the adapter, or ORG/NAME[@REVISION] on the Hub")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the model to")
    parser.add_argument("--base", help="the model it was trained on; by default the one in its training.json")
    parser.add_argument("--trust-remote-code", action="store_true", help="run the code that the model's folder brings")
    given = parser.parse_args(argv)
    return exit_code_of(
        lambda: merge(given.adapter, given.out, given.base, given.trust_remote_code), "interrupted; nothing was written"
    )


def merge(adapter: Path, output: Path, base: str | None, trusted: bool = False) -> None:
    """Write the model; ``trusted``: its own code may run.

    Raises ``UserError`` if there is no adapter, its base is not the one, a file is damaged, or ``output`` exists.
    """
    adapter = adapter_folder(str(adapter)) or adapter
    task = adapter_task(adapter)
    folder = base_of(adapter, base)
    if output.exists():
        raise UserError(f"{output} exists already; choose another --out", ErrorCode.OUTPUT_EXISTS)

    logging.disable_progress_bar()
    say(f"adding {adapter} to {folder}")
    output.absolute().parent.mkdir(parents=True, exist_ok=True)
    # In the folder of the output, so that the rename stays on one file system.
    with space_errors(output), tempfile.TemporaryDirectory(dir=output.absolute().parent, prefix=".merge-") as work:
        made = Path(work) / "model"
        # The adapter's tokenizer may have another chat template; adapters of others may have no tokenizer at all.
        source = adapter if (adapter / "tokenizer_config.json").exists() else folder
        with load_errors(source):
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trusted)
        merged = load_merged(folder, adapter, task, trusted)
        if task == "CAUSAL_LM" and tokenizer.chat_template and (token := stop_behind_turns(merged, tokenizer)):
            say(WILL_STOP.format(token=token))
        save_whole(merged, tokenizer, folder, made)
        if (adapter / RECORD).is_file():
            for name in (RECORD, ROWS_SEEN):
                if (adapter / name).is_file():
                    shutil.copy2(adapter / name, made)
            # An adapter that was downloaded has none: it is no file of a model.
            if (adapter / CARD).is_file():
                card = (adapter / CARD).read_text(encoding="utf-8")
                # The Hub reads from this line how the folder is loaded.
                (made / CARD).write_text(card.replace(PEFT, WHOLE, 1), encoding="utf-8")
        made.rename(output)
    say(f"the model is in {output}")


if __name__ == "__main__":
    sys.exit(main())
