// SPDX-License-Identifier: Apache-2.0
"use strict";
// Sorting and filtering of the tables; all else on the page works without this.

// A cell as something to sort by: sizes by their product, numbers by value, words as they are.
function value(cell) {
  const text = cell.textContent.replace(/^[▲▼✗]\s*/, "");
  if (text === "∞") return Infinity;
  if (!/^-?[\d.]/.test(text)) return text;
  const numbers = text.split("×").map(parseFloat).filter((n) => !isNaN(n));
  return numbers.reduce((product, n) => product * n, 1);
}

function order(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return a < b ? -1 : a > b ? 1 : 0;
}

function sort(table, head, column) {
  const up = head.getAttribute("aria-sort") !== "ascending";
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const body = table.tBodies[0];
  const rows = Array.from(body.rows, (row) => [value(row.cells[column]), row]);
  // What is unknown comes last either way.
  rows.sort(([a], [b]) => (a === "") - (b === "") || (up ? order(a, b) : order(b, a)));
  body.append(...rows.map(([, row]) => row));
}

for (const table of document.querySelectorAll("table.sortable")) {
  Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => sort(table, head, column));
  });
}

const section = document.getElementById("every-measurement");
if (section) {
  const label = document.createElement("label");
  const input = document.createElement("input");
  label.className = "filter";
  input.type = "search";
  label.append("Only rows with these words: ", input);
  section.querySelector("details").before(label);
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const part of section.querySelectorAll("details")) {
      const name = part.querySelector("summary b").textContent;
      let shown = 0;
      for (const row of part.querySelectorAll("tbody tr")) {
        const cells = Array.from(row.cells, (cell) => cell.textContent);
        const text = [name, ...cells].join(" ").toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        shown += !row.hidden;
      }
      part.hidden = shown === 0;
      if (words.length && shown) part.open = true;
    }
  });
}
