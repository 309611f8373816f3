// Which rows of a list are shown, and in which order: pure functions over columns.
"use strict";

const filter = (() => {
  // Facets of a list as {name: {values, codes, sets?}}: a code is a value, or a set of values.
  function facets(list) {
    return { ...list.facets, ...list.sets };
  }

  // For each code of a facet (shifted by one: -1 is nothing), whether rows with it are shown.
  function allowed(facet, value) {
    const codes = facet.sets ?? facet.values;
    const chosen = facet.values.indexOf(value);
    const table = new Uint8Array(codes.length + 1);
    codes.forEach((each, code) => {
      table[code + 1] = facet.sets ? each.includes(chosen) : code === chosen;
    });
    if (value === "") table[facet.sets ? 1 : 0] = 1;
    return table;
  }

  // Rows that hold every word of the query in one of their texts, as a byte per row; null if there is no query.
  function found(list, query) {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return null;
    const rows = list.ids.length;
    const hit = new Uint8Array(rows).fill(1);
    const columns = [list.title, list.task, ...Object.values(list.facets)].filter(Boolean);
    list.lower ??= list.ids.map((id) => id.toLowerCase());
    for (const word of words) {
      const tables = columns.map((column) => {
        column.lower ??= column.values.map((value) => value.toLowerCase());
        return Uint8Array.from([0, ...column.lower.map((value) => (value.includes(word) ? 1 : 0))]);
      });
      for (let row = 0; row < rows; row += 1) {
        if (hit[row])
          hit[row] = tables.some((table, at) => table[columns[at].codes[row] + 1]) || list.lower[row].includes(word);
      }
    }
    return hit;
  }

  // {rows, counts}: the rows that pass, and for each facet how many rows each of its codes has, all other facets
  // being as chosen. `chosen` is {facet: value}; "" stands for nothing.
  function apply(list, chosen, query) {
    const all = Object.entries(facets(list));
    const counts = Object.fromEntries(
      all.map(([name, each]) => [name, new Uint32Array((each.sets ?? each.values).length + 1)]),
    );
    const active = all
      .filter(([name]) => chosen[name] !== undefined)
      .map(([name, each]) => ({ name, codes: each.codes, table: allowed(each, chosen[name]) }));
    const hit = found(list, query);
    const rows = [];
    const passing = all.map(([name, each]) => [counts[name], each.codes]);
    for (let row = 0; row < list.ids.length; row += 1) {
      if (hit && !hit[row]) continue;
      let failed = null;
      let failures = 0;
      for (const each of active) {
        if (!each.table[each.codes[row] + 1]) {
          failed = each;
          failures += 1;
        }
      }
      if (failures === 0) {
        rows.push(row);
        for (const [count, codes] of passing) count[codes[row] + 1] += 1;
      } else if (failures === 1) counts[failed.name][failed.codes[row] + 1] += 1;
    }
    return { rows, counts };
  }

  // [value, rows] of a facet, most frequent first, "" for nothing; what has no rows is left out.
  function options(facet, count) {
    const sums = new Map();
    (facet.sets ?? facet.values).forEach((each, code) => {
      const values = facet.sets ? each.map((one) => facet.values[one]) : [each];
      for (const value of values.length ? values : [""]) sums.set(value, (sums.get(value) ?? 0) + count[code + 1]);
    });
    if (count[0]) sums.set("", (sums.get("") ?? 0) + count[0]);
    return [...sums].filter(([, rows]) => rows).sort((one, other) => other[1] - one[1]);
  }

  // The rows by a column of numbers, those without one last; ties as they were.
  function sort(rows, numbers, descending) {
    const sign = descending ? -1 : 1;
    const has = rows.filter((row) => numbers[row] !== null);
    const lacks = rows.filter((row) => numbers[row] === null);
    return [...has.sort((one, other) => sign * (numbers[one] - numbers[other])), ...lacks];
  }

  return { apply, facets, options, sort };
})();
