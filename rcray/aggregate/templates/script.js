document.querySelectorAll("table.sortable").forEach((table) => {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") === "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      for (const body of table.tBodies) {
        const rows = [...body.rows].filter((row) => !row.classList.contains("group"));
        rows.forEach((row) => [...row.cells].forEach((cell) => cell.classList.remove("pair")));
        rows.sort((a, b) => {
          const [x, y] = [key(a), key(b)];
          const [m, n] = [Number(x), Number(y)];
          if (Number.isNaN(m) !== Number.isNaN(n)) return Number.isNaN(m) ? 1 : -1;  // words go last
          const order = Number.isNaN(m) ? x.localeCompare(y) : m - n;
          return up ? order : -order;
        });
        body.append(...rows);
      }
    });
  });
});
const dialog = document.getElementById("zoomed");
document.querySelectorAll(".zoom").forEach((button) => button.addEventListener("click", () => {
  const image = dialog.querySelector("img");
  image.src = button.querySelector("img").src;
  image.alt = button.querySelector("img").alt;
  dialog.showModal();
}));
dialog.addEventListener("click", () => dialog.close());
const openTarget = () => {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  if (target && target.tagName === "DETAILS") target.open = true;
};
addEventListener("hashchange", openTarget);
openTarget();
