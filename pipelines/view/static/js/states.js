// What changed in the world: states told apart by their digests, and lines that came and went.
"use strict";

const states = (() => {
  // Names for digests, S0, S1 …, in the order they first appear; the same over all runs that share `names`.
  function name(names, digest) {
    if (!names.has(digest)) names.set(digest, `S${names.size}`);
    return names.get(digest);
  }

  // For each item {before, after, kind} where the world was looked at: what came of the state since the last time.
  function path(items, names = new Map()) {
    const visited = new Set();
    let before = null;
    return items.map((item) => {
      if (!item.state_digest) return null;
      const after = name(names, item.state_digest);
      const kind = before === null ? "first" : after === before ? "same" : visited.has(after) ? "back" : "new";
      const step = { before, after, kind };
      visited.add(after);
      before = after;
      return step;
    });
  }

  function words(step) {
    if (step.kind === "first") return `state ${step.after}`;
    if (step.kind === "same") return `state ${step.after} unchanged`;
    return `state ${step.before} → ${step.after}${step.kind === "back" ? " (again)" : ""}`;
  }

  const parts = (content) =>
    content
      .split(/\n|(?<=[.;])\s+/)
      .map((part) => part.trim().replace(/[.;]$/, ""))
      .filter(Boolean);

  // [sign, part] of two texts that describe the same thing: "-" only before, "+" only after. Null if they have too
  // little in common for that, or nothing differs.
  function difference(before, after) {
    if (before.length > 50000 || after.length > 50000) return null;
    const old = parts(before);
    const fresh = parts(after);
    const common = fresh.filter((part) => old.includes(part)).length;
    if (common * 2 < Math.max(old.length, fresh.length) || common === Math.max(old.length, fresh.length)) return null;
    return [
      ...old.filter((part) => !fresh.includes(part)).map((part) => ["-", part]),
      ...fresh.filter((part) => !old.includes(part)).map((part) => ["+", part]),
    ];
  }

  return { difference, name, path, words };
})();
