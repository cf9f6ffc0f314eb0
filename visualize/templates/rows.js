"use strict";
// Rows from the page's JSON, a hundred at a time: a click on a heading sorts all of them, a second click turns the
// order; #filter keeps those with all its words. A cell is its text, or [text, what it is sorted by].
const AT_ONCE = 100;
const collator = new Intl.Collator("en", { numeric: true });
const table = document.querySelector("table.sortable");
const heads = Array.from(table.tHead.rows[0].cells);
const numeric = heads.map((head) => head.classList.contains("number"));
const said = (cell) => (Array.isArray(cell) ? cell[0] : cell);
const every = JSON.parse(document.getElementById("rows").textContent);
const words = every.map((row) => row.map(said).join(" ").toLowerCase());
const filter = document.getElementById("filter");
const pager = document.querySelector(".pager");
let order = every.map((_, at) => at);
let shown = order;
let from = 0;

// What a cell is sorted by; null (always last) where there is nothing, or no number among numbers.
function key(cell, column) {
  const text = Array.isArray(cell) ? cell[1] : cell;
  if (!numeric[column]) return text || null;
  const value = parseFloat(text.replaceAll(",", ""));
  return Number.isNaN(value) ? null : value;
}

function compare(a, b, sign) {
  if (a === null || b === null) return (a === null) - (b === null);
  return sign * (typeof a === "number" ? a - b : collator.compare(a, b));
}

function draw() {
  const lines = shown.slice(from, from + AT_ONCE).map((at) => {
    const line = document.createElement("tr");
    every[at].forEach((cell, column) => {
      const place = line.insertCell();
      if (numeric[column]) place.className = "number";
      place.appendChild(document.createElement("bdi")).textContent = said(cell);
    });
    return line;
  });
  table.tBodies[0].replaceChildren(...lines);
  const end = Math.min(from + AT_ONCE, shown.length);
  document.getElementById("count").textContent =
    `${shown.length} of ${every.length} rows` + (shown.length > AT_ONCE ? `, ${from + 1} to ${end} shown` : "");
  document.getElementById("back").disabled = from === 0;
  document.getElementById("more").disabled = end === shown.length;
  pager.hidden = shown.length <= AT_ONCE;
}

function choose() {
  const asked = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  shown = order.filter((at) => asked.every((word) => words[at].includes(word)));
  from = 0;
  draw();
}

function sort(column) {
  const down = heads[column].getAttribute("aria-sort") === "ascending";
  for (const head of heads) head.removeAttribute("aria-sort");
  heads[column].setAttribute("aria-sort", down ? "descending" : "ascending");
  const keys = every.map((row) => key(row[column], column));
  order.sort((a, b) => compare(keys[a], keys[b], down ? -1 : 1));
  choose();
}

heads.forEach((head, column) => {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...head.childNodes);
  head.append(button);
  button.addEventListener("click", () => sort(column));
});
for (const [name, step] of [["back", -AT_ONCE], ["more", AT_ONCE]]) {
  document.getElementById(name).addEventListener("click", () => {
    from += step;
    draw();
  });
}
filter.parentElement.hidden = false;
filter.addEventListener("input", choose);
choose();
