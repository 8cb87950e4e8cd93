"use strict";
// Headers of .sortable tables sort them; a .tools form filters and sorts the table it names.
const valueOf = (cell) => cell.dataset.value ?? cell.textContent.trim();

function sortBy(table, column, down) {
  const body = table.tBodies[0];
  const keyed = [...body.rows].map((row) => {
    const text = valueOf(row.cells[column]);
    const number = Number(text);
    return { row, text, number: text === "" || Number.isNaN(number) ? null : number };
  });
  // numbers before texts, what is missing last in either direction
  const rank = (item) => (item.text === "" ? 2 : item.number === null ? 1 : 0);
  const sign = down ? -1 : 1;
  keyed.sort((a, b) => rank(a) - rank(b)
    || sign * (rank(a) ? a.text.localeCompare(b.text) : a.number - b.number));
  body.append(...keyed.map((item) => item.row));
  [...table.tHead.rows[0].cells].forEach((head, index) => {
    if (index !== column) head.removeAttribute("aria-sort");
    else head.setAttribute("aria-sort", down ? "descending" : "ascending");
  });
  table.dispatchEvent(new Event("sorted"));
}

for (const table of document.querySelectorAll("table.sortable")) {
  const tools = document.querySelector(`form[data-table="${table.id}"]`);
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      sortBy(table, column, down);
      if (tools) { tools.elements.sort.value = column; tools.elements.down.checked = down; }
    });
  });
}

const SOME = 25; // rows shown at once

for (const tools of document.querySelectorAll("form.tools")) {
  const table = document.getElementById(tools.dataset.table);
  const more = document.querySelector(`button[data-table="${table.id}"]`);
  let most = SOME;
  const { text, kind, prompt, sort, down } = tools.elements;
  const show = () => {
    const wanted = text.value.toLowerCase();
    let count = 0;
    for (const row of table.tBodies[0].rows) {
      const fits = (!kind.value || row.dataset.kind === kind.value)
        && (!prompt?.value || row.dataset.prompt === prompt.value)
        && row.textContent.toLowerCase().includes(wanted);
      if (fits) count += 1;
      row.hidden = !fits || count > most;
    }
    const shown = Math.min(count, most);
    tools.querySelector("output").textContent =
      `${shown} of ${count} shown, ${table.tBodies[0].rows.length} in all`;
    more.hidden = shown === count;
  };
  const afresh = () => { most = SOME; show(); };
  tools.addEventListener("submit", (event) => event.preventDefault());
  for (const control of [text, kind, prompt]) control?.addEventListener("input", afresh);
  for (const control of [sort, down]) {
    control.addEventListener("input", () => sortBy(table, Number(sort.value), down.checked));
  }
  table.addEventListener("sorted", show);
  more.addEventListener("click", () => { most += 4 * SOME; show(); });
  show();
}
