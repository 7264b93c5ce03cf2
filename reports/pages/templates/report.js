// The report without this script is complete: every cell links to its row in "What was expected, and why".
// With it, a dialog beside the matrix shows that row, and the matrices can be searched, filtered, sorted and walked.
"use strict";
(() => {
  const find = document.getElementById("find");
  const dialog = document.getElementById("dialog");
  if (!find) return; // a run without records
  const cells = [...document.querySelectorAll(".matrix td[id]")];
  const SHOWN = 300; // found records up to which the families that hold them unfold

  // --- A record: its cell, its row among the reasons, and the texts of both --------------------------------------

  const rowOf = (cell) => document.getElementById(cell.firstChild.hash.slice(1));
  const texts = (list) => [...list].map((element) => element.textContent);
  const link = (element) => element?.querySelector("a:not([hidden])");

  // Label and text of all that is known of a record: what the records of its expectation share, and its own row.
  function known(cell) {
    const row = rowOf(cell);
    const shared = row.closest(".reason").querySelector("dl");
    const labels = [...texts(shared.querySelectorAll("dt")), ...texts(row.closest("table").tHead.rows[0].cells)];
    const values = [...texts(shared.querySelectorAll("dd")), ...texts(row.cells)];
    return new Map(labels.map((label, i) => [label, values[i].trim()]));
  }

  function axiomAndExplainer(cell) {
    const axiom = cell.closest(".axiom").querySelector("h3").textContent;
    return [axiom, cell.closest("table").tHead.rows[0].cells[cell.cellIndex].textContent];
  }

  // --- The dialog --------------------------------------------------------------------------------------------------

  const APART = ["axiom", "explainer", "subject", "verdict", "finding", "traceback", "reproduce"]; // not in the list
  let shown = null; // the cell whose reason the dialog shows

  function element(name, text, of) {
    const made = document.createElement(name);
    made.textContent = text;
    of.append(made);
    return made;
  }

  function show(cell) {
    hide();
    const values = known(cell);
    const content = document.getElementById("dialog-content");
    content.replaceChildren();
    document.getElementById("dialog-title").textContent = axiomAndExplainer(cell).join(": ") + ` on ${values.get("subject")}`;
    element("p", values.get("verdict"), content).className = `verdict ${cell.classList[0]}`;
    if (values.get("finding")) element("p", values.get("finding"), content);
    const list = element("dl", "", content);
    for (const [label, text] of values) {
      if (text && !APART.includes(label)) {
        element("dt", label, list);
        element("dd", text, list);
      }
    }
    if (values.get("traceback")) element("pre", values.get("traceback"), content).tabIndex = 0;
    const command = document.getElementById("dialog-command");
    command.hidden = !values.get("reproduce");
    command.querySelector("code").textContent = values.get("reproduce") || "";
    command.querySelector("[role=status]").textContent = "";
    document.getElementById("dialog-link").href = `#${cell.id}`;
    document.getElementById("dialog-reason").href = `#${rowOf(cell).closest(".reason").id}`;
    shown = cell;
    cell.classList.add("shown");
    history.replaceState(null, "", `#${cell.id}`);
    dialog.show();
    dialog.scrollTop = 0;
    document.getElementById("dialog-close").focus();
  }

  function hide() {
    if (!shown) return;
    shown.classList.remove("shown");
    dialog.close();
    link(shown).focus({ preventScroll: true });
    shown = null;
  }

  async function copy() {
    const code = dialog.querySelector("code");
    const said = dialog.querySelector("[role=status]");
    try {
      await navigator.clipboard.writeText(code.textContent);
      said.textContent = "copied";
    } catch { // no permission: the command is selected, to be copied by hand
      getSelection().selectAllChildren(code);
      said.textContent = "selected: press Ctrl+C";
    }
  }

  // --- Search, filter, sort ---------------------------------------------------------------------------------------

  let index = null; // of each cell: the text that is searched
  const wasOpen = new Map(); // of each axiom and family, before the search

  function indexed() {
    index ??= new Map(cells.map((cell) => {
      const parts = [...axiomAndExplainer(cell), cell.parentNode.cells[0].textContent, cell.dataset.status, cell.textContent];
      return [cell, parts.join(" ").toLowerCase()];
    }));
    return index;
  }

  function search() {
    const words = find.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const statuses = [...find.querySelectorAll("[name=status]:checked")].map((box) => box.value);
    const found = new Set();
    for (const [cell, text] of indexed()) {
      const fits = words.every((word) => text.includes(word)) && (!statuses.length || statuses.includes(cell.dataset.status));
      if (fits) found.add(cell);
      cell.classList.toggle("blank", !fits);
    }
    const all = !words.length && !statuses.length;
    for (const table of document.querySelectorAll("#checks .matrix")) hideWhatIsBlank(table, found);
    fold(all, found.size);
    find.querySelector("output").value = all ? "" : `${found.size} of ${cells.length} records` +
      (found.size > SHOWN ? `; families unfold where at most ${SHOWN} are found` : "");
  }

  // Rows, columns and families without a record that was found are hidden.
  function hideWhatIsBlank(table, found) {
    const columns = new Set([0]);
    let any = false;
    for (const row of table.tBodies[0].rows) {
      const fitting = [...row.cells].filter((cell) => found.has(cell));
      fitting.forEach((cell) => columns.add(cell.cellIndex));
      row.hidden = !fitting.length;
      any ||= !row.hidden;
    }
    for (const row of table.rows) for (const cell of row.cells) cell.hidden = !columns.has(cell.cellIndex);
    table.closest(".family").hidden = !any;
  }

  function fold(all, count) {
    for (const axiom of document.querySelectorAll(".axiom")) {
      axiom.hidden = !axiom.querySelector(".family:not([hidden])");
      for (const part of [axiom, ...axiom.querySelectorAll(".family")]) {
        if (!wasOpen.has(part)) wasOpen.set(part, part.open);
        part.open = all || count > SHOWN ? wasOpen.get(part) : !part.hidden;
      }
    }
    if (all) wasOpen.clear();
  }

  const gap = (cell) => Number.parseFloat(known(cell).get("gap")) || 0;
  const rank = (cell) => -["recorded", "skip", "pass", "predicted", "unmeasured", "red"].indexOf(cell.classList[0]);

  function sort() {
    const measure = { gap: (row) => -Math.max(...filled(row).map(gap)), status: (row) => Math.min(...filled(row).map(rank)) };
    const filled = (row) => [...row.cells].filter((cell) => cell.id);
    for (const body of document.querySelectorAll("#checks .matrix tbody")) {
      const rows = [...body.rows];
      rows.forEach((row, i) => { row.dataset.place ??= i; });
      const by = measure[find.sort.value] ?? ((row) => row.dataset.place);
      const keyed = rows.map((row) => [by(row), Number(row.dataset.place), row]);
      keyed.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
      body.append(...keyed.map((key) => key[2]));
    }
  }

  // --- Keyboard and links -----------------------------------------------------------------------------------------

  const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

  // The next cell in a direction that is shown and holds a record.
  function next(cell, [down, right]) {
    const rows = [...cell.closest("table").tBodies[0].rows];
    let i = rows.indexOf(cell.parentNode);
    let j = cell.cellIndex;
    for (;;) {
      const found = rows[(i += down)]?.cells[(j += right)];
      if (!found) return null;
      if (found.id && !found.classList.contains("blank") && found.checkVisibility()) return found;
    }
  }

  function onKey(event) {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    const cell = event.target.closest?.(".matrix td[id]");
    if (event.key === "Escape") {
      hide();
    } else if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      find.search.focus();
    } else if (cell && event.key in STEPS && !event.altKey) {
      link(next(cell, STEPS[event.key]))?.focus();
    } else {
      return;
    }
    event.preventDefault();
  }

  // What a link leads to may stand in something that is folded. A link to a cell opens its reason.
  function followHash() {
    const target = document.getElementById(location.hash.slice(1));
    if (!target) return;
    for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
    const isCell = cells.includes(target);
    target.scrollIntoView({ block: isCell ? "center" : "start" });
    if (isCell) show(target);
  }

  // Tab goes from matrix to matrix; within one the arrow keys do.
  function oneStopForEachMatrix() {
    for (const table of document.querySelectorAll("#checks .matrix")) {
      table.querySelectorAll("td a").forEach((anchor, i) => { anchor.tabIndex = i ? -1 : 0; });
    }
  }

  find.hidden = false;
  find.addEventListener("input", (event) => (event.target === find.sort ? sort() : search()));
  find.addEventListener("reset", () => setTimeout(() => { sort(); search(); }));
  find.addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("checks").addEventListener("click", (event) => {
    const cell = event.target.closest(".matrix td[id]");
    if (!cell || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    show(cell);
  });
  document.getElementById("dialog-close").addEventListener("click", hide);
  document.getElementById("dialog-copy").addEventListener("click", copy);
  document.getElementById("dialog-reason").addEventListener("click", hide);
  document.addEventListener("keydown", onKey);
  addEventListener("hashchange", followHash);
  oneStopForEachMatrix();
  followHash();
})();
