// Which page is shown: the part of the address behind `#`. Names in it come from outside and are only looked up.
"use strict";

const pages = (() => {
  const { el } = dom;
  const state = { page: {}, shown: 0, remembered: null };

  function focus(element) {
    if (!element) return;
    if (!element.hasAttribute("tabindex")) element.tabIndex = -1;
    element.focus({ preventScroll: true });
    element.scrollIntoView({ block: "start" });
  }

  // Put the list's address into the bar without going anywhere.
  function remember(address) {
    state.remembered = address;
    history.replaceState(null, "", address);
  }

  function lost(main, words) {
    main.append(
      el("h1", { id: "title", tabindex: "-1" }, "Not here"),
      el("p", null, words),
      el("p", null, el("a", { href: "#/" }, "To the list")),
    );
    return {};
  }

  function route(main) {
    const [path, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
    const [name, ...rest] = path.split("/").map(decoded);
    if (name === "") {
      if (query !== undefined) list.read(new URLSearchParams(query));
      return list.page(main);
    }
    if (name === "run") return trajectory.page(main, rest[0]);
    if (name === "compare") return compare.page(main, rest);
    if (name === "pairs") return pairs.page(main);
    if (name === "pair") return pairs.one(main, rest[0]);
    if (name === "trees") return tree.all(main);
    if (name === "tree") return tree.page(main, rest[0], rest[1]);
    return lost(main, "This view has no such page.");
  }

  function decoded(part) {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  }

  async function show() {
    const turn = ++state.shown;
    const main = document.createElement("div");
    const first = !document.getElementById("title");
    const place = document.getElementById("main");
    let page;
    try {
      const making = route(main);
      if (!(making instanceof Promise)) place.replaceChildren(main);
      page = await making;
    } catch (error) {
      main.replaceChildren();
      page = lost(main, error.message);
    }
    if (turn !== state.shown) return;
    state.page = page;
    if (main.parentNode !== place) place.replaceChildren(main);
    document.title = `${document.getElementById("title").textContent} · agentmill view`;
    const aim = location.hash.match(/\/turn\/(\d+)$/);
    if (aim) focus(document.getElementById(`turn-${aim[1]}`));
    else if (!first) focus(document.getElementById("title"));
    page.list?.reveal();
    document.body.dataset.shown = location.hash || "#/";
  }

  function lists(index) {
    const trees = new Set(index.runs.tree.filter((each) => each >= 0)).size;
    const links = [
      ["#/", "Trajectories", index.runs.ids.length],
      ["#/pairs", "Pairs", index.pairs.ids.length],
      ["#/trees", "Trees", trees],
    ];
    document.getElementById("run").textContent = dom.visible(index.title);
    document
      .getElementById("lists")
      .append(
        ...links
          .filter(([, , n], at) => n || at === 0)
          .map(([href, words, n]) => el("a", { href }, `${words} (${text.number(n)})`)),
      );
  }

  document.querySelector("script[src='data/index.js']").addEventListener("error", () => {
    const main = document.getElementById("main");
    lost(main, "data/index.js cannot be read; write the view again with agentmill view");
    document.body.dataset.shown = location.hash || "#/";
  });

  agentmill.ready.then((index) => {
    lists(index);
    keys.start();
    document.getElementById("skip").addEventListener("click", (event) => {
      event.preventDefault();
      focus(document.getElementById("main"));
    });
    addEventListener("hashchange", show);
    show();
  });

  return { focus, lost, remember, state };
})();
