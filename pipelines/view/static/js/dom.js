// Elements from plain values. Text is always a text node: nothing from the data is ever read as HTML.
"use strict";

const dom = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const READ = new Set(["title", "aria-label"]);

  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes ?? {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value === true) element.setAttribute(name, "");
      else element.setAttribute(name, READ.has(name) ? visible(value) : String(value));
    }
    add(element, children);
    return element;
  }

  function code(character) {
    const point = character.codePointAt(0);
    if (point < 0x20) return String.fromCharCode(0x2400 + point);
    if (point === 0x7f) return "\u2421";
    const digits = point.toString(16).padStart(4, "0");
    return digits.length > 4 ? `\\u{${digits}}` : `\\u${digits}`;
  }

  // A text whose control and format characters are seen: they turn the direction of writing or show nothing at all,
  // and could disguise what is there. Line breaks and tabs stay, and what joins emoji.
  function visible(value) {
    const plain = JSON.isRawJSON?.(value) ? value.rawJSON : String(value);
    return plain.replace(/[\p{Cc}\p{Cf}]/gu, (each) => ("\t\n\r\u200d".includes(each) ? each : code(each)));
  }

  function add(element, children) {
    for (const child of children) {
      if (Array.isArray(child)) add(element, child);
      else if (child instanceof Node) element.append(child);
      else if (child !== null && child !== undefined && child !== false) element.append(visible(child));
    }
  }

  const el = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
  const svg = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);
  const chip = (kind, text, hint) => el("span", { class: `chip ${kind}`, title: hint }, text);

  // A part that can be folded; its inside is made when it is first opened.
  function folded(attributes, summary, inside, open = false) {
    const body = el("div", { class: "inside" });
    const element = el("details", attributes, el("summary", null, summary), body);
    const make = () => {
      if (element.open && !body.hasChildNodes()) add(body, [inside()]);
    };
    element.addEventListener("toggle", make);
    element.unfold = (to) => {
      element.open = to;
      make();
    };
    if (open) element.unfold(true);
    return element;
  }

  // (name, value) as a list; what has no value is left out.
  function facts(pairs) {
    const given = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
    return given.length
      ? el(
          "dl",
          { class: "facts" },
          given.map(([name, value]) => [el("dt", null, name), el("dd", null, value)]),
        )
      : null;
  }

  function table(caption, heads, rows) {
    return el(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
      el(
        "table",
        null,
        el("caption", null, caption),
        el(
          "thead",
          null,
          el(
            "tr",
            null,
            heads.map((head) => el("th", { scope: "col" }, head)),
          ),
        ),
        el(
          "tbody",
          null,
          rows.map((row) =>
            el(
              "tr",
              null,
              row.map((cell) => el("td", null, cell)),
            ),
          ),
        ),
      ),
    );
  }

  function tell(text) {
    document.getElementById("told").textContent = text;
  }

  // Append elements, texts and lists of these; what is nothing is left out.
  const put = (element, ...children) => add(element, children);

  return { chip, el, facts, folded, put, svg, table, tell, visible };
})();
