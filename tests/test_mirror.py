"""The tests of a module are found by its name.

The tests of ``pipelines/engine/journal.py`` are in ``tests/pipelines/engine/test_journal.py``, and in
``test_journal_SOMETHING.py`` beside it if they are many. A package may be tested as a whole: ``schemas/formats/atif``
by ``tests/schemas/formats/test_atif.py``, ``pipelines/chaos`` by ``tests/pipelines/chaos/test_chaos.py``.
"""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
LINES = 80
"""Shorter modules need no tests of their own."""

ELSEWHERE = {
    "schemas": {
        "test_config.py": "config_mistakes",
        "test_errors.py": "error_codes",
        "test_arrow_round_trip.py": "records/manifest records/rows records/task records/trajectory records/verdict",
        "formats/test_sharegpt.py": "formats/pairs",
        "formats/test_steps.py": "profiles/paths profiles/profile",
        "templates/test_process.py": "templates/worker",
        "views/test_pair_view.py": "views/preference",
        "views/test_view.py": "views/conversation views/dialogue views/loss_mask",
        "../pipelines/operators/test_train.py": "training",
        "../trainers/test_validation.py": "monitoring",
        "../trainers/test_argument_loss.py": "templates/argument_values",
        "../trainers/test_trl_config.py": "trl_fields",
        "../trainers/test_chat_template.py": "templates/renderer templates/shielding",
    },
    "synthesis/environments": {
        "babyai/test_environment.py": "babyai/commands babyai/game babyai/sight",
        "codegym/test_environment.py": "codegym/drivers codegym/examples codegym/problem codegym/structure "
        "codegym/workshop",
        "gymnasium_text/test_environment.py": "gymnasium_text/games",
        "interpreter/test_environment.py": "interpreter/goal",
        "pddl/test_environment.py": "pddl/examples pddl/outline pddl/wording",
        "pddl/test_faults.py": "pddl/lint",
        "pddl/test_reader.py": "pddl/domain",
        "toolbox/test_environment.py": "toolbox/calls toolbox/examples toolbox/lint toolbox/structure toolbox/toolbox",
        "toolbox/test_goal.py": "toolbox/changes",
        "../strategies/test_multi_agent_user.py": "toolbox/user",
    },
    "synthesis/generators": {
        "test_admission.py": "pddl_admission trial",
        "test_codegym_procedural.py": "codegym_tasks/generator",
        "test_interpreter_procedural.py": "interpreter_tasks/generator interpreter_tasks/steps",
        "test_pddl_llm.py": "author",
        "test_toolbox_admission.py": "toolbox_probe",
        "test_toolbox_data.py": "toolbox_procedural/draft toolbox_procedural/lifecycle toolbox_procedural/reads "
        "toolbox_procedural/tables toolbox_procedural/vocabulary toolbox_procedural/writes",
        "../../pipelines/operators/test_proposals.py": "task_author",
        "../../pipelines/operators/test_spec_env.py": "inspirations",
    },
    "synthesis": {
        "policies/test_openai.py": "policies/model_client policies/policy",
        "sandbox/test_attacks.py": "sandbox/bubblewrap sandbox/inside sandbox/syscalls",
        "verifiers/test_unit_tests.py": "verifiers/unit_test_runner",
        "sandbox/test_session.py": "sandbox/backend sandbox/container sandbox/limits sandbox/pool",
        "strategies/test_sample.py": "rollouts/episode rollouts/llm_calls rollouts/parameters",
        "strategies/test_multi_agent.py": "rollouts/turn_taking",
        "strategies/test_simulated_episodes.py": "strategies/simulated_env",
        "strategies/test_tree_search.py": "strategies/search/search strategies/search/tree",
        "strategies/test_tree_search_limits.py": "rollouts/call_budget",
    },
    "pipelines": {
        "chaos/test_chaos.py": "cli/chaos",
        "cli/test_stages.py": "operators/make_table operators/run_context",
        "cli/test_tables.py": "cli/check cli/export cli/inspect cli/train operators/export runs/tables "
        "tables/inspection",
        "engine/test_progress.py": "terminal/progress",
        "engine/test_run.py": "engine/execute engine/operation engine/provenance engine/transform",
        "engine/test_runner.py": "engine/errors",
        "engine/test_window.py": "engine/async_dofn engine/shard",
        "operators/test_annotations.py": "operators/step_estimates",
        "operators/test_diagnose.py": "diagnosis",
        "operators/test_evaluate.py": "operators/agent",
        "operators/test_proposals.py": "operators/task_seeds",
        "operators/test_mix.py": "operators/quotas operators/row_texts",
        "operators/test_first_error.py": "operators/error_search",
        "operators/test_operator.py": "operators/registry",
        "operators/test_propose.py": "operators/admit operators/environment_tasks operators/evolve",
        "operators/test_rollout_multi_agent.py": "operators/multi_agent",
        "operators/test_rollout_tree_search.py": "operators/tree_search",
        "operators/test_select_diverse.py": "operators/diverse_pool",
        "operators/test_selection.py": "operators/filter",
        "operators/test_split.py": "operators/split_groups",
        "test_quality.py": "operators/quality",
        "publish/test_card.py": "publish/facts publish/scan publish/text_columns",
        "publish/test_push.py": "publish/difference",
        "recipes/test_plan.py": "recipes/grammar recipes/known_models recipes/known_tables",
        "report/test_page.py": "report/charts report/drawing report/recipe_graph report/stages",
        "report/test_tallies.py": "report/contents",
        "serving/test_models.py": "serving/model_folders serving/server_config serving/vllm_command",
        "serving/test_servers.py": "processes/identity processes/supervise serving/server_process",
        "sources/test_reading.py": "sources/files sources/planning",
        "view/test_build.py": "view/annotations view/js_shards view/runs view/sources",
    },
}
"""Folder, file of tests, and the modules that it tests without having their name. All paths are below the folder."""

