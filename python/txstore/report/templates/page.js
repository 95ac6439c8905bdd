// Sorts a table by the column whose head is clicked, and copies the command next to a button.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  table.querySelectorAll("thead th:not(.fixed)").forEach((head) => {
    head.tabIndex = 0;
    const sort = () => {
      const rising = head.getAttribute("aria-sort") === "descending";
      for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", rising ? "ascending" : "descending");
      const at = head.cellIndex;
      const key = (row) => row.cells[at].dataset.key ?? row.cells[at].textContent;
      const order = (one, other) => {
        const a = key(one), b = key(other);
        const found = a !== "" && b !== "" && !isNaN(a) && !isNaN(b) ? a - b : a < b ? -1 : a > b ? 1 : 0;
        return rising ? found : -found;
      };
      body.append(...Array.from(body.rows).sort(order));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
}
for (const button of document.querySelectorAll(".command button")) {
  button.addEventListener("click", () => {
    const code = button.previousElementSibling;
    const range = document.createRange();
    range.selectNodeContents(code);
    const selection = getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
    // A page from a file has no clipboard in some browsers; there the old command copies what is selected.
    const done = () => { button.textContent = "copied"; setTimeout(() => { button.textContent = "copy"; }, 1500); };
    if (navigator.clipboard) navigator.clipboard.writeText(code.textContent).then(done, () => {});
    else if (document.execCommand("copy")) done();
  });
}
