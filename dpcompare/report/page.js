"use strict";
// Sorting by a column, and the value of a mark under the pointer. The page is complete without either.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const descending = head.getAttribute("aria-sort") === "ascending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const value = row => {
      const text = row.cells[column].textContent.trim();
      const number = parseFloat(text.replace(/,/g, ""));
      return Number.isNaN(number) || row.cells[column].tagName === "TH" ? text : number;
    };
    const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b
      : typeof a === "number" ? -1 : typeof b === "number" ? 1 : a.localeCompare(b);
    const rows = [...body.rows].sort((a, b) => compare(value(a), value(b)) * (descending ? -1 : 1));
    body.append(...rows);
  }));
}
const tip = document.getElementById("tip");
const show = event => {
  const mark = event.target.closest && event.target.closest('[role="graphics-symbol"][aria-label]');
  tip.hidden = !mark;
  if (!mark) return;
  tip.textContent = mark.getAttribute("aria-label");
  const box = mark.getBoundingClientRect();
  const x = event.clientX === undefined ? box.left : event.clientX;
  const y = event.clientY === undefined ? box.bottom : event.clientY;
  tip.style.left = Math.max(8, Math.min(x + 12, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = Math.min(y + 16, innerHeight - tip.offsetHeight - 8) + "px";
};
document.addEventListener("pointermove", show);
document.addEventListener("pointerdown", show);
