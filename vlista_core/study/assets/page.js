"use strict";
/* Tables that sort, pictures that open at full size, and a switch between light and dark. */

/* The number that a cell begins with; null for words. */
function numberOf(text) {
  const found = /^[+\u2212-]?\d[\d,]*(\.\d+)?(e[+-]?\d+)?/.exec(text.trim());
  return found ? Number(found[0].replace("\u2212", "-").replace(/,/g, "")) : null;
}

/* Rows by a column: numbers by size, words by the alphabet and after all numbers. */
function compare(column, direction) {
  return (one, two) => {
    const [first, second] = [one, two].map((row) => row.cells[column].textContent);
    const [a, b] = [numberOf(first), numberOf(second)];
    if (a !== null && b !== null) return direction * (a - b);
    if (a === null && b === null) return direction * first.localeCompare(second);
    return a === null ? 1 : -1;
  };
}

for (const table of document.querySelectorAll("table.sorts")) {
  const body = table.tBodies[0], original = [...body.rows], heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    if (!head.textContent) button.setAttribute("aria-label", "name");
    head.replaceChildren(button);
    head.classList.add("sortable");
    button.addEventListener("click", () => {
      const next = { none: "ascending", ascending: "descending", descending: "none" }[head.getAttribute("aria-sort") ?? "none"];
      for (const other of heads) other.removeAttribute("aria-sort");
      if (next !== "none") head.setAttribute("aria-sort", next);
      const rows = next === "none" ? original : [...original].sort(compare(column, next === "ascending" ? 1 : -1));
      body.append(...rows);
    });
  });
}

/* Columns that are shaded can be left out: a name for each above the table. */
for (const table of document.querySelectorAll("table.fields")) {
  const legend = document.createElement("div");
  legend.className = "legend";
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    if (![...table.tBodies[0].rows].some((row) => row.cells[column].classList.contains("shaded"))) return;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(shown));
      for (const row of table.rows) row.cells[column].hidden = !shown;
    });
    legend.append(button);
  });
  table.parentElement.before(legend);
}

for (const picture of document.querySelectorAll("img.picture"))
  picture.addEventListener("click", () => {
    const dialog = document.createElement("dialog"), image = picture.cloneNode();
    image.className = "";
    dialog.append(image);
    dialog.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  });

const KEY = "vlista-theme", SCHEMES = ["auto", "light", "dark"], switcher = document.getElementById("theme");
let scheme = "auto";
try {
  scheme = localStorage.getItem(KEY) ?? scheme;
} catch {
  /* A page that was opened from a file may have no storage. */
}
function setScheme(name) {
  scheme = SCHEMES.includes(name) ? name : "auto";
  if (scheme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = scheme;
  switcher.textContent = `Colours: ${scheme}`;
  try {
    localStorage.setItem(KEY, scheme);
  } catch {
    /* Then the choice lasts as long as the page. */
  }
}
switcher.hidden = false;
switcher.addEventListener("click", () => setScheme(SCHEMES[(SCHEMES.indexOf(scheme) + 1) % SCHEMES.length]));
setScheme(scheme);
