// The list of all trajectories: search, filters, order, and two that are marked to be compared.
"use strict";

const list = (() => {
  const { el, tell } = dom;
  const OPTIONS = 300;
  const NAMES = {
    outcome: "Outcome",
    environment: "Environment",
    model: "Model",
    strategy: "Strategy",
    round: "Round",
    split: "Split",
    dataset: "Data set",
    table: "Table",
    verdict: "Verdict",
    label: "Label",
    selection: "Selection",
  };
  const NUMBERS = [
    ["reward", "Reward", text.number],
    ["turns", "Turns", text.number],
    ["errors", "Errors", text.number],
    ["prompt_tokens", "Prompt tokens", text.number],
    ["completion_tokens", "Sampled tokens", text.number],
    ["seconds", "Seconds", text.number],
    ["cost_usd", "Cost", text.dollars],
  ];
  const ON_WIDE = ["errors", "prompt_tokens"];
  const state = { chosen: {}, query: "", sort: null, descending: true, marked: [], at: 0, rows: [] };

  const value = (column, row) => column.values[column.codes[row]];
  const setOf = (column, row) => column.sets[column.codes[row]].map((code) => column.values[code]);

  function outcome(status) {
    const sign = { success: "✓", failure: "✗" }[status] ?? "?";
    return el("span", { class: `outcome ${status}` }, `${sign} ${status}`);
  }

  // A verdict as "name: word" with a sign in the place of the commonest words, since columns are narrow.
  const signed = (verdict) => verdict.replace(/^(.*): passed$/, "✓ $1").replace(/^(.*): failed$/, "✗ $1");

  // A row in words, as links to it are called.
  function name(row) {
    const { runs } = agentmill.view.index;
    return value(runs.title, row) ?? text.brief(runs.ids[row]);
  }

  const address = (row) => `#/run/${encodeURIComponent(agentmill.view.index.runs.ids[row])}`;

  function page(main) {
    const { runs } = agentmill.view.index;
    const numbers = NUMBERS.filter(([key]) => runs.numbers[key].some((each) => each !== null));
    const count = el("p", { class: "count" });
    const compare = el("a", { class: "button", hidden: true }, "Compare the two marked (c)");
    const search = el("input", { type: "search", id: "search", autocomplete: "off", "aria-keyshortcuts": "/" });
    const selects = choices(runs);
    const made = rows.list("Trajectories", heads(numbers, update), (row) => cells(row, numbers, marked));
    made.box.style.setProperty("--numbers", numbers.length);
    made.box.style.setProperty("--few", numbers.filter(([key]) => !ON_WIDE.includes(key)).length);

    function marked() {
      const [one, other] = state.marked;
      compare.hidden = !other;
      if (other) compare.href = `#/compare/${encodeURIComponent(one)}/${encodeURIComponent(other)}`;
    }

    function update(at = 0) {
      const { rows: passing, counts } = filter.apply(runs, state.chosen, state.query);
      state.rows = state.sort ? filter.sort(passing, runs.numbers[state.sort], state.descending) : passing;
      made.show(state.rows, at);
      for (const [facet, select] of selects)
        offer(select, filter.facets(runs)[facet], counts[facet], state.chosen[facet]);
      count.textContent = `${text.number(passing.length)} of ${text.number(runs.ids.length)} trajectories`;
      tell(count.textContent);
      for (const head of made.box.querySelectorAll("[data-sort]")) {
        const order = state.descending ? "descending" : "ascending";
        head.setAttribute("aria-sort", head.dataset.sort === state.sort ? order : "none");
      }
      pages.remember(address_of_list());
    }

    search.value = state.query;
    search.addEventListener("input", () => {
      state.query = search.value;
      update();
    });
    const form = el(
      "form",
      { class: "filters", role: "search", "aria-label": "Filters" },
      el("label", { for: "search" }, "Search (/)"),
      search,
      [...selects].map(([facet, select]) => [el("label", { for: select.id }, NAMES[facet]), select]),
      el("button", { type: "reset" }, "Show all"),
    );
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("change", (event) => {
      const { facet } = event.target.dataset;
      if (!facet) return;
      if (event.target.value === "*") delete state.chosen[facet];
      else state.chosen[facet] = event.target.value.slice(1);
      update();
    });
    form.addEventListener("reset", () => {
      state.chosen = {};
      state.query = "";
      update();
    });
    const wide = matchMedia("(min-width: 60rem)").matches;
    dom.put(
      main,
      el(
        "div",
        { class: "listing" },
        el("details", { class: "side", open: wide }, el("summary", null, "Filters"), form),
        el(
          "section",
          { "aria-labelledby": "title" },
          el("div", { class: "over" }, el("h1", { id: "title", tabindex: "-1" }, "Trajectories"), count, compare),
          made.box,
        ),
      ),
    );
    marked();
    update(state.at);
    made.box.addEventListener("focusin", () => {
      state.at = made.at;
    });
    return { list: made, search, toggle: () => made.box.querySelector(".current input")?.click(), compare };
  }

  // A select for each facet in which rows differ.
  function choices(runs) {
    const differing = Object.entries(filter.facets(runs)).filter(([, facet]) => facet.values.length);
    return new Map(differing.map(([facet]) => [facet, el("select", { id: `facet-${facet}`, "data-facet": facet })]));
  }

  function offer(select, facet, count, chosen) {
    const found = filter.options(facet, count);
    const total = [...count].reduce((sum, each) => sum + each, 0);
    const shown = found.slice(0, OPTIONS);
    if (chosen !== undefined && !shown.some(([each]) => each === chosen)) shown.push([chosen, 0]);
    const option = (key, words) => el("option", { value: key }, words);
    select.replaceChildren(
      option("*", `all (${text.number(total)})`),
      ...shown.map(([each, n]) => option(`=${each}`, `${each || "none"} (${text.number(n)})`)),
    );
    if (found.length > OPTIONS) select.append(el("option", { disabled: true }, "… search for the others"));
    select.value = chosen === undefined ? "*" : `=${chosen}`;
  }

  function heads(numbers, update) {
    const sort = (key) => () => {
      state.descending = state.sort === key ? !state.descending : true;
      state.sort = key;
      update();
    };
    const head = (words, kind) => el("span", { role: "columnheader", class: kind }, words);
    return [
      head(el("span", { class: "unseen" }, "Mark"), "mark"),
      head("Outcome", "status"),
      head("Task", "title"),
      head("Environment", "place"),
      head("Model", "model"),
      head("Verdicts", "verdicts"),
      numbers.map(([key, words]) =>
        el(
          "span",
          { role: "columnheader", class: `number ${key}`, "data-sort": key },
          el("button", { type: "button", onclick: sort(key) }, words),
        ),
      ),
    ];
  }

  function cells(row, numbers, marked) {
    const { runs } = agentmill.view.index;
    const id = runs.ids[row];
    const box = el("input", { type: "checkbox", "aria-label": `Mark ${name(row)}` });
    box.checked = state.marked.includes(id);
    box.addEventListener("change", () => {
      state.marked = box.checked ? [...state.marked, id].slice(-2) : state.marked.filter((each) => each !== id);
      for (const other of document.querySelectorAll(".rows input"))
        other.checked = state.marked.includes(other.dataset.id);
      marked();
    });
    box.dataset.id = id;
    const cell = (kind, ...inside) => el("span", { role: "cell", class: kind }, inside);
    const round = value(runs.facets.round, row);
    return [
      cell("mark", box),
      cell("status", outcome(value(runs.facets.outcome, row))),
      cell("title", el("a", { href: address(row) }, name(row))),
      cell("place", value(runs.facets.environment, row) ?? "–"),
      cell("model", value(runs.facets.model, row) ?? "–", round && round !== "0" ? ` · round ${round}` : ""),
      cell("verdicts", setOf(runs.sets.verdict, row).map(signed).join(", ") || "–"),
      numbers.map(([key, , words]) => cell(`number ${key}`, words(runs.numbers[key][row]))),
    ];
  }

  // The list with its filters as an address, and back.
  function address_of_list() {
    const terms = new URLSearchParams();
    if (state.query) terms.set("search", state.query);
    for (const [facet, chosen] of Object.entries(state.chosen)) terms.set(facet, chosen);
    if (state.sort) terms.set("sort", (state.descending ? "-" : "") + state.sort);
    return terms.size ? `#/?${terms}` : "#/";
  }

  function read(terms) {
    const { runs } = agentmill.view.index;
    state.chosen = Object.fromEntries([...terms].filter(([facet]) => Object.hasOwn(filter.facets(runs), facet)));
    state.query = terms.get("search") ?? "";
    const sort = terms.get("sort") ?? "";
    state.descending = sort.startsWith("-");
    state.sort = Object.hasOwn(runs.numbers, sort.replace(/^-/, "")) ? sort.replace(/^-/, "") : null;
  }

  return { address, address_of_list, name, offer, outcome, page, read, setOf, state, value };
})();
