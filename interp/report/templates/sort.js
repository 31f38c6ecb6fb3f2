"use strict";
(() => {
  // Column heads become buttons that sort the rows shown. Run again (several reports in one page), it leaves finished tables alone.
  const compare = (a, b) => {
    const [x, y] = [a.dataset.key, b.dataset.key];
    if (x === undefined || y === undefined) return a.textContent.localeCompare(b.textContent, "en", { numeric: true });
    return Number(x.replace("inf", "Infinity")) - Number(y.replace("inf", "Infinity"));
  };
  const sort = (table, head, column) => {
    const [first, second] = head.classList.contains("n") ? ["descending", "ascending"] : ["ascending", "descending"];
    const order = head.getAttribute("aria-sort") === first ? second : first;
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    const rows = [...table.tBodies[0].rows];
    const missing = (row) => row.cells[column].dataset.key === "nan";
    rows.sort((a, b) => {
      if (missing(a) || missing(b)) return missing(a) - missing(b);
      return (order === "ascending" ? 1 : -1) * compare(a.cells[column], b.cells[column]);
    });
    table.tBodies[0].append(...rows);
  };
  for (const table of document.querySelectorAll(".interp .scroll > table:not([data-sorts])")) {
    table.dataset.sorts = "yes";
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      button.title = "Sort by this column";
      button.addEventListener("click", () => sort(table, head, column));
      head.append(button);
    });
  }
})();
