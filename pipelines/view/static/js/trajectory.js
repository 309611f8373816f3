// The page of one trajectory: its turns as a conversation, and beside them what is known of it.
"use strict";

const trajectory = (() => {
  const { el, folded } = dom;
  const { number } = text;

  // The items by turn: [{turn, items: [[item, place], …], tokens}] in order.
  function turns(content) {
    const found = [];
    content.forEach((each, at) => {
      if (found.at(-1)?.turn !== each.turn) found.push({ turn: each.turn, items: [], tokens: null });
      found.at(-1).items.push([each, at]);
      found.at(-1).tokens ??= each.tokens ?? null;
    });
    return found;
  }

  // What is found for each item before it is drawn.
  function findings(entries, record, names = new Map()) {
    const said = facts.said(entries);
    const masks = facts.masks(entries);
    const path = states.path(record.content, names);
    let before = null;
    const items = record.content.map((each, at) => {
      const found = { step: path[at], loss: masks.of(at), said: said.of(at), before };
      if (each.source === "environment" && !each.tool_call_id) before = each.content;
      return found;
    });
    return { said, masks, path, items };
  }

  function section(turn, found, prefix = "") {
    const tokens =
      turn.tokens &&
      `${number(turn.tokens.sampled_tokens)} tokens sampled, ${number(turn.tokens.prompt_tokens)} new in the prompt`;
    const title = turn.turn === 0 ? "Start" : `Turn ${turn.turn}`;
    const id = prefix ? null : `turn-${turn.turn}`;
    return el(
      "section",
      { class: "turn", id, tabindex: "-1", "data-turn": turn.turn, "aria-label": title },
      el("h2", null, title, tokens ? el("span", { class: "reason" }, tokens) : null),
      turn.items.map(([each, at]) => item.card(each, at, { ...found.items[at], prefix })),
    );
  }

  function opening(record) {
    const tools = record.tools ?? [];
    return [
      record.system_prompt
        ? folded(
            { class: "fold" },
            ["System prompt: ", el("code", { class: "line" }, text.oneLine(record.system_prompt))],
            () => text.block(record.system_prompt),
          )
        : null,
      tools.length
        ? folded({ class: "fold" }, `${tools.length} ${tools.length === 1 ? "tool" : "tools"}`, () =>
            tools.map((tool) =>
              folded(
                { class: "fold" },
                [el("code", null, tool.name), " ", text.oneLine(tool.description ?? "")],
                () => text.block(text.json(tool), "code"),
              ),
            ),
          )
        : null,
    ];
  }

  function path(found, content, here) {
    const steps = found.path.map((step, at) => [step, at]).filter(([step]) => step);
    if (!steps.length) return null;
    const line = ([step, at]) =>
      el(
        "li",
        null,
        el(
          "a",
          {
            class: `chip ${step.kind === "back" ? "note" : "plain"}`,
            href: `${here}/turn/${content[at].turn}`,
            onclick: (event) => {
              event.preventDefault();
              pages.focus(document.getElementById(`item-${at}`));
            },
            "aria-label": `turn ${content[at].turn}: ${states.words(step)}`,
          },
          step.after,
        ),
      );
    return el("ol", { class: "path" }, steps.map(line));
  }

  async function page(main, id) {
    const row = agentmill.place(id);
    if (row < 0) return pages.lost(main, `There is no trajectory ${id} in this view.`);
    const entries = await agentmill.run(row);
    const record = entries.record[0];
    const found = findings(entries, record);
    const raw = folded({ class: "fold", id: "raw" }, "Raw JSON (r)", () => [
      el(
        "p",
        { class: "reason" },
        agentmill.view.index.token_ids
          ? "As stored, without empty fields; token counts added."
          : "As stored, without empty fields; of tokens only the counts: agentmill view --token-ids keeps them.",
      ),
      text.block(text.pretty(entries.texts.record[0]), "code"),
    ]);
    const taskPart = folded({ class: "fold" }, "Details", () => {
      const inside = el("div", null, "…");
      facts.task(row, record).then(
        (known) => {
          inside.textContent = "";
          dom.put(inside, known);
        },
        (error) => {
          inside.textContent = error.message;
        },
      );
      return inside;
    });
    dom.put(
      main,
      el(
        "div",
        { class: "over" },
        el("h1", { id: "title", tabindex: "-1" }, list.name(row)),
        list.outcome(record.outcome.status),
        steps(row),
      ),
      el(
        "div",
        { class: "pair-of-columns" },
        el(
          "div",
          { class: "conversation" },
          el("p", { class: "tools-line" }, unfolder()),
          opening(record),
          turns(record.content).map((each) => section(each, found)),
        ),
        el(
          "aside",
          { class: "known", "aria-label": "About this trajectory" },
          facts.part("Outcome", facts.ending(record)),
          facts.part("Verdicts and labels", item.remarks(found.said.of(null))),
          facts.part("Costs", facts.costs(record)),
          facts.part("States", path(found, record.content, list.address(row))),
          facts.part("Training rows", facts.training(found.masks)),
          facts.part("Task", taskPart),
          facts.part("Relatives", facts.relatives(row, record)),
          facts.part("Origin", facts.origin(record)),
          record.extra && Object.keys(record.extra).length
            ? facts.part("Extra", text.block(text.json(record.extra), "code"))
            : null,
          raw,
        ),
      ),
    );
    return { turns: true, step: (by) => go(row, by), raw };
  }

  // A button that opens or closes all that is folded in the conversation.
  function unfolder() {
    const button = el(
      "button",
      { type: "button", id: "unfold", "aria-pressed": "false", "aria-keyshortcuts": "o" },
      "Unfold all (o)",
    );
    button.addEventListener("click", () => {
      const open = button.getAttribute("aria-pressed") === "false";
      const inner = () => document.querySelectorAll(".conversation details.fold, .columns details.fold");
      for (const each of inner()) each.unfold(open);
      button.setAttribute("aria-pressed", String(open));
    });
    return button;
  }

  // The rows before and after in the list as it was filtered.
  function neighbour(row, by) {
    const shown = list.state.rows.length ? list.state.rows : agentmill.view.index.runs.ids.map((id, each) => each);
    const at = shown.indexOf(row);
    return at < 0 ? undefined : shown[at + by];
  }

  function go(row, by) {
    const next = neighbour(row, by);
    if (next !== undefined) location.hash = list.address(next);
  }

  function steps(row) {
    const link = (by, words) => {
      const next = neighbour(row, by);
      return next === undefined ? null : el("a", { class: "button", href: list.address(next) }, words);
    };
    return el(
      "nav",
      { "aria-label": "In the list", class: "steps" },
      el("a", { class: "button", href: list.address_of_list() }, "List (u)"),
      link(-1, "Previous (p)"),
      link(1, "Next (n)"),
    );
  }

  return { findings, page, section, turns, unfolder };
})();
