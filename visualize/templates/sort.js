"use strict";
// Tables of class "sortable" sort by a click on a heading, a second click turns the order; #filter hides rows.
const collator = new Intl.Collator("en", { numeric: true });

// What a cell is sorted by; null (always last) where there is nothing, or no number among numbers.
function key(cell, numeric) {
  const text = cell.dataset.key || cell.textContent.trim();
  if (!numeric) return text || null;
  const value = parseFloat(text.replaceAll(",", ""));
  return Number.isNaN(value) ? null : value;
}

function compare(a, b, sign) {
  if (a === null || b === null) return (a === null) - (b === null);
  return sign * (typeof a === "number" ? a - b : collator.compare(a, b));
}

function sort(table, index, button) {
  const header = button.closest("th");
  const down = header.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.querySelectorAll("th")) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
  const numeric = header.classList.contains("number");
  const body = table.tBodies[0];
  const rows = Array.from(body.rows, (row) => [key(row.cells[index], numeric), row]);
  rows.sort(([a], [b]) => compare(a, b, down ? -1 : 1));
  body.append(...rows.map(([, row]) => row));
}

for (const table of document.querySelectorAll("table.sortable")) {
  for (const header of table.tHead.rows[table.tHead.rows.length - 1].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => sort(table, header.cellIndex, button));
  }
}

const filter = document.getElementById("filter");
if (filter) {
  const rows = Array.from(document.querySelectorAll("table.sortable tbody tr"));
  const count = document.getElementById("count");
  filter.parentElement.hidden = false;
  const apply = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    count.textContent = `${shown} of ${rows.length} rows`;
  };
  filter.addEventListener("input", apply);
  apply();
}
