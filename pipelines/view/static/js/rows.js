// A list of very many rows of which only those in sight are elements, with one row that the keyboard is on.
"use strict";

const rows = (() => {
  const { el } = dom;
  const HEIGHT = 40;
  const SPARE = 8;
  const LARGEST = 30000000;

  // `cells(row)` makes the cells of a row, the first link in which opens it. `label` names the list.
  function list(label, heads, cells) {
    const space = el("div", { class: "space", role: "rowgroup" });
    const head = el(
      "div",
      { role: "rowgroup", class: "heads" },
      el("div", { role: "row", class: "row head" }, heads),
    );
    const box = el("div", { class: "rows", role: "table", "aria-label": label }, head, space);
    const made = new Map();
    const self = { box, shown: [], at: 0 };
    let scale = 1;

    function line(at) {
      const row = self.shown[at];
      const element = el("div", { class: "row", role: "row", "aria-rowindex": at + 2 }, cells(row));
      element.dataset.at = at;
      return element;
    }

    function render() {
      const sight = Math.ceil(box.clientHeight / HEIGHT);
      const first = Math.max(0, Math.floor((box.scrollTop * scale) / HEIGHT) - SPARE);
      const last = Math.min(self.shown.length, first + sight + 2 * SPARE);
      for (const [at, element] of made) {
        if (at < first || at >= last) {
          element.remove();
          made.delete(at);
        }
      }
      for (let at = first; at < last; at += 1) {
        if (!made.has(at)) {
          made.set(at, line(at));
          space.append(made.get(at));
        }
      }
      const slip = box.scrollTop - box.scrollTop * scale;
      for (const [at, element] of made) {
        element.style.top = `${at * HEIGHT + slip}px`;
        element.classList.toggle("current", at === self.at);
        for (const each of element.querySelectorAll("a, input")) each.tabIndex = at === self.at ? 0 : -1;
      }
    }

    // Show other rows, from the top unless `at` says where the keyboard was.
    self.show = (shown, at = 0) => {
      self.shown = shown;
      self.at = Math.min(at, Math.max(0, shown.length - 1));
      scale = Math.max(1, (shown.length * HEIGHT) / LARGEST);
      space.style.height = `${(shown.length * HEIGHT) / scale}px`;
      box.setAttribute("aria-rowcount", shown.length + 1);
      for (const element of made.values()) element.remove();
      made.clear();
      box.scrollTop = 0;
      if (self.at) reveal();
      render();
    };

    function reveal() {
      const top = (self.at * HEIGHT) / scale;
      const inner = box.clientHeight - head.clientHeight - HEIGHT;
      if (top < box.scrollTop) box.scrollTop = top;
      if (top > box.scrollTop + inner) box.scrollTop = top - inner;
    }

    self.reveal = () => {
      reveal();
      render();
    };
    self.move = (by) => {
      self.at = Math.max(0, Math.min(self.shown.length - 1, self.at + by));
      self.reveal();
      made.get(self.at)?.querySelector("a")?.focus({ preventScroll: true });
    };
    self.row = () => self.shown[self.at];
    box.addEventListener("scroll", render, { passive: true });
    box.addEventListener("focusin", (event) => {
      const at = event.target.closest(".row")?.dataset.at;
      if (at !== undefined) {
        self.at = Number(at);
        render();
      }
    });
    new ResizeObserver(render).observe(box);
    return self;
  }

  return { list };
})();
