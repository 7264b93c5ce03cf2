// On paper everything is unfolded, and a wide table is split: groups of its columns, each with the names of the rows.
"use strict";
(() => {
  const MOST = 10; // columns beside the first

  // Browsers that cannot unfold on paper by style alone.
  function unfold() {
    const folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((part) => { part.open = true; });
    return () => folded.forEach((part) => { part.open = false; });
  }

  // Copies take the place of the table. They stand before it, so that a link to a cell leads to the one that is seen.
  function split(table) {
    const columns = [...table.tHead.rows[0].cells].filter((cell) => !cell.hidden).map((cell) => cell.cellIndex).slice(1);
    if (columns.length <= MOST) return () => {};
    const size = Math.ceil(columns.length / Math.ceil(columns.length / MOST));
    const copies = [];
    for (let first = 0; first < columns.length; first += size) {
      const shown = new Set([0, ...columns.slice(first, first + size)]);
      const copy = table.cloneNode(true);
      for (const row of copy.rows) [...row.cells].forEach((cell, i) => { if (!shown.has(i)) cell.remove(); });
      copy.style.setProperty("--columns", shown.size - 1);
      table.before(copy);
      copies.push(copy);
    }
    table.hidden = true;
    return () => {
      copies.forEach((copy) => copy.remove());
      table.hidden = false;
    };
  }

  addEventListener("beforeprint", () => {
    const undo = [unfold(), ...[...document.querySelectorAll(".matrix, .numbers")].map(split)];
    addEventListener("afterprint", () => undo.forEach((one) => one()), { once: true });
  });
})();
