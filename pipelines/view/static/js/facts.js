// What is known of a trajectory beside its turns: outcome, verdicts, costs, how it was made, its task, its relatives.
"use strict";

const facts = (() => {
  const { el, folded } = dom;
  const { number, seconds, dollars, brief } = text;
  const NOTHING = { verdict: [], label: [], value: [], selection: [] };
  const SHOWN = 40;

  // What tables say, by item; what is said of the whole run is under "null".
  function said(entries) {
    const found = new Map();
    for (const kind of Object.keys(NOTHING)) {
      for (const each of entries[kind] ?? []) {
        const key = each.item ?? null;
        if (!found.has(key)) found.set(key, { verdict: [], label: [], value: [], selection: [] });
        found.get(key)[kind].push(each);
      }
    }
    return { of: (key) => found.get(key) ?? NOTHING };
  }

  // Which items carry loss: the messages of training rows are found again, in order, among those of the run.
  function masks(entries) {
    const marks = entries.marks?.[0] ?? [];
    const found = new Map();
    const rows = (entries.row ?? []).map((row) => {
      let from = 0;
      let lost = 0;
      for (const [mark, weight] of row.loss) {
        const at = marks.findIndex(([each], place) => place >= from && each === mark);
        if (at < 0) {
          lost += 1;
          continue;
        }
        from = at + 1;
        for (const place of marks[at][1]) {
          if (!found.has(place)) found.set(place, []);
          found.get(place).push([row, weight]);
        }
      }
      return { ...row, lost };
    });
    return { rows, of: (place) => mask(found.get(place)) };
  }

  function mask(told) {
    if (!told) return null;
    const carrying = told.filter(([, weight]) => weight > 0);
    const where = told.map(([row, weight]) => `${row.table}: ${weight ? `loss × ${weight}` : "no loss"}`).join("\n");
    if (!carrying.length) return { weight: 0, words: "no loss", where };
    const [row, weight] = carrying[0];
    const label = row.label === null ? "" : row.label ? ", as good" : ", as bad";
    const share = told.length > 1 ? ` in ${carrying.length} of ${told.length} rows` : "";
    return { weight, words: `loss × ${number(weight)}${label}${share}`, where };
  }

  function part(title, ...inside) {
    const given = inside.flat().filter(Boolean);
    return given.length ? el("section", { class: "part" }, el("h2", null, title), given) : null;
  }

  function ending(record) {
    const { status, reward, terminated, truncated, reason } = record.outcome;
    return dom.facts([
      ["Outcome", list.outcome(status)],
      ["Reward", reward === null ? null : number(reward)],
      ["Ended", terminated ? "by itself" : truncated ? "by a limit" : null],
      ["Reason", reason],
    ]);
  }

  function costs(record) {
    const { usage } = record;
    const turns = trajectory.turns(record.content).filter((turn) => turn.tokens);
    const most = Math.max(1, ...turns.map((turn) => turn.tokens.prompt_tokens + turn.tokens.sampled_tokens));
    const bar = (n, kind) => {
      const element = el("span", { class: `bar ${kind}`, "aria-hidden": "true" });
      element.style.width = `${(6 * n) / most}rem`;
      return element;
    };
    const rows = turns.map(({ turn, tokens }) => [
      turn,
      [bar(tokens.prompt_tokens, "prompt"), number(tokens.prompt_tokens)],
      [bar(tokens.sampled_tokens, "sampled"), number(tokens.sampled_tokens)],
      number(tokens.logprob ?? null),
      tokens.finish_reason ?? "–",
    ]);
    return [
      dom.facts([
        ["Prompt tokens", usage.prompt_tokens === null ? null : number(usage.prompt_tokens)],
        ["of these cached", usage.cached_tokens === null ? null : number(usage.cached_tokens)],
        ["Sampled tokens", usage.completion_tokens === null ? null : number(usage.completion_tokens)],
        ["Time", usage.seconds === null ? null : seconds(usage.seconds)],
        ["Cost", usage.cost_usd === null ? null : dollars(usage.cost_usd)],
      ]),
      rows.length
        ? folded({ class: "fold" }, "Tokens by turn", () =>
            dom.table("Tokens by turn", ["Turn", "New in the prompt", "Sampled", "Log-probability", "Ended"], rows),
          )
        : null,
    ];
  }

  function origin(record) {
    const { generation: made, source } = record;
    const { runs } = agentmill.view.index;
    const tables = list.setOf(runs.sets.table, agentmill.place(record.trajectory_id));
    return dom.facts([
      ["Id", el("code", null, record.trajectory_id)],
      ["In", tables.join(", ")],
      ["Environment", list.value(runs.facets.environment, agentmill.place(record.trajectory_id))],
      ["Model", made?.model],
      ["Revision", made?.revision],
      ["Policy", made?.policy],
      ["Strategy", made?.strategy],
      ["Scaffold", made?.scaffold],
      [
        "Sampling",
        made && Object.keys(made.sampling).length ? el("code", null, JSON.stringify(made.sampling)) : null,
      ],
      ["Round", made?.round],
      ["Seed", made?.seed],
      ["Attempt", record.attempt],
      ["Split", record.split],
      ["Data set", source?.dataset],
      ["Row", source?.row],
      ["Licence", source?.licence],
      ["Converter", source && `${source.converter} ${source.converter_version}`],
    ]);
  }

  function relatives(row, record) {
    const { runs } = agentmill.view.index;
    const all = runs.ids.map((id, each) => each);
    const compare = (other) =>
      `#/compare/${encodeURIComponent(runs.ids[row])}/${encodeURIComponent(runs.ids[other])}`;
    const model = (other) => list.value(runs.facets.model, other) ?? "–";
    const line = (other) =>
      el(
        "li",
        null,
        el("a", { href: list.address(other) }, `${model(other)} ${text.brief(runs.ids[other])}`),
        " ",
        list.outcome(list.value(runs.facets.outcome, other)),
        " ",
        el("span", { class: "reason" }, list.setOf(runs.sets.table, other)[0] ?? ""),
        " ",
        el(
          "a",
          { href: compare(other), "aria-label": `Compare with ${model(other)} ${text.brief(runs.ids[other])}` },
          "compare",
        ),
      );
    const some = (title, found) =>
      found.length
        ? [
            el("h3", null, `${title} (${number(found.length)})`),
            el("ul", { class: "relatives" }, found.slice(0, SHOWN).map(line)),
            found.length > SHOWN ? el("p", { class: "reason" }, `the first ${SHOWN} are shown`) : null,
          ]
        : [];
    const parent = runs.parent[row];
    const task = runs.task.codes[row];
    const tree = runs.tree[row] ?? -1;
    return [
      tree >= 0
        ? el(
            "p",
            null,
            el("a", { href: `#/tree/${tree}/${encodeURIComponent(runs.ids[row])}` }, "The search tree it is in"),
          )
        : null,
      some(
        record.branch_turn === undefined ? "Attempt before" : `Branched off in turn ${record.branch_turn} from`,
        parent < 0 ? [] : [parent],
      ),
      some(
        "Branches and later attempts",
        all.filter((each) => runs.parent[each] === row),
      ),
      some(
        "Other runs of the task",
        task < 0 ? [] : all.filter((each) => each !== row && runs.task.codes[each] === task),
      ),
    ].flat();
  }

  async function task(row, record) {
    const code = agentmill.view.index.runs.task.codes[row];
    const known = code < 0 ? {} : await agentmill.load("tasks", code);
    const given = known.task?.[0];
    if (!given) return dom.facts([["Id", record.task_id && el("code", null, record.task_id)]]);
    agentmill.sure(given.task_id, record.task_id);
    return [
      dom.facts([
        ["Id", el("code", null, given.task_id)],
        ["Instruction", given.instruction],
        ["Skills", given.skills.join(", ")],
        ["Constraints", given.constraints.join("; ")],
        ["Difficulty", given.difficulty && number(given.difficulty.level)],
        ["Gold solution", given.gold && `${given.gold.length} actions`],
        ["Most turns", given.max_turns],
      ]),
      folded({ class: "fold" }, "Task as JSON", () => text.block(text.pretty(known.texts.task[0]), "code")),
    ];
  }

  function training({ rows }) {
    if (!rows.length) return null;
    const words = (row) => [
      row.table,
      row.view,
      number(row.messages),
      number(row.loss.filter(([, weight]) => weight > 0).length),
      row.lost ? `${row.lost} told in other words` : "all",
    ];
    return dom.table(
      "Training rows",
      ["Table", "View", "Messages", "With loss", "Found in the run"],
      rows.slice(0, SHOWN).map(words),
    );
  }

  return { costs, ending, masks, origin, part, relatives, said, task, training };
})();
