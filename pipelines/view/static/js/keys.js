// The keyboard: one key, one action, told in a dialog; they can be switched off, since they may be those of a reader.
"use strict";

const keys = (() => {
  const { el } = dom;
  const SWITCH = "agentmill-keys";
  const TOLD = [
    ["j, k or ↓, ↑", "next and previous row, or turn"],
    ["Page Down, Page Up, Home, End", "through the list"],
    ["Enter", "open the row"],
    ["x", "mark the row"],
    ["c", "compare the two marked"],
    ["/", "search"],
    ["n, p", "next and previous of the list"],
    ["o", "unfold or fold all"],
    ["r", "raw JSON"],
    ["u", "back to the list"],
    ["?", "this help"],
  ];
  let on = true;

  function remembered(value) {
    try {
      if (value !== undefined) localStorage.setItem(SWITCH, value);
      return localStorage.getItem(SWITCH) !== "off";
    } catch {
      return value !== "off";
    }
  }

  function dialog() {
    const box = el("input", { type: "checkbox", id: "keys-on" });
    box.checked = on;
    box.addEventListener("change", () => {
      on = remembered(box.checked ? "on" : "off");
    });
    const close = el("button", { type: "button" }, "Close");
    const element = document.getElementById("keys");
    close.addEventListener("click", () => element.close());
    element.replaceChildren(
      el("h2", { id: "keys-title" }, "Keys"),
      dom.facts(TOLD.map(([key, words]) => [key, words])),
      el("p", null, box, " ", el("label", { for: "keys-on" }, "Use these keys")),
      close,
    );
    element.showModal();
  }

  function turn(by) {
    const all = [...document.querySelectorAll(".turn")].filter((each) => each.getClientRects().length);
    const at = all.indexOf(document.activeElement?.closest?.(".turn"));
    pages.focus(all[Math.max(0, Math.min(all.length - 1, at < 0 ? 0 : at + by))]);
  }

  function move(by) {
    const { page } = pages.state;
    if (page.list) page.list.move(by);
    else if (page.turns) turn(by);
    else return false;
    return true;
  }

  const ACTIONS = {
    j: () => move(1),
    k: () => move(-1),
    x: () => pages.state.page.toggle?.(),
    c: () => pages.state.page.compare?.hidden === false && pages.state.page.compare.click(),
    "/": () => pages.state.page.search?.focus(),
    n: () => pages.state.page.step?.(1),
    p: () => pages.state.page.step?.(-1),
    o: () => document.getElementById("unfold")?.click(),
    r: () => {
      const raw = pages.state.page.raw;
      if (raw) {
        raw.unfold(!raw.open);
        raw.scrollIntoView({ block: "start" });
      }
    },
    u: () => {
      location.hash = pages.state.page.up ?? list.address_of_list();
    },
    "?": dialog,
  };
  const ARROWS = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };

  function pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || document.getElementById("keys").open) return;
    const typing = event.target.closest?.("input:not([type=checkbox]), select, textarea");
    if (event.key === "Escape" && typing) return typing.blur();
    if (typing) return;
    if (event.key in ARROWS && pages.state.page.list && event.target.closest?.(".rows")) {
      event.preventDefault();
      const by = ARROWS[event.key];
      const { list: shown } = pages.state.page;
      shown.move(Number.isFinite(by) ? by : by < 0 ? -shown.at : shown.shown.length - 1 - shown.at);
    } else if (on && Object.hasOwn(ACTIONS, event.key)) {
      event.preventDefault();
      ACTIONS[event.key]();
    }
  }

  function start() {
    on = remembered();
    document.addEventListener("keydown", pressed);
    document.getElementById("help").addEventListener("click", dialog);
  }

  return { start };
})();
