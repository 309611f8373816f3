"""The sections on what the tables of a run hold: how hard tasks are, how long episodes are, how often they succeed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from agentmill.pipelines.calibration import Calibration, calibration_text, kappa_text, percent_text
from agentmill.pipelines.diagnosis import COLUMNS, diagnosis_rows
from agentmill.pipelines.recipes.summary import Row, percent
from agentmill.pipelines.report import charts
from agentmill.pipelines.report.charts import Share
from agentmill.pipelines.report.drawing import Picture, Section, Sheet
from agentmill.pipelines.report.tallies import (
    LEVELS,
    STATUSES,
    Episodes,
    Judged,
    Statuses,
    Tasks,
    elsewhere,
    names_of,
    total,
)
from agentmill.pipelines.runs.run import Run, Stage
from agentmill.pipelines.view.sources import Source

MOST_PANELS = 6
MOST_COLUMNS = 8
MOST_ENVIRONMENTS = 12
OTHERS = "all others"


class Spread(msgspec.Struct, frozen=True):
    """How whole numbers are spread; the median is one of them."""

    n: int
    least: int
    median: int
    mean: float
    most: int


def tasks_section(found: Sequence[Tasks]) -> Section:
    """Difficulty and plan length of the tasks of each table."""
    if not any(sum(each.levels.values()) for each in found):
        return Section(anchor="tasks", title="Tasks", words=["This run has made no tasks."])
    rows: list[Row] = []
    for each in found:
        plans = spread({plan: n for plan, n in each.plans.items() if plan is not None})
        statistics = [None] * 4 if plans is None else [plans.least, plans.median, round(plans.mean, 2), plans.most]
        rows.append([each.name, sum(each.levels.values()), each.levels[None], *statistics])
    columns = ["table", "tasks", "without a difficulty", "shortest plan", "median plan", "mean plan", "longest plan"]
    levels = {each.name: {bin_ / LEVELS: n for bin_, n in each.levels.items() if bin_ is not None} for each in found}
    plans_of = {each.name: {plan: n for plan, n in each.plans.items() if plan is not None} for each in found}
    pictures = [
        *histograms("Difficulty of tasks", levels, 1 / LEVELS, "level of difficulty, 0 to 1; height: tasks"),
        *whole_histograms("Length of the plans that solve the tasks", plans_of, "actions; height: tasks"),
    ]
    words = ["A level orders the tasks of one family of environments; levels of different families do not compare."]
    return Section(
        anchor="tasks", title="Tasks", words=words, pictures=pictures, sheets=[Sheet("Tasks", columns, rows)]
    )


def lengths_section(found: Sequence[Episodes]) -> Section:
    """How many turns the trajectories of each table have."""
    turns = {each.name.removesuffix("/trajectories"): each.turns for each in found}
    spreads = {name: spread(counts) for name, counts in turns.items()}
    rows: list[Row] = [
        [name, each.n, each.least, each.median, round(each.mean, 2), each.most]
        for name, each in spreads.items()
        if each is not None
    ]
    if not rows:
        return Section(anchor="lengths", title="Length of trajectories", words=["This run has made no trajectories."])
    columns = ["table", "trajectories", "fewest turns", "median", "mean", "most turns"]
    pictures = whole_histograms("Turns of the agent", turns, "turns; height: trajectories")
    return Section(
        anchor="lengths",
        title="Length of trajectories",
        pictures=pictures,
        sheets=[Sheet("Turns of the agent in each trajectory", columns, rows)],
    )


def success_section(run: Run, found: Sequence[Episodes], judgements: Sequence[Judged]) -> Section:
    """Success by environment and by round, and what verdicts say."""
    audits = {stage.name: stage.calibration for stage in run.stages if stage.calibration is not None}
    sheets = [verdict_sheet(judgements, list(audits.values()))] if any(each.verdicts for each in judgements) else []
    sheets += calibration_sheets(audits)
    sheets += diagnosis_sheets(run)
    known = [each for each in found if each.statuses["success"] + each.statuses["failure"]]
    words = [
        "Success as the environment reported it at the end; shares are of those whose outcome is known. "
        "Trajectories of one task are counted one by one, so no intervals are given here."
    ]
    if not known:
        words = ["This run has no trajectory whose outcome is known."]
        return Section(anchor="success", title="Success", words=words, sheets=sheets)
    groups = grouped(known)
    environments = [each for each in (*run.tables, *elsewhere(run)) if each.record == "EnvironmentSpec"]
    names = names_of(environments, most_played(groups))
    table = by_environment(groups, names)
    rows = [row for group, environments in table.items() for row in status_rows(group, environments)]
    columns = ["trajectories", "environment", "n", *STATUSES, "share of success"]
    sheets = [*round_sheets(known), Sheet("Success by environment", columns, rows), *sheets]
    pictures = [*matrices(table), *round_pictures(known)]
    return Section(anchor="success", title="Success", words=words, pictures=pictures, sheets=sheets)


def grouped(found: Iterable[Episodes]) -> dict[str, dict[str | None, Statuses]]:
    """Group, then environment, then outcomes, all rounds together."""
    groups: dict[str, dict[str | None, Statuses]] = {}
    for each in found:
        group = groups.setdefault(each.group, {})
        for environment, statuses in each.environments.items():
            group.setdefault(environment, Counter()).update(statuses)
    return groups


def most_played(groups: Mapping[str, Mapping[str | None, Statuses]]) -> list[str]:
    """The ids of the environments with most trajectories."""
    played: Counter[str] = Counter()
    for group in groups.values():
        played.update({name: statuses.total() for name, statuses in group.items() if name is not None})
    # By id where numbers are equal, so that the same run gives the same page.
    ordered = sorted(played, key=lambda name: (-played[name], name))
    return ordered[:MOST_ENVIRONMENTS]


def by_environment(
    groups: Mapping[str, Mapping[str | None, Statuses]], names: Mapping[str, str]
) -> dict[str, dict[str, Statuses]]:
    """The same under the ``names`` of environments; those without a name together."""
    found: dict[str, dict[str, Statuses]] = {}
    for group, environments in groups.items():
        left = total(statuses for environment, statuses in environments.items() if environment not in names)
        found[group] = {shown: environments[each] for each, shown in names.items() if each in environments}
        if left:
            found[group][OTHERS] = left + found[group].get(OTHERS, Counter())
    return found


def share(statuses: Statuses) -> float | None:
    """The share of success among known outcomes."""
    known = statuses["success"] + statuses["failure"]
    return statuses["success"] / known if known else None


def status_rows(group: str, environments: Mapping[str, Statuses]) -> list[Row]:
    """Rows of the table of success."""
    return [
        [group, name, statuses.total(), *(statuses[status] for status in STATUSES), percent(share(statuses))]
        for name, statuses in environments.items()
    ]


def matrices(table: Mapping[str, Mapping[str, Statuses]]) -> list[Picture]:
    """Success by environment and group as pictures."""
    rows = list(dict.fromkeys(name for environments in table.values() for name in environments))
    rows.sort(key=lambda name: name == OTHERS)
    pictures = []
    for start in range(0, len(table), MOST_COLUMNS):
        columns = list(table)[start : start + MOST_COLUMNS]
        shares = [[share(table[group].get(name, Counter())) for group in columns] for name in rows]
        alt = f"A matrix: {len(rows)} environments by {len(columns)} tables of trajectories; numbers as in the table."
        pictures.append(charts.matrix(rows, columns, shares).picture("Success in percent by environment", alt))
    return pictures


def in_rounds(found: Iterable[Episodes]) -> dict[str, dict[int, Statuses]]:
    """Group, then round, then outcomes, of groups with more than one round."""
    rounds: dict[str, dict[int, Statuses]] = {}
    for each in found:
        rounds.setdefault(each.group, {}).setdefault(each.round, Counter()).update(each.statuses)
    return {group: found for group, found in rounds.items() if len(found) > 1}


def round_sheets(found: Iterable[Episodes]) -> list[Sheet]:
    """Success by round as a table, if there are rounds."""
    rows: list[Row] = [
        [group, round_, statuses.total(), *(statuses[status] for status in STATUSES), percent(share(statuses))]
        for group, rounds in in_rounds(found).items()
        for round_, statuses in rounds.items()
    ]
    columns = ["trajectories", "round", "n", *STATUSES, "share of success"]
    return [Sheet("Success by round", columns, rows)] if rows else []


def round_pictures(found: Iterable[Episodes]) -> list[Picture]:
    """Success by round as a picture, if there are rounds."""
    lines = {
        group: {
            round_: Share(group, value, None) for round_, each in rounds.items() if (value := share(each)) is not None
        }
        for group, rounds in in_rounds(found).items()
    }
    if not lines:
        return []
    alt = "Lines of success over rounds, one for each table of trajectories; numbers as in the table."
    return [charts.courses(lines).picture("Success by round", alt)]


def verdict_sheet(judgements: Sequence[Judged], calibrations: Sequence[Calibration]) -> Sheet:
    """The verdicts of each table by name; with those of judges whether, and how well, these are calibrated."""
    rows: list[Row] = []
    texts: list[str | None] = []
    for each in judgements:
        for name, of_step in dict.fromkeys((key[0], key[1]) for key in sorted(each.verdicts, key=str)):
            mine = {key[2:]: n for key, n in each.verdicts.items() if key[:2] == (name, of_step)}
            scored = [mine.get(("scored", passed), 0) for passed in (True, False, None)]
            others = [sum(n for key, n in mine.items() if key[0] == status) for status in ("unscored", "error")]
            rows.append([each.name, name, "steps" if of_step else "trajectories", *scored, *others])
            texts.append(None if of_step else calibration_text(name, each.judges.get(name, ()), calibrations))
    columns = ["table", "verdict", "of", "passed", "failed", "scored only", "unscored", "error"]
    if any(texts):
        columns.append("calibration")
        rows = [[*row, text] for row, text in zip(rows, texts, strict=True)]
    return Sheet("Verdicts", columns, rows)


def calibration_sheets(audits: Mapping[str, Calibration]) -> list[Sheet]:
    """Each audit of a judge in a row, if there are any; of pairs the reference is named first."""
    columns = ["audit", "verdict", "reference", "pairs", "agreement", "kappa", "false positives", "false negatives"]
    cells = ["passed, passed", "passed, failed", "failed, passed", "failed, failed"]
    rows: list[Row] = [
        [
            name,
            each.name,
            each.reference_name,
            each.n,
            percent_text(each.agreement),
            kappa_text(each.kappa),
            percent_text(each.false_positive_rate),
            percent_text(each.false_negative_rate),
            *each.confusion.cells,
        ]
        for name, each in audits.items()
    ]
    return [Sheet("Audits of judges (pairs: reference, judge)", [*columns, *cells], rows)] if rows else []


def diagnosis_sheets(run: Run) -> list[Sheet]:
    """Success and failures by skill, difficulty or environment, of each diagnosis that the run made."""
    made = [(stage.name, each) for stage in run.stages if stage.step.operator == "diagnose" for each in stage.manifests]
    rows = [row for name, manifest in made for row in diagnosis_rows(name, manifest)]
    return [Sheet("Diagnoses (attempts count as independent)", COLUMNS, rows)] if rows else []


def spread(counts: Mapping[int, int]) -> Spread | None:
    """The spread of counted numbers, if there are any."""
    n = sum(counts.values())
    if not n:
        return None
    below, median = 0, 0
    for value in sorted(counts):
        below += counts[value]
        if 2 * below >= n:
            median = value
            break
    return Spread(n, min(counts), median, sum(value * times for value, times in counts.items()) / n, max(counts))


def histograms(caption: str, panels: Mapping[str, Mapping[float, int]], width: float, unit: str) -> list[Picture]:
    """Histograms of the tables that have something to show, some to a picture."""
    shown = [(name, counts) for name, counts in panels.items() if counts]
    pictures = []
    for start in range(0, len(shown), MOST_PANELS):
        some = dict(shown[start : start + MOST_PANELS])
        alt = f"Histograms, {unit}, of {', '.join(some)}."
        pictures.append(charts.histograms(some, width, unit).picture(caption, alt))
    return pictures


def whole_histograms(caption: str, panels: Mapping[str, Mapping[int, int]], unit: str) -> list[Picture]:
    """Histograms of whole numbers, all in bins of one width."""
    width = charts.bin_width(max((max(counts) for counts in panels.values() if counts), default=0))
    binned = {name: charts.binned(counts, width) for name, counts in panels.items()}
    return histograms(caption, binned, width, unit)


def sources_of(run: Run, record: str) -> list[Source]:
    """The tables of a run that hold this record and are not empty."""
    return [table for stage in run.stages for table in tables_of(stage, record)]


def tables_of(stage: Stage, record: str) -> list[Source]:
    """Those of one stage."""
    return [each for each in stage.tables if each.record == record and each.table.manifest.counts.written]
