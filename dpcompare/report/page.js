"use strict";
// Sorting by a column, the value of a mark under the pointer or by keyboard, the run of a point, arms that are left out,
// and paper. The page is complete without them.
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
const show = (mark, x, y) => {
  tip.hidden = !mark;
  if (!mark) return;
  tip.textContent = mark.getAttribute("aria-label");
  tip.style.left = Math.max(8, Math.min(x + 12, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = Math.min(y + 16, innerHeight - tip.offsetHeight - 8) + "px";
};
const MARK = '[aria-roledescription="point"][aria-label], [aria-roledescription="bar"][aria-label]';
const underPointer = event => show(event.target.closest && event.target.closest(MARK), event.clientX, event.clientY);
document.addEventListener("pointermove", underPointer);
document.addEventListener("pointerdown", underPointer);
// A point of a run leads to its row in the table of runs.
const runs = new Map([...document.querySelectorAll("tr[data-run]")].map(row => [row.dataset.run, row]));
const openRun = mark => {
  const row = mark && runs.get(mark.getAttribute("aria-label"));
  if (!row) return;
  runs.forEach(each => each.classList.toggle("current", each === row));
  row.closest("details").open = true;
  row.scrollIntoView({ block: "center" });
  row.focus({ preventScroll: true });
};
document.addEventListener("click", event => openRun(event.target.closest && event.target.closest(MARK)));
// By keyboard every plot is one stop, and the arrow keys go from mark to mark.
for (const plot of document.querySelectorAll("figure svg")) {
  const marks = [...plot.querySelectorAll(MARK)];
  if (!marks.length) continue;
  plot.tabIndex = 0;
  let current = -1;
  const go = to => {
    if (current >= 0) marks[current].classList.remove("current");
    current = to;
    if (current < 0) return show(null);
    marks[current].classList.add("current");
    const box = marks[current].getBoundingClientRect();
    show(marks[current], box.left, box.bottom);
  };
  plot.addEventListener("keydown", event => {
    if (event.key === "Enter") return openRun(marks[current]);
    const shown = marks.flatMap((mark, number) => mark.classList.contains("off") ? [] : [number]);
    const after = shown.find(number => number > current) ?? shown.at(-1);
    const before = shown.findLast(number => number < current) ?? shown[0];
    const to = { ArrowRight: after, ArrowDown: after, ArrowLeft: before, ArrowUp: before, Home: shown[0],
      End: shown.at(-1), Escape: -1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    go(to);
  });
  plot.addEventListener("blur", () => go(-1));
}
// Arms can be left out: their marks, and their rows.
const rows = [...document.querySelectorAll("tr[data-arm]")];
const arms = [...new Set(rows.map(row => row.dataset.arm))];
if (arms.length > 1) {
  const parts = new Map(arms.map(arm => [arm, []]));
  const letters = text => text.replace(/\s/g, "");
  const known = new Map(arms.map(arm => [letters(arm), arm]));
  const longest = [...arms].sort((a, b) => b.length - a.length);
  for (const mark of document.querySelectorAll("figure svg [aria-label][role=graphics-symbol]")) {
    const label = mark.getAttribute("aria-label");
    const arm = longest.find(each => label.startsWith(each) && ["", ",", ":"].includes(label.slice(each.length)[0] || ""));
    if (arm !== undefined) parts.get(arm).push(mark);
  }
  for (const text of document.querySelectorAll("figure svg text")) { // a folded name has no spaces between its lines
    const arm = known.get(letters(text.textContent));
    if (arm !== undefined) parts.get(arm).push(text);
  }
  const box = document.createElement("fieldset");
  box.className = "arms";
  box.append(Object.assign(document.createElement("legend"), { textContent: "Arms shown" }));
  for (const arm of arms) {
    const check = Object.assign(document.createElement("input"), { type: "checkbox", checked: true });
    check.addEventListener("change", () => {
      parts.get(arm).forEach(part => part.classList.toggle("off", !check.checked));
      rows.filter(row => row.dataset.arm === arm).forEach(row => { row.hidden = !check.checked; });
    });
    const label = document.createElement("label");
    label.append(check, " " + arm);
    box.append(label);
  }
  document.querySelector("nav").after(box);
}
// The page of a running study loads itself again, until a reader uses it: what was unfolded and left out would be lost.
const reloads = document.getElementById("reloads");
if (reloads) {
  setInterval(() => { if (reloads.checked) location.reload(); }, 1000 * reloads.dataset.seconds);
  for (const kind of ["click", "keydown"]) document.querySelector("main").addEventListener(kind, event => {
    if (event.target !== reloads && event.target.closest("button, summary, .arms, svg")) reloads.checked = false;
  });
}
// On paper nothing can be unfolded.
const folded = [];
addEventListener("beforeprint", () => document.querySelectorAll("details:not([open])").forEach(each => {
  each.open = true;
  folded.push(each);
}));
addEventListener("afterprint", () => folded.splice(0).forEach(each => { each.open = false; }));
