"""The results of ``proof.py`` as a page: effects with intervals, success of all models, success by groups of tasks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from attempts import Attempt, last_of_each
from pooling import Effect, Kept, Run

from agentmill.pipelines.evaluation import BY
from agentmill.pipelines.recipes.summary import FEW_ENVIRONMENTS, interval, percent
from agentmill.schemas.records.record import JsonObject

NOTES = {
    "proof": "Every run under these seeds is here, whatever the sign.",
    "development": "**No evidence.** Choices may have been made on these seeds; the recipes are then run once under "
    "others.",
    "proof-preview": "**No evidence.** The recipes were run in small.",
    "development-preview": "**No evidence.** The recipes were run in small.",
}
EFFECTS = [
    "recipe",
    "evaluation",
    "split",
    "control",
    "",
    "treatment",
    "",
    "effect",
    "95 %",
    "p",
    "by seed",
    "tasks",
    "unpaired",
    "environments",
]
MODELS = ["evaluation", "split", "model", "success", "95 %", "tasks", "environments", "unscored"]


def page(
    title: str,
    runs: Sequence[Run],
    attempts: Sequence[Attempt],
    kept: Sequence[Kept],
    effects: Sequence[Effect],
    measured: Mapping[str, JsonObject],
) -> str:
    """The whole page, in Markdown; ``measured`` has the measures of each evaluation by its name."""
    lines = [f"# {title}", "", NOTES[title], "", *state_of(runs, attempts, kept), ""]
    if effects:
        lines += ["Success in percent, effects in points. Intervals and p-values are clustered by environment over all"]
        lines += [f"seeds; p-values are not corrected for the {len(effects)} comparisons.", ""]
        lines += [*table(EFFECTS, map(effect_cells, effects)), "", *few_lines(effects)]
    if alone := list(not_compared(effects, measured)):
        lines += [f"Not compared, since no scored task is that of its control, too: {', '.join(alone)}.", ""]
    if measured:
        lines += ["## Models", "", *table(MODELS, model_rows(measured)), ""]
    for name, found in measured.items():
        if any(BY in measures for labels in found.values() for measures in labels.values()):
            lines += [f"## {name}, by groups of tasks", "", *group_table(found), ""]
    return "\n".join(lines).rstrip() + "\n"


def state_of(runs: Sequence[Run], attempts: Sequence[Attempt], kept: Sequence[Kept]) -> Iterator[str]:
    """Which runs are finished, which are not or no longer there, and which recipes were changed between attempts."""
    finished = {(run.seed, run.name) for run in runs if run.finished}
    seeds = sorted({run.seed for run in runs})
    yield f"{len(finished)} finished runs, seeds {', '.join(map(str, seeds)) or 'none'}."
    tried = last_of_each(attempts)
    begun = {key for key, last in tried.items() if not last.finished}
    begun |= {(run.seed, run.name) for run in runs if not run.finished}
    gone = {key for key, last in tried.items() if last.finished} - {(run.seed, run.name) for run in runs}
    unread = finished - {(each.seed, each.name) for each in kept}
    for what, keys in (
        ("Begun and not finished", begun),
        ("Finished, and no longer here", gone),
        ("Finished, and left out since it cannot be read", unread),
    ):
        if keys:
            yield f"{what}: {', '.join(f'{name} (seed {seed})' for seed, name in sorted(keys))}."
    versions: dict[str, set[str]] = defaultdict(set)
    for each in [*attempts, *kept]:
        versions[each.name].add(each.recipe)
    changed = [f"{name} ({len(found)} versions)" for name, found in versions.items() if len(found) > 1]
    if changed:
        yield f"Changed between attempts: {', '.join(changed)}."


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    return [f"| {' | '.join(each)} |" for each in (columns, ["---"] * len(columns), *rows)]


def effect_cells(effect: Effect) -> list[str]:
    """An effect as cells."""
    difference = effect.difference
    return [
        effect.recipe,
        effect.evaluation,
        effect.split,
        effect.control,
        percent(effect.control_success),
        effect.treatment,
        percent(effect.treatment_success),
        f"{100 * difference.value:+.1f}",
        interval(difference.ci95, signed=True),
        f"{difference.p_value:.2g}",
        ", ".join(f"{seed}: {100 * value:+.1f}" for seed, value in effect.by_seed.items()),
        f"{difference.n:,}",
        f"{effect.unpaired:,}",
        str(difference.environments),
    ]


def not_compared(effects: Sequence[Effect], measured: Mapping[str, JsonObject]) -> Iterator[str]:
    """The models of an evaluation of several that are in no effect of their split."""
    known = {
        (f"{each.recipe}/{each.evaluation}", each.split, side)
        for each in effects
        for side in (each.control, each.treatment)
    }
    for name, splits in measured.items():
        for split, labels in splits.items():
            if len(labels) > 1:
                yield from (f"{name} {split} {label}" for label in labels if (name, split, label) not in known)


def few_lines(effects: Sequence[Effect]) -> list[str]:
    """A warning where intervals rest on few environments."""
    few = Counter(
        f"{each.recipe} {each.split}" for each in effects if (each.difference.environments or 0) < FEW_ENVIRONMENTS
    )
    if not few:
        return []
    return [
        f"Fewer than {FEW_ENVIRONMENTS} environments, so these intervals are wide: {', '.join(few)}.",
        "",
    ]


def model_rows(measured: Mapping[str, JsonObject]) -> Iterator[list[str]]:
    """The success of every model."""
    for name, splits in measured.items():
        for split, labels in splits.items():
            for label, found in labels.items():
                shares = [percent(found["success"]), interval(found["ci95"])]
                yield [name, split, label, *shares, *(str(found[each]) for each in ("n", "environments", "unscored"))]


def group_table(splits: JsonObject) -> list[str]:
    """Success by the values of a field, such as the length of the plan, with the number of tasks."""
    rows = [(split, label, found[BY]) for split, labels in splits.items() for label, found in labels.items()]
    named = {(field, value) for *_, groups in rows for field, values in groups.items() for value in values}
    columns = sorted(named, key=lambda each: (each[0], by_number(each[1])))
    return table(
        ["split", "model", *(f"{field} {value}" for field, value in columns)],
        ([split, label, *(group_cell(groups, *column) for column in columns)] for split, label, groups in rows),
    )


def group_cell(groups: JsonObject, field: str, value: str) -> str:
    """The success in a group, and of how many tasks."""
    found = groups[field].get(value)
    return "-" if found is None else f"{percent(found['success'])} of {found['n']}"


def by_number(value: str) -> tuple[int, str]:
    """The order of values: numbers by their size."""
    return (int(value), "") if value.isdecimal() else (10**9, value)
