// Preference rows: a list, and a page with the chosen and the rejected continuation side by side.
"use strict";

const pairs = (() => {
  const { chip, el, folded, tell } = dom;
  const { number, brief } = text;
  const state = { chosen: {}, at: 0, rows: null };
  const NAMES = { table: "Table", view: "View", task: "Task", environment: "Environment", split: "Split" };

  function title(row) {
    const { runs, pairs: columns } = agentmill.view.index;
    const run = columns.chosen[row] >= 0 ? columns.chosen[row] : columns.rejected[row];
    return run >= 0 ? list.name(run) : brief(columns.ids[row]);
  }

  function cells(row) {
    const { pairs: columns } = agentmill.view.index;
    const cell = (kind, ...inside) => el("span", { role: "cell", class: kind }, inside);
    const facet = (name) => list.value(columns.facets[name], row) ?? "–";
    return [
      cell("title", el("a", { href: `#/pair/${row}` }, title(row))),
      cell("place", facet("environment")),
      cell("model", facet("view")),
      cell("verdicts", facet("table")),
      cell("number", number(columns.numbers.chosen_score[row])),
      cell("number", number(columns.numbers.rejected_score[row])),
      cell("number", number(columns.numbers.weight[row])),
    ];
  }

  function page(main) {
    const { pairs: columns } = agentmill.view.index;
    const head = (words, kind) => el("span", { role: "columnheader", class: kind }, words);
    const heads = [
      head("Task", "title"),
      head("Environment", "place"),
      head("View", "model"),
      head("Table", "verdicts"),
      head("Chosen score", "number"),
      head("Rejected score", "number"),
      head("Weight", "number"),
    ];
    const made = rows.list("Pairs", heads, cells);
    made.box.classList.add("pairs");
    made.box.style.setProperty("--numbers", 3);
    const count = el("p", { class: "count" });
    const selects = Object.entries(columns.facets)
      .filter(([name, facet]) => name !== "task" && facet.values.length > 1)
      .map(([name]) => [name, el("select", { id: `pair-${name}`, "data-facet": name })]);
    const update = (at = 0) => {
      const { rows: passing, counts } = filter.apply(columns, state.chosen, "");
      state.rows = passing;
      made.show(passing, at);
      for (const [name, select] of selects)
        list.offer(select, columns.facets[name], counts[name], state.chosen[name]);
      count.textContent = `${number(passing.length)} of ${number(columns.ids.length)} pairs`;
      tell(count.textContent);
    };
    const form = el(
      "form",
      { class: "filters in-line", "aria-label": "Filters" },
      selects.map(([name, select]) => [el("label", { for: select.id }, NAMES[name]), select]),
    );
    form.addEventListener("change", (event) => {
      const { facet } = event.target.dataset;
      if (event.target.value === "*") delete state.chosen[facet];
      else state.chosen[facet] = event.target.value.slice(1);
      update();
    });
    dom.put(
      main,
      el("div", { class: "over" }, el("h1", { id: "title", tabindex: "-1" }, "Pairs"), count),
      form,
      made.box,
    );
    update(state.at);
    made.box.addEventListener("focusin", () => {
      state.at = made.at;
    });
    return { list: made };
  }

  function message(each) {
    const calls = each.tool_calls.map((call) =>
      folded(
        { class: "fold" },
        [el("code", null, call.name), " ", el("code", { class: "line" }, text.oneLine(call.arguments))],
        () => text.block(call.arguments, "code"),
      ),
    );
    const kind = { assistant: "agent", user: "user", tool: "result", system: "world" }[each.role];
    return el(
      "article",
      { class: `card ${kind}` },
      el(
        "p",
        { class: "who" },
        el("span", { class: "speaker" }, each.role === "assistant" ? "agent" : each.role),
        each.train ? chip("loss", `loss × ${number(each.weight)}`) : null,
      ),
      each.reasoning_content
        ? folded({ class: "fold thought" }, "reasoning", () => text.block(each.reasoning_content))
        : null,
      each.content === null
        ? null
        : each.role === "tool"
          ? folded({ class: "fold" }, el("code", { class: "line" }, text.oneLine(each.content) || "(empty)"), () =>
              text.block(each.content),
            )
          : text.block(each.content),
      calls,
    );
  }

  function side(title, kind, messages, score, run) {
    return el(
      "section",
      { class: `side-of-pair ${kind}`, "aria-label": title },
      el(
        "h2",
        null,
        title,
        " ",
        chip(kind === "chosen" ? "good" : "bad", `score ${number(score)}`),
        run >= 0 ? el("a", { href: list.address(run) }, "whole run") : null,
      ),
      messages.map(message),
    );
  }

  // The pairs before and after in the list as it was filtered.
  function neighbour(row, by) {
    const shown = state.rows ?? [...agentmill.view.index.pairs.ids.keys()];
    const at = shown.indexOf(row);
    return at < 0 ? undefined : shown[at + by];
  }

  function go(row, by) {
    const next = neighbour(row, by);
    if (next !== undefined) location.hash = `#/pair/${next}`;
  }

  function link(row, by, words) {
    const next = neighbour(row, by);
    return next === undefined ? null : el("a", { class: "button", href: `#/pair/${next}` }, words);
  }

  async function one(main, key) {
    const row = Number(key);
    const { pairs: columns, runs } = agentmill.view.index;
    if (!(row in columns.ids)) return pages.lost(main, `There is no pair ${key} in this view.`);
    const entries = await agentmill.load("pairs", row);
    const pair = entries.pair?.[0];
    agentmill.sure(pair?.row_id, columns.ids[row]);
    const [good, bad] = [columns.chosen[row], columns.rejected[row]];
    const whole =
      good >= 0 && bad >= 0
        ? el(
            "a",
            {
              class: "button",
              href: `#/compare/${encodeURIComponent(runs.ids[good])}/${encodeURIComponent(runs.ids[bad])}`,
            },
            "Compare the whole runs",
          )
        : null;
    const raw = folded({ class: "fold", id: "raw" }, "Raw JSON (r)", () =>
      text.block(text.pretty(entries.texts.pair[0]), "code"),
    );
    dom.put(
      main,
      el(
        "div",
        { class: "over" },
        el("h1", { id: "title", tabindex: "-1" }, title(row)),
        el(
          "nav",
          { "aria-label": "In the list", class: "steps" },
          el("a", { class: "button", href: "#/pairs" }, "List (u)"),
          link(row, -1, "Previous (p)"),
          link(row, 1, "Next (n)"),
          whole,
        ),
      ),
      el("p", null, trajectory.unfolder()),
      dom.facts([
        ["View", pair.view],
        ["Parameters", el("code", null, JSON.stringify(pair.view_parameters))],
        ["Weight", number(pair.weight)],
        ["Split", pair.split],
      ]),
      folded({ class: "shared" }, `Prompt, ${pair.prompt.length} messages`, () => pair.prompt.map(message)),
      el(
        "div",
        { class: "columns conversation" },
        side("Chosen", "chosen", pair.chosen, pair.chosen_score, good),
        side("Rejected", "rejected", pair.rejected, pair.rejected_score, bad),
      ),
      raw,
    );
    return { step: (by) => go(row, by), up: "#/pairs", raw };
  }

  return { one, page };
})();
