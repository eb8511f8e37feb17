// The calculation of docs/sizing.html against docs/SIZING.md: every cell of its table of examples
// is what the page shows, and every preset of the page is in its table of models. Run by
// tools/check-docs.tcl, from the root.
"use strict";
const fs = require("fs");
const vm = require("vm");

const text = fs.readFileSync("docs/SIZING.md", "utf8");
const code = fs
  .readFileSync("docs/sizing.html", "utf8")
  .match(/<script id="calculation">([\s\S]*?)<\/script>/)[1];
const page = vm.runInNewContext(code + "; ({ MODELS, INPUTS, OUTPUTS, size, notes })");
const problems = [];

const rows = text
  .split("\n")
  .filter((line) => line.startsWith("| "))
  .map((line) =>
    line
      .split("|")
      .slice(1, -1)
      .map((cell) => cell.trim()),
  );
const first = rows.findIndex((row) => row[0] === "example");
const columns = first < 0 ? [] : rows[first].slice(1);
if (columns.length < 3) problems.push("docs/SIZING.md has no table of examples");
const find = (label) => rows.slice(first).find((row) => row[0] === label);

columns.forEach((name, column) => {
  const model = page.MODELS[name];
  if (model === undefined) return problems.push(`${name} is no preset of docs/sizing.html`);
  const v = Object.fromEntries(page.INPUTS.map(([key, , value]) => [key, value]));
  Object.assign(v, model);
  for (const [key, label] of page.INPUTS) if (find(label)) v[key] = Number(find(label)[column + 1]);
  const r = page.size(v);
  for (const [key, label, format] of page.OUTPUTS) {
    const row = find(label);
    if (row === undefined) problems.push(`"${label}" is not in the examples`);
    else if (row[column + 1] !== format(r[key]))
      problems.push(`${name}, ${label}: the page shows ${format(r[key])}, not ${row[column + 1]}`);
  }
  const [hits, all] = [
    { ...v, hit: 100 },
    { ...v, hit: 0 },
  ].map(page.size);
  if (hits.bytesIn !== 0 || all.bytesOut !== 0)
    problems.push(`${name}: what is found is not computed anew`);
});
for (const [name, model] of Object.entries(page.MODELS)) {
  const perToken = page.OUTPUTS.find((o) => o[0] === "perToken")[2](
    page.size({ ...model, element: 2, ranks: 1, block: 1 }).perToken,
  );
  const row = rows.find((r) => r[0] === name);
  if (row === undefined || row[row.length - 1] !== perToken)
    problems.push(`${name} with ${perToken} a token is not in the table of models`);
}
if (page.notes({ tokens: 1, block: 16 }, { perToken: 0, object: 0, master: 0 }).length !== 2)
  problems.push("the page does not say what is wrong");

for (const p of problems) console.log(p);
process.exit(problems.length > 0 ? 1 : 0);