MODULES = [path for room in ("schemas", "synthesis", "pipelines") for path in sorted((ROOT / room).rglob("*.py"))]
"""Without the trainers, whose modules are still to be renamed."""


def is_named(folder: Path, name: str) -> bool:
    """Whether the folder of tests has a file for ``name``."""
    return (folder / f"test_{name}.py").is_file() or any(folder.glob(f"test_{name}_*.py"))


def is_mirrored(module: Path) -> bool:
    """Whether the module, or its package as a whole, has tests by its name."""
    package = TESTS / module.parent.relative_to(ROOT)
    if module.stem == "__init__":
        return is_named(package.parent, package.name)
    as_a_whole = package.parent != TESTS and (is_named(package.parent, package.name) or is_named(package, package.name))
    return is_named(package, module.stem) or as_a_whole


def exceptions() -> dict[Path, Path]:
    """Modules in the table, with their tests."""
    return {
        ROOT / folder / f"{name}.py": (TESTS / folder / file).resolve()
        for folder, files in ELSEWHERE.items()
        for file, names in files.items()
        for name in names.split()
    }


def has_behaviour(module: Path) -> bool:
    return "data" not in module.parts and len(module.read_text().splitlines()) >= LINES


def test_every_module_has_tests_by_its_name() -> None:
    elsewhere = exceptions()
    missing = [
        str(module.relative_to(ROOT))
        for module in MODULES
        if has_behaviour(module) and not is_mirrored(module) and module not in elsewhere
    ]
    assert missing == []


def test_exceptions_are_needed_and_name_tests() -> None:
    wrong = [
        str(module.relative_to(ROOT))
        for module, tests in exceptions().items()
        if not (module.is_file() and tests.is_file() and has_behaviour(module) and not is_mirrored(module))
    ]
    assert wrong == []


def test_folders_of_tests_are_those_of_the_packages() -> None:
    apart = {Path(), Path("golden"), Path("recipes")}
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")} - apart
    assert [str(folder) for folder in folders if not (ROOT / folder).is_dir()] == []
