// Numbers and texts as people read them.
"use strict";

const text = (() => {
  const { el } = dom;
  const SHOWN = 20000;
  const count = new Intl.NumberFormat("en");

  function number(value) {
    if (value === null || value === undefined) return "–";
    if (typeof value !== "number") return dom.visible(value);
    if (Number.isInteger(value)) return count.format(value);
    const size = Math.abs(value);
    return size >= 100 ? count.format(Math.round(value)) : String(Number(value.toPrecision(3)));
  }

  const seconds = (value) => (value === null || value === undefined ? "–" : `${number(value)} s`);
  const dollars = (value) => (value === null || value === undefined ? "–" : `$${value.toFixed(4)}`);
  const brief = (id) => (id && id.length > 12 && /^[0-9a-f]+$/.test(id) ? id.slice(0, 8) : String(id));

  function oneLine(value, limit = 160) {
    const line = String(value)
      .slice(0, limit * 4)
      .replace(/\s+/g, " ")
      .trim();
    return line.length > limit ? `${line.slice(0, limit - 1)}…` : line;
  }

  // A text as it stands, with its line breaks; of a very long one the beginning and a button for the rest.
  function block(value, kind = "") {
    const whole = String(value);
    const shown = el("pre", { class: `text ${kind}` }, whole.slice(0, SHOWN));
    if (whole.length <= SHOWN) return shown;
    const more = el("button", { type: "button", class: "more" }, `Show all ${number(whole.length)} characters`);
    more.addEventListener("click", () => {
      shown.textContent = dom.visible(whole);
      more.remove();
    });
    return el("div", null, shown, more);
  }

  const json = (value) => JSON.stringify(value, null, 2);

  // Where the string that begins at `from` ends: no regular expression, whose stack would grow with the escapes.
  function end(source, from) {
    let at = from + 1;
    while (at < source.length && source[at] !== '"') at += source[at] === "\\" ? 2 : 1;
    return at + 1;
  }

  function tokens(source) {
    const found = [];
    const start = /["{}[\],:]|[^\s"{}[\],:]+/g;
    for (let match = start.exec(source); match; match = start.exec(source)) {
      if (match[0] === '"') start.lastIndex = end(source, match.index);
      found.push(source.slice(match.index, start.lastIndex));
    }
    return found;
  }

  // JSON text with line breaks, its numbers and strings left exactly as they are.
  function pretty(source) {
    const parts = tokens(source);
    let depth = 0;
    let out = "";
    const line = () => `\n${"  ".repeat(depth)}`;
    parts.forEach((part, at) => {
      if (part === "{" || part === "[") {
        depth += 1;
        out += "}]".includes(parts[at + 1]) ? part : part + line();
      } else if (part === "}" || part === "]") {
        depth -= 1;
        out += "{[".includes(parts[at - 1]) ? part : line() + part;
      } else if (part === ",") out += part + line();
      else out += part === ":" ? ": " : part;
    });
    return out;
  }

  return { block, brief, dollars, json, number, oneLine, pretty, seconds };
})();
