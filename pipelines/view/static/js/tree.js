// A search tree: drawn from left to right, each node with its value and visits, and as a table.
"use strict";

const tree = (() => {
  const { el, svg } = dom;
  const { number, brief } = text;
  const WIDE = 150;
  const HIGH = 34;
  const SHOWN = 1000;

  // Nodes in the order of a walk, each with its depth and the height at which it is drawn.
  function layout(nodes) {
    const ids = new Set(nodes.map((node) => node.node_id));
    const below = new Map();
    for (const node of nodes) {
      const parent = ids.has(node.parent_id) ? node.parent_id : null;
      if (!below.has(parent)) below.set(parent, []);
      below.get(parent).push(node);
    }
    const placed = new Map();
    let leaves = 0;
    const open = (below.get(null) ?? []).map((node) => ({ node, depth: 0, left: null })).reverse();
    while (open.length) {
      const step = open.at(-1);
      const children = below.get(step.node.node_id) ?? [];
      if (step.left === null) {
        step.left = true;
        placed.set(step.node.node_id, { node: step.node, depth: step.depth, y: 0 });
        for (const child of [...children].reverse()) open.push({ node: child, depth: step.depth + 1, left: null });
        if (children.length) continue;
      }
      open.pop();
      const heights = children.map((child) => placed.get(child.node_id).y);
      placed.get(step.node.node_id).y = children.length ? (heights[0] + heights.at(-1)) / 2 : leaves++;
    }
    return placed;
  }

  const words = (node) =>
    `turn ${node.turn}, value ${number(node.q)}, ${number(node.visits)} visits${node.terminal ? ", an end" : ""}`;

  // The least and the greatest of numbers, of which there may be more than a call takes arguments.
  const ends = (numbers) =>
    numbers.reduce(([low, high], each) => [Math.min(low, each), Math.max(high, each)], [Infinity, -Infinity]);

  // From the worst value of the tree to the best in five steps.
  function shade(node, [low, high]) {
    if (node.q === null) return "q-none";
    return `q-${high > low ? Math.round((4 * (node.q - low)) / (high - low)) : 2}`;
  }

  function drawing(nodes, placed, on, show) {
    const [, deepest] = ends([...placed.values()].map(({ depth }) => depth));
    const [, lowest] = ends([...placed.values()].map(({ y }) => y));
    const values = ends(nodes.map((node) => node.q).filter((q) => q !== null));
    const [width, height] = [(deepest + 1) * WIDE + 20, (lowest + 1) * HIGH + 28];
    const at = ({ depth, y }) => [depth * WIDE + 24, y * HIGH + 28];
    const lines = [...placed.values()]
      .filter(({ node }) => placed.has(node.parent_id))
      .map((place) => {
        const [x, y] = at(place);
        const [fromX, fromY] = at(placed.get(place.node.parent_id));
        return svg("path", {
          class: on.has(place.node.node_id) ? "edge on" : "edge",
          d: `M${fromX},${fromY} C${fromX + 60},${fromY} ${x - 70},${y} ${x},${y}`,
        });
      });
    const [, most] = ends([1, ...nodes.map((node) => node.visits)]);
    const circles = [...placed.values()].map((place) => {
      const { node } = place;
      const [x, y] = at(place);
      const size = 5 + 7 * Math.sqrt(node.visits / most);
      return svg(
        "g",
        {
          class: "node",
          role: "button",
          tabindex: "0",
          "aria-label": words(node),
          "data-node": node.node_id,
          onclick: () => show(node),
          onkeydown: (event) => {
            if (event.key === "Enter" || event.key === " ") {
              event.preventDefault();
              show(node);
            }
          },
        },
        node.terminal ? svg("circle", { class: "end", cx: x, cy: y, r: size + 3 }) : null,
        svg("circle", { class: shade(node, values), cx: x, cy: y, r: size }),
        svg("text", { x: x + size + 4, y: y - 7 }, `${number(node.q)} · ${number(node.visits)}×`),
      );
    });
    return svg(
      "svg",
      {
        class: "tree",
        width,
        height,
        viewBox: `0 0 ${width} ${height}`,
        role: "group",
        "aria-label": "Search tree, root on the left",
      },
      lines,
      circles,
    );
  }

  // The nodes on the way to the last turn of a run.
  function way(nodes, id) {
    const known = new Map(nodes.map((node) => [node.node_id, node]));
    const on = new Set();
    const own = nodes.filter((node) => node.trajectory_id === id).sort((one, other) => other.turn - one.turn);
    for (let node = own[0]; node && !on.has(node.node_id); node = known.get(node.parent_id)) on.add(node.node_id);
    return on;
  }

  async function what(node) {
    const row = agentmill.place(node.trajectory_id);
    const head = el("h2", { tabindex: "-1" }, words(node));
    const extra = node.extra && Object.keys(node.extra).length ? text.block(text.json(node.extra), "code") : null;
    if (row < 0) return [head, el("p", null, "No run of this view went through this node."), extra];
    const entries = await agentmill.run(row);
    const record = entries.record[0];
    const turn = trajectory.turns(record.content).find((each) => each.turn === node.turn);
    return [
      head,
      el("p", null, el("a", { href: `${list.address(row)}/turn/${node.turn}` }, "Open the run at this turn")),
      turn ? trajectory.section(turn, trajectory.findings(entries, record), "tree") : null,
      extra,
    ];
  }

  async function page(main, key, id) {
    const entries = /^\d+$/.test(key) ? await agentmill.load("trees", Number(key)) : {};
    if (!entries.node) return pages.lost(main, `There is no search tree ${key} in this view.`);
    const { runs } = agentmill.view.index;
    const member = runs.ids[runs.tree.indexOf(Number(key))];
    agentmill.sure(member === undefined || entries.node.some((node) => node.trajectory_id === member), true);
    // Tables may repeat a node; a tree has it once.
    const nodes = [...new Map(entries.node.map((node) => [node.node_id, node])).values()];
    const shown = el(
      "section",
      { class: "known-node", "aria-live": "polite" },
      el("p", { class: "reason" }, "Choose a node to see its turn."),
    );
    const show = async (node) => {
      shown.replaceChildren(...(await what(node)).filter(Boolean));
      for (const each of main.querySelectorAll(".node"))
        each.classList.toggle("chosen", each.dataset.node === node.node_id);
    };
    const run = (node) => {
      const row = agentmill.place(node.trajectory_id);
      return row < 0 ? "–" : el("a", { href: `${list.address(row)}/turn/${node.turn}` }, brief(node.trajectory_id));
    };
    const lines = nodes.map((node) => [
      brief(node.node_id),
      brief(node.parent_id ?? "–"),
      node.turn,
      number(node.visits),
      number(node.q),
      number(node.prior),
      node.terminal ? "yes" : "",
      run(node),
    ]);
    dom.put(
      main,
      el(
        "div",
        { class: "over" },
        el("h1", { id: "title", tabindex: "-1" }, "Search tree"),
        el("p", { class: "count" }, `${number(nodes.length)} nodes, ${nodes[0].table}`),
      ),
      el(
        "p",
        { class: "reason" },
        "Value · visits. Darker is better, larger is visited more, a ring is an end; ",
        "the thick way is that of the run you came from.",
      ),
      el(
        "div",
        { class: "scroll drawing", tabindex: "0", role: "region", "aria-label": "Drawing of the tree" },
        drawing(nodes, layout(nodes), way(nodes, id), show),
      ),
      shown,
      dom.table("Nodes", ["Node", "Parent", "Turn", "Visits", "Value", "Prior", "End", "Run"], lines),
    );
    return { up: id ? `#/run/${encodeURIComponent(id)}` : undefined };
  }

  async function all(main) {
    const { runs } = agentmill.view.index;
    const first = new Map();
    runs.tree.forEach((each, row) => {
      if (each >= 0) first.set(each, [...(first.get(each) ?? []), row]);
    });
    const lines = [...first]
      .slice(0, SHOWN)
      .map(([each, found]) => [
        el("a", { href: `#/tree/${each}` }, list.name(found[0])),
        number(found.length),
        number(found.filter((row) => list.value(runs.facets.outcome, row) === "success").length),
      ]);
    dom.put(
      main,
      el("h1", { id: "title", tabindex: "-1" }, "Search trees"),
      first.size > SHOWN
        ? el("p", { class: "reason" }, `The first ${number(SHOWN)} of ${number(first.size)}; runs lead to the others.`)
        : null,
      dom.table("Search trees", ["Task", "Runs", "Successes"], lines),
    );
    return {};
  }

  return { all, layout, page };
})();
