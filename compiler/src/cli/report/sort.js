// Tables whose heads are buttons sort by the column that is pressed: the greatest first, and the other way when pressed again.
for (const head of document.querySelectorAll("th button")) {
  head.addEventListener("click", () => {
    const th = head.parentElement, table = th.closest("table"), at = [...th.parentElement.children].indexOf(th);
    const up = th.getAttribute("aria-sort") === "descending";
    for (const other of th.parentElement.children) other.removeAttribute("aria-sort");
    th.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = (row) => row.children[at].dataset.key ?? row.children[at].textContent;
    const order = (a, b) => {
      const [x, y] = [key(a), key(b)], [m, n] = [Number(x), Number(y)];
      return Number.isNaN(m) || Number.isNaN(n) ? x.localeCompare(y) : m - n;
    };
    const rows = [...table.tBodies[0].rows].sort((a, b) => (up ? order(a, b) : order(b, a)));
    table.tBodies[0].append(...rows);
  });
}
