// Two trajectories side by side, turn by turn: what they share is folded, and where they part is marked.
"use strict";

const compare = (() => {
  const { el, folded } = dom;
  const { number, seconds } = text;

  const core = (each) =>
    JSON.stringify([
      each.class_,
      each.content,
      each.function,
      each.kwargs,
      each.raw_arguments,
      each.source,
      each.error,
    ]);
  const same = (one, other) =>
    one &&
    other &&
    one.items.length === other.items.length &&
    one.items.every(([each], at) => core(each) === core(other.items[at][0]));

  // How many turns two runs have in common at their beginning.
  function shared(one, other) {
    let turn = 0;
    while (turn < one.length && turn < other.length && same(one[turn], other[turn])) turn += 1;
    return turn;
  }

  function table(sides) {
    const { runs } = agentmill.view.index;
    const line = (title, words) => [title, ...sides.map(words)];
    const usage =
      (key, words = number) =>
      ({ record }) =>
        words(record.usage[key]);
    return dom.table(
      "The two trajectories",
      ["", "Left", "Right"],
      [
        line("Trajectory", ({ row }) => el("a", { href: list.address(row) }, text.brief(runs.ids[row]))),
        line("Outcome", ({ record }) => list.outcome(record.outcome.status)),
        line("Reward", ({ record }) => number(record.outcome.reward)),
        line("Model", ({ row }) => list.value(runs.facets.model, row) ?? "–"),
        line("Table", ({ row }) => list.setOf(runs.sets.table, row).join(", ")),
        line("Verdicts", ({ row }) => list.setOf(runs.sets.verdict, row).join(", ") || "–"),
        line("Task", ({ row }) => text.brief(list.value(runs.task, row) ?? "–")),
        line("Turns", ({ turns }) => number(turns.at(-1)?.turn ?? 0)),
        line("Prompt tokens", usage("prompt_tokens")),
        line("Sampled tokens", usage("completion_tokens")),
        line("Time", usage("seconds", seconds)),
        line("Cost", usage("cost_usd", text.dollars)),
        line("Last state", ({ found }) => found.path.findLast((step) => step)?.after ?? "–"),
      ],
    );
  }

  function alike(turns) {
    const last = turns.at(-1).turn;
    return `The same on both sides: ${last ? `everything up to turn ${last}` : "the start"}`;
  }

  async function side(id, names) {
    const row = agentmill.place(id);
    if (row < 0) return null;
    const entries = await agentmill.run(row);
    const record = entries.record[0];
    return {
      row,
      record,
      turns: trajectory.turns(record.content),
      found: trajectory.findings(entries, record, names),
    };
  }

  async function page(main, ids) {
    const names = new Map();
    const sides = [];
    for (const id of ids.slice(0, 2)) sides.push(await side(id, names));
    if (sides.length < 2 || sides.includes(null))
      return pages.lost(main, "One of these two trajectories is not in this view.");
    const [one, other] = sides;
    const common = shared(one.turns, other.turns);
    const length = Math.max(one.turns.length, other.turns.length);
    const pair = (at) =>
      el(
        "div",
        { class: "columns" },
        sides.map((each, place) => {
          const turn = each.turns[at];
          return turn
            ? trajectory.section(turn, each.found, place ? "right" : "left")
            : el("p", { class: "reason" }, "ended before");
        }),
      );
    const all = [...Array(length).keys()].map((at) =>
      el(
        "div",
        { class: at === common ? "parting" : "" },
        at === common ? el("p", { class: "parts" }, "Here they part") : null,
        pair(at),
      ),
    );
    dom.put(
      main,
      el("div", { class: "over" }, el("h1", { id: "title", tabindex: "-1" }, "Side by side"), trajectory.unfolder()),
      table(sides),
      el("p", { class: "reason" }, "States with the same name are the same state on both sides."),
      common
        ? folded(
            { class: "shared" },
            alike(one.turns.slice(0, common)),
            () => all.slice(0, common),
            common === length,
          )
        : null,
      all.slice(common),
    );
    return { turns: true };
  }

  return { page, shared };
})();
