// One action or observation as a card: who speaks, what, and what is said of it.
"use strict";

const item = (() => {
  const { chip, el, folded } = dom;
  const { number } = text;

  function speaker(each) {
    const agent = each.agent ? ` ${each.agent}` : "";
    const role = each.role && each.role !== "actor" ? ` (${each.role})` : "";
    if (each.class_ === "api_action") return ["call", `tool call${agent}${role}`];
    if (each.class_ === "code_action") return ["call", `code${agent}${role}`];
    if (each.class_ === "message_action") return ["agent", `agent${agent}${role}`];
    if (each.tool_call_id) return ["result", "result"];
    if (each.source === "user") return ["user", each.name ? `user ${each.name}` : "user"];
    if (each.source === "agent") return ["other", each.name ?? "another agent"];
    return ["world", each.name ?? "environment"];
  }

  function call(each) {
    const given = each.raw_arguments ?? JSON.stringify(each.kwargs);
    const summary = [el("code", null, each.function), " ", el("code", { class: "line" }, text.oneLine(given))];
    return folded({ class: "fold" }, summary, () => text.block(each.raw_arguments ?? text.json(each.kwargs), "code"));
  }

  function code(each) {
    const lines = each.content.split("\n").length;
    const summary = [
      `${each.language}, ${lines} ${lines === 1 ? "line" : "lines"}: `,
      el("code", { class: "line" }, text.oneLine(each.content)),
    ];
    return folded({ class: "fold" }, summary, () => text.block(each.content, "code"));
  }

  function web(each) {
    const parts = [
      ["page source", each.html],
      ["accessibility tree", each.axtree],
    ].filter(([, part]) => part);
    return el(
      "div",
      null,
      el("p", null, "web page ", el("code", null, each.url ?? "")),
      parts.map(([words, part]) =>
        folded({ class: "fold" }, `${words}, ${number(part.length)} characters`, () => text.block(part, "code")),
      ),
      each.image_observation ? image(each.image_observation) : null,
    );
  }

  function image(each) {
    const boxes = (each.annotations ?? []).map((one) => [
      one.text,
      one.element_type,
      JSON.stringify(one.bounding_box),
    ]);
    return el(
      "div",
      null,
      el("p", null, "image ", el("code", null, each.content)),
      boxes.length ? dom.table("Regions", ["Text", "Element", "Box (pixels)"], boxes) : null,
    );
  }

  function body(each) {
    if (each.class_ === "api_action") return call(each);
    if (each.class_ === "code_action") return code(each);
    if (each.class_ === "web_observation") return web(each);
    if (each.class_ === "image_observation") return image(each);
    if (each.tool_call_id) {
      return folded({ class: "fold" }, el("code", { class: "line" }, text.oneLine(each.content) || "(empty)"), () =>
        text.block(each.content),
      );
    }
    return text.block(each.content);
  }

  function changes(each, before) {
    const found = before && each.source === "environment" ? states.difference(before, each.content) : null;
    return (
      found &&
      folded(
        { class: "fold changes" },
        `What changed: ${found.length} ${found.length === 1 ? "line" : "lines"}`,
        () =>
          el(
            "ul",
            { class: "difference" },
            found.map(([sign, part]) => el("li", { class: sign === "+" ? "came" : "went" }, `${sign} ${part}`)),
          ),
      )
    );
  }

  function chips(each, step, loss) {
    return [
      each.reward !== undefined && chip(each.reward > 0 ? "good" : "plain", `reward ${number(each.reward)}`),
      each.error && chip("bad", "error"),
      each.train !== undefined && chip("plain", `source: ${each.train ? "train" : "do not train"}`),
      each.synthetic && chip("note", "synthetic", "A model made this in the place of an environment or a person"),
      each.context_operation && chip("note", each.context_operation),
      loss && chip(loss.weight ? "loss" : "plain", loss.words, loss.where),
      step && chip(step.kind === "same" ? "plain" : step.kind === "back" ? "note" : "state", states.words(step)),
    ];
  }

  // What tables say of one item or of a whole run, each with its reason and evidence.
  function remarks(said) {
    const line = (kind, good, words, each) =>
      el(
        "li",
        null,
        chip(good, `${kind} ${words}`, each.table),
        each.reason ? el("span", { class: "reason" }, ` ${each.reason}`) : null,
        each.evidence && Object.keys(each.evidence).length
          ? folded({ class: "fold" }, "evidence", () => evidence(each.evidence))
          : null,
      );
    const tone = (good) => (good === null || good === undefined ? "plain" : good ? "good" : "bad");
    const verdict = (each) => {
      const score = each.score === null ? "" : `, score ${number(each.score)}`;
      const word =
        each.status !== "scored" ? each.status : each.passed === null ? "scored" : each.passed ? "passed" : "failed";
      return line("verdict", tone(each.passed), `${each.name}: ${word}${score} (${each.judge})`, each);
    };
    const weight = (each) => (each.weight === 1 ? "" : `, weight ${number(each.weight)}`);
    const found = [
      ...said.verdict.map(verdict),
      ...said.label.map((each) => line("label", "note", `${each.name}: ${each.value} (${each.labeller})`, each)),
      ...said.value.map((each) =>
        line("value", "note", `${each.name}: ${number(each.value)} (${each.estimator}, n ${each.n})`, each),
      ),
      ...said.selection.map((each) =>
        line("selection", tone(each.kept), `${each.name}: ${each.kept ? "kept" : "dropped"}${weight(each)}`, each),
      ),
    ];
    return found.length ? el("ul", { class: "remarks" }, found) : null;
  }

  // Evidence that names what is missing from the final state and what should not be there is a difference.
  function evidence(given) {
    const signs = [
      ["missing", "-"],
      ["unmet", "-"],
      ["unwanted", "+"],
      ["violations", "!"],
    ];
    const lines = signs.flatMap(([key, sign]) =>
      Array.isArray(given[key]) ? given[key].map((part) => [sign, key, part]) : [],
    );
    const words = { "-": "went", "+": "came", "!": "broken" };
    return [
      lines.length
        ? el(
            "ul",
            { class: "difference", "aria-label": "Final state against the goal" },
            lines.map(([sign, key, part]) =>
              el(
                "li",
                { class: words[sign] },
                `${sign} ${key}: ${typeof part === "string" ? part : JSON.stringify(part)}`,
              ),
            ),
          )
        : null,
      text.block(text.json(given), "code"),
    ];
  }

  // The card of an item. `of` holds what was found for it: {step, loss, said, before}.
  function card(each, at, of) {
    const [kind, words] = speaker(each);
    const hidden = each.reasoning_content;
    return el(
      "article",
      { class: `card ${kind}`, id: of.prefix ? null : `item-${at}`, "aria-label": `Item ${at}: ${words}` },
      el(
        "p",
        { class: "who" },
        el("span", { class: "speaker" }, words),
        el("span", { class: "place" }, `#${at}`),
        chips(each, of.step, of.loss),
      ),
      hidden
        ? folded({ class: "fold thought" }, `reasoning, ${number(hidden.length)} characters`, () =>
            text.block(hidden),
          )
        : null,
      each.description ? el("p", { class: "thought" }, text.block(each.description)) : null,
      body(each),
      changes(each, of.before),
      remarks(of.said),
    );
  }

  return { card, evidence, remarks, speaker };
})();
