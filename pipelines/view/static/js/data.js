// The data of a view. Data files are scripts that call `agentmill.add` with JSON as text, since a page on a disk may
// load scripts but not fetch files. The text is parsed as JSON and never run.
"use strict";

const agentmill = (() => {
  const KEPT_FILES = 12;
  const shelves = new Map();
  const files = new Map();
  const trusted = globalThis.trustedTypes
    ? globalThis.trustedTypes.createPolicy("agentmill", { createScriptURL: checked })
    : { createScriptURL: checked };
  let started;
  const ready = new Promise((resolve) => {
    started = resolve;
  });
  const view = { index: null, places: null };

  function checked(path) {
    if (!/^data\/[a-z]+-[0-9]{5,}\.js$/.test(path)) throw new TypeError(`no data file: ${path}`);
    return path;
  }

  function start(text) {
    view.index = JSON.parse(text);
    started(view.index);
  }

  // What a data file calls: entries of a place may be in any order.
  function add(shelf, place, kind, text) {
    const places = shelves.get(shelf) ?? new Map();
    shelves.set(shelf, places);
    if (!places.has(place)) places.set(place, []);
    places.get(place).push([kind, text]);
  }

  function script(path) {
    return new Promise((resolve, reject) => {
      const element = document.createElement("script");
      element.onload = () => {
        element.remove();
        resolve();
      };
      element.onerror = () => {
        element.remove();
        reject(new Error(`${path} cannot be read; write the view again with agentmill view`));
      };
      element.src = trusted.createScriptURL(path);
      document.head.append(element);
    });
  }

  function forget(key) {
    const [shelf, number] = key.split("-");
    const first = number * view.index.per_file[shelf];
    for (let place = first; place < first + view.index.per_file[shelf]; place += 1) shelves.get(shelf)?.delete(place);
    files.delete(key);
  }

  function file(shelf, number) {
    const key = `${shelf}-${number}`;
    if (!files.has(key)) forget(key);
    const loading = files.get(key) ?? script(`data/${shelf}-${String(number).padStart(5, "0")}.js`);
    files.delete(key);
    files.set(key, loading);
    loading.catch(() => files.delete(key));
    return loading;
  }

  // All entries of a place as {kind: [value, …]}, each with its text in `texts`; an empty object if there are none.
  async function load(shelf, place) {
    const found = { texts: {} };
    const number = Math.floor(place / view.index.per_file[shelf]);
    if (!view.index.files[shelf].includes(number)) return found;
    await file(shelf, number);
    for (const [kind, text] of shelves.get(shelf)?.get(place) ?? []) {
      (found[kind] ??= []).push(JSON.parse(text, exact));
      (found.texts[kind] ??= []).push(text);
    }
    while (files.size > KEPT_FILES) forget(files.keys().next().value);
    return found;
  }

  // A page that was open while its view was written again would show one trajectory under the name of another.
  function sure(found, expected) {
    if (found !== expected) throw new Error("this view was written again: reload the page");
  }

  // The entries of the trajectory in a row.
  async function run(row) {
    const entries = await load("runs", row);
    sure(entries.record?.[0].trajectory_id, view.index.runs.ids[row]);
    return entries;
  }

  // Integers that a double cannot hold stay as they were written, where the browser can. What was written as a
  // fraction or with an exponent is a double already.
  function exact(key, value, context) {
    const inexact = typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value);
    const whole = inexact && context?.source && !/[.eE]/.test(context.source);
    return whole && JSON.rawJSON ? JSON.rawJSON(context.source) : value;
  }

  // The row of the trajectory with an id; -1 if there is none.
  function place(id) {
    view.places ??= new Map(view.index.runs.ids.map((each, row) => [each, row]));
    return view.places.get(id) ?? -1;
  }

  return { add, load, place, ready, run, start, sure, view };
})();
