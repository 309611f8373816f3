"""The stable codes of ``UserError``: what tests and scripts may match, where the wording may change."""

from __future__ import annotations

from enum import StrEnum


class ErrorCode(StrEnum):
    """One mistake that a user can make; ``sentence`` says what is wrong. The only list: the reference is made of it.

    A code is never renamed or reused; the same mistake at several places has one code.
    """

    sentence: str

    def __new__(cls, code: str, sentence: str = "") -> ErrorCode:
        """A member whose value is ``code``."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.sentence = sentence
        return member

    # names, keys and values
    UNKNOWN_NAME = "unknown-name", "A name is none of those that are known."
    UNKNOWN_KEY = "unknown-key", "A key is none of those that are known at its place."
    MISSING_KEY = "missing-key", "A key that is required is not given."
    DUPLICATE_KEY = "duplicate-key", "A YAML file has a key twice."
    KEY_NOT_TEXT = "key-not-text", "A key of a YAML file is a number, a date or the like, and not text."
    INVALID_VALUE = "invalid-value", "A value is not of the type, or none of the choices, that its key expects."
    RULE_BROKEN = "rule-broken", "A value, or values that do not go together, break a rule of the configuration."
    VALUE_MALFORMED = "value-malformed", "An option or an environment variable is not written in the form expected."
    NUMBER_OUT_OF_RANGE = "number-out-of-range", "A number is not finite, too large, or outside of its range."
    RANGE_EMPTY = "range-empty", "A range [least, most] holds no number that is possible."
    NAME_MALFORMED = "name-malformed", "A name has other characters than letters, digits, - and _."
    NAME_TAKEN = "name-taken", "A name is taken."
    GIVEN_TWICE = "given-twice", "One thing is given at two places, or twice."
    ARGUMENT_MISSING = "argument-missing", "A command lacks an argument."
    OPTION_NOT_FOR_THIS = "option-not-for-this", "An option of a command does not go with what it is used on."
    KEY_NOT_FOR_THIS = "key-not-for-this", "A key of a recipe or a training does not go with the rest of it."
    NEEDS_ANOTHER_KEY = "needs-another-key", "A key or an operator needs another key, which is not given."
    OVERRIDE_MALFORMED = "override-malformed", "An override is not of the form key=value."

    # files and folders
    NO_SUCH_FILE = "no-such-file", "A file that was named is not there."
    NO_FILE_MATCHES = "no-file-matches", "No data file matches a pattern, or a data set has none."
    SEVERAL_MATCH = "several-match", "Several tables, runs, splits or configurations are meant; name one."
    NOT_A_FILE = "not-a-file", "A folder, a pipe or a device is where a file is expected."
    NOT_A_FOLDER = "not-a-folder", "A file is where a folder is expected."
    NOT_READABLE = "not-readable", "A file cannot be read: the permission is missing, or the device fails."
    NOT_WRITABLE = "not-writable", "A file or folder cannot be written."
    NO_SPACE = "no-space", "The device is full, or has too little space for what is to be written."
    NOT_UTF8 = "not-utf8", "A file is no UTF-8 text."
    NOT_YAML = "not-yaml", "A text is no YAML."
    NOT_A_MAPPING = "not-a-mapping", "A YAML file holds something else than keys and values."
    YAML_TOO_LARGE = "yaml-too-large", "A YAML text is nested too deep, or its aliases expand to too many values."
    LINE_MALFORMED = "line-malformed", "A line of a JSON lines file is not what is expected there."
    FILE_TOO_LARGE = "file-too-large", "A file is larger than such a file may be."
    FILE_NAME_UNSAFE = "file-name-unsafe", "A manifest names a file outside of its table."
    FILE_KIND_UNKNOWN = "file-kind-unknown", "A file is of a kind that is not read."
    KINDS_MIXED = "kinds-mixed", "Files or tables of several kinds are given where one kind is expected."
    FILE_CHANGED = "file-changed", "A file has changed since the run was planned."
    DAMAGED_FILE = "damaged-file", "A file is damaged: what is in it cannot be read as what it is."
    MAY_RUN_CODE = "may-run-code", "A file or model would run code of its own when it is loaded."
    OUTPUT_EXISTS = "output-exists", "What a command would write is there already."
    OUTPUT_NOT_OURS = "output-not-ours", "What a command would replace was not made by agentmill."
    MOUNT_POINT = "mount-point", "A folder that would be replaced is a mount point."
    WRITES_INTO_ITS_INPUT = "writes-into-its-input", "A step would write into the folder of a table of `data`."

    # tables and runs
    TABLE_MISSING = "table-missing", "There is no table at a place."
    TABLE_UNFINISHED = "table-unfinished", "A table has no manifest: its step has not finished."
    INSIDE_A_TABLE = "inside-a-table", "A path is a folder inside a table, and not the table."
    FOLDER_OF_TABLES = "folder-of-tables", "A folder of tables, such as a run, is given where one table is expected."
    NOT_A_TABLE = "not-a-table", "A Parquet file was not written by agentmill."
    FILE_MISSING = "file-missing", "A file that a manifest names is not there."
    MANIFEST_MISMATCH = "manifest-mismatch", "A file has another size, digest or number of rows than in its manifest."
    WRONG_RECORD_TYPE = "wrong-record-type", "A table holds records of another type than is expected."
    SCHEMA_TOO_NEW = "schema-too-new", "A table was written by a newer agentmill."
    SCHEMA_TOO_OLD = "schema-too-old", "A table was written by an agentmill of another major schema version."
    SCHEMA_BROKEN = "schema-broken", "A table breaks the schema of its records, or does not tell its version."
    COLUMN_MISSING = "column-missing", "A table lacks a column."
    NO_RECORDS = "no-records", "A table or file holds no records."
    RECORD_TWICE = "record-twice", "An id is in a table twice, or in two that must not overlap."
    RECORDS_CONFLICT = "records-conflict", "Tables hold different records of one id."
    ANNOTATION_MISSING = "annotation-missing", "A step asks for a verdict, label or value that no table holds."
    SELECTION_OF_STEPS = "selection-of-steps", "A table selects steps where whole trajectories are expected."
    BRANCHES_OF_OTHERS = "branches-of-others", "Branches are given of none of the trajectories that are read."
    BRANCHES_DISTINCT = "branches-distinct", "Branches that repeat what was recorded were dropped, so none can agree."
    ATTEMPT_WITH_TOOLS = "attempt-with-tools", "An attempt that should be without tools has used some."
    SELECTION_OF_OTHERS = "selection-of-others", "A table selects other trajectories or tasks than those that are read."
    ATTEMPTS_OF_OTHERS = "attempts-of-others", "Attempts are given at none of the tasks that are to be measured."
    TASKS_OF_OTHERS = "tasks-of-others", "Tasks are given of none of the environments that are named."
    BRANCHES_UNFIT = "branches-unfit", "Branches were made in a way that does not fit what is found out by them."
    BRANCHES_TOO_SHORT = "branches-too-short", "Branches of one turn are given where whole episodes are expected."
    FIELD_MISSING = "field-missing", "A profile or a quota names a field, or an option, that no record has."
    ORDER_NOT_SORTABLE = "order-not-sortable", "The rows of a record have an order that is neither a number nor a time."
    FORMAT_WITHOUT_PAIRS = "format-without-pairs", "A format has no rows of pairs."
    NOT_A_RUN = "not-a-run", "A folder is not that of a run."
    RUN_IN_USE = "run-in-use", "Another process works in the run."
    RUN_UNFINISHED = "run-unfinished", "A run has not finished, or lacks a table that its summary names."
    TABLE_NOT_OF_RUN = "table-not-of-run", "A run has a table that its summary does not name."
    MADE_DIFFERENTLY = "made-differently", "What is there was made or trained by other settings, code or inputs."
    JOURNAL_UNREADABLE = "journal-unreadable", "What an interrupted step has kept cannot be taken over."
    NOTHING_TO_DO = "nothing-to-do", "A step has no row to work on."
    SPLIT_EMPTY = "split-empty", "No task or environment is in a split that was asked for."
    SHARE_SETS_NONE_ASIDE = "share-sets-none-aside", "A share to hold out comes to nothing."
    DRAWS_EQUAL = "draws-equal", "Several draws at temperature 0 would all be equal."
    REPLAYS_HANG = "replays-hang", "Replays of several environments did not come back."

    # recipes
    STEPS_NESTED = "steps-nested", "`iterate` or `fork` is where it cannot be."
    STEP_NOT_FOR_COMMAND = "step-not-for-command", "A configuration holds other steps than its command runs."
    MODEL_NOT_TRAINED_YET = "model-not-trained-yet", "A step names a model that no step before it trains."
    ACTIONS_NOT_LISTED = "actions-not-listed", "Environments do not list all legal actions to choose from."
    SEVERAL_MISTAKES = "several-mistakes", "The check before a run found different mistakes; each has a line."
    RUNNER_OPTION_MISSING = "runner-option-missing", "A runner needs an option that is not given."
    RUNNER_OPTION_REFUSED = "runner-option-refused", "A runner does not take an option, or not with that value."
    JOB_SERVER_UNREACHABLE = "job-server-unreachable", "The job server of a runner does not answer."

    # what this machine has
    EXTRA_MISSING = "extra-missing", "A package that is needed is not installed; the message says how to install it."
    PROGRAM_MISSING = "program-missing", "A program that is needed is not on the PATH."
    SANDBOX_UNAVAILABLE = "sandbox-unavailable", "Code cannot be run in a sandbox on this machine."
    MEMORY_TOO_SMALL = "memory-too-small", "One episode needs more memory than sandboxes may take together."
    PORT_IN_USE = "port-in-use", "A port is in use, or no port is free."
    GPUS_TOO_FEW = "gpus-too-few", "Model servers, or the processes of a training, do not fit on the GPUs."
    GPU_MISSING = "gpu-missing", "A setting of a training needs a GPU, and PyTorch sees none."
    DEVICE_UNAVAILABLE = "device-unavailable", "A device and a network of a run's own cannot be made on this machine."
    BASELINE_FAILED = "baseline-failed", "A recipe fails before any fault is injected."
    NO_FAULT_POSSIBLE = "no-fault-possible", "No fault of the kinds asked for could be injected."

    # model servers
    KEY_MISSING = "key-missing", "The environment variable of a key or a header is not set."
    ENDPOINT_UNREACHABLE = "endpoint-unreachable", "A model server, or another server, does not answer."
    ENDPOINT_REDIRECTS = "endpoint-redirects", "An endpoint redirects; it is not followed, for the key would go along."
    ENDPOINT_REFUSES = "endpoint-refuses", "An endpoint refuses the key, the account, the model or the request."
    MODEL_NOT_SERVED = "model-not-served", "An endpoint does not serve the model."

    # models and training
    MODEL_MISSING = "model-missing", "There is no model in a folder."
    MODEL_INCOMPLETE = "model-incomplete", "A model folder lacks weights, its tokenizer or other files."
    MODEL_UNREADABLE = "model-unreadable", "A model cannot be loaded."
    MODEL_OF_WRONG_KIND = "model-of-wrong-kind", "A model is of another kind than is expected, such as an adapter."
    MODEL_WITHOUT_TEMPLATE = "model-without-template", "A model has no chat template."
    NOT_AN_ADAPTER = "not-an-adapter", "A folder holds no adapter."
    BASE_MODEL_UNKNOWN = (
        "base-model-unknown",
        "It is not known which model, or which on the Hub, an adapter belongs to.",
    )
    LORA_DIFFERS = "lora-differs", "A training is to go on from an adapter with other matrices than it has."
    BASE_MODEL_DIFFERS = "base-model-differs", "An adapter was trained on another model, or on another revision of it."
    TEMPLATE_INVALID = "template-invalid", "A chat template is empty, or Jinja cannot read it."
    TEMPLATE_TOO_COSTLY = "template-too-costly", "A chat template takes too much time or memory, or ends its process."
    TEMPLATES_DIFFER = "templates-differ", "An adapter would be trained and served with different chat templates."
    NO_TRAINING_TEMPLATE = "no-training-template", "There is no training version of a model's chat template."
    TOKENIZER_MISSING = "tokenizer-missing", "There is no tokenizer in a folder."
    TOKENIZER_UNFIT = "tokenizer-unfit", "A tokenizer lacks something that training needs."
    TOKENIZERS_DIFFER = "tokenizers-differ", "A reference model has another tokenizer than the model."
    MASK_WRONG = "mask-wrong", "The self-test found that the loss mask does not fit the messages to be trained."
    TRL_FIELD_TAKEN = "trl-field-taken", "A field of TRL is given that agentmill sets, or that would have no effect."
    TRAINING_DIVERGED = "training-diverged", "The loss of a training, or its gradients, are no numbers any more."
    TRAINING_UNFINISHED = "training-unfinished", "A training was ended before its last step, by none of its settings."
    TRAINING_MEMORY = "training-memory", "The longest batch of a training needs more memory than there is."
    TRL_REFUSES = "trl-refuses", "TRL refuses the fields that are given of its configuration."
    LOGGER_REFUSES = "logger-refuses", "A logger of `report_to` does not start a run: no account, or no connection."
    PACKING_IMPOSSIBLE = "packing-impossible", "A model cannot mask the rows of a pack from each other."
    PREFIX_SHARING_IMPOSSIBLE = (
        "prefix-sharing-impossible",
        "A model cannot be trained on sequences that share a prefix as one.",
    )
    WEIGHTS_NOT_FOR_LOSS = "weights-not-for-loss", "A loss gives the weights of rows no meaning."
    ROWS_ALL_ALIKE = "rows-all-alike", "All rows have one label or value, so there is nothing to learn."
    ROWS_TOO_FEW = "rows-too-few", "There are fewer rows than a batch takes, or than a step is to keep."
    TOO_MANY_DROPPED = "too-many-dropped", "A training would drop more rows than it may."
    TRAINING_REFUSED = "training-refused", "A training found a mistake, which it has printed."
    DOWNLOAD_FAILED = "download-failed", "A bundled model cannot be downloaded or converted."
    DOWNLOAD_DAMAGED = "download-damaged", "A bundled model has another digest than is expected."

    # the Hugging Face Hub and publishing
    HUB_ADDRESS_MALFORMED = "hub-address-malformed", "A text is no address on the Hub."
    HUB_REPO_MISSING = "hub-repo-missing", "A repository is not on the Hub, or may not be seen."
    HUB_REVISION_MISSING = "hub-revision-missing", "A repository has no such revision."
    HUB_GATED = "hub-gated", "A repository is gated."
    HUB_UNREACHABLE = "hub-unreachable", "The Hub cannot be reached, or HF_HUB_OFFLINE is set."
    HUB_REFUSES = "hub-refuses", "The Hub refuses a request."
    HUB_DATA_UNREADABLE = "hub-data-unreadable", "The files of a data set on the Hub cannot be read."
    CHANGED_MEANWHILE = "changed-meanwhile", "Somebody else has changed a repository while it was published to."
    TOKEN_MISSING = "token-missing", "There is no token for the Hub."
    TOKEN_UNKNOWN = "token-unknown", "The Hub does not know the token."
    TOKEN_MAY_NOT_WRITE = "token-may-not-write", "The token may not write to the repository."
    NOT_PUBLISHABLE = "not-publishable", "A path holds nothing that can be published."
    CHECK_FAILED = "check-failed", "A check of what would be published has failed, such as the search for secrets."
    LICENCE_MISSING = "licence-missing", "No licence is given, and the sources do not tell one."
    LICENCE_DIFFERS = "licence-differs", "A source has another licence than was given for it."
    FILES_OF_OTHERS = "files-of-others", "Publishing would change or remove files that somebody else wrote."
    TABLES_WOULD_GO = "tables-would-go", "Publishing would remove tables or copies that are not published now."
    REPO_IS_PUBLIC = "repo-is-public", "A repository is public already, and was to be private."
