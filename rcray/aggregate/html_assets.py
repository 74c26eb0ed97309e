"""Style and script of the report page, inlined so that it is one file and needs no network."""

CSS = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1b1f24; --soft: #59636e; --line: #dfe3e8; --accent: #0062a3;
  --bar: #cfe6f6; --good: #0b6b4b; --good-bg: #dff3ea; --bad: #a33a00; --bad-bg: #fde8dc;
  --open: #6a5300; --open-bg: #fbf1cd; --idle: #4b5563; --idle-bg: #e8ebef; --code: #f1f3f6;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --page: #12151a; --card: #1b2027; --ink: #e8ebef; --soft: #a3adb8; --line: #313842; --accent: #6fb9ee;
    --bar: #1f425c; --good: #7fdcb4; --good-bg: #143b2d; --bad: #ffb28a; --bad-bg: #4a2412;
    --open: #f0d77a; --open-bg: #40360f; --idle: #b8c0ca; --idle-bg: #2a313a; --code: #14181e;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink); line-height: 1.5; font-size: 16px;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", Arial, sans-serif;
}
main, header > div, footer > div { max-width: 1220px; margin: 0 auto; padding: 0 24px; }
header { background: var(--card); border-bottom: 1px solid var(--line); padding: 30px 0 0; }
.kicker { color: var(--accent); font-weight: 600; font-size: 14px; letter-spacing: .02em; margin: 0; }
h1 { font-size: 30px; line-height: 1.2; margin: 4px 0 8px; letter-spacing: -.01em; text-wrap: balance; }
h2 { font-size: 21px; margin: 44px 0 6px; letter-spacing: -.01em; }
h3 { font-size: 16px; margin: 0 0 10px; }
p { margin: 6px 0; max-width: 84ch; }
.soft, .notes { color: var(--soft); font-size: 14px; }
p.soft { max-width: 105ch; }
a { color: var(--accent); text-underline-offset: 2px; }
code, pre, .mono { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
code, .mono { font-size: .88em; }
nav { display: flex; gap: 22px; margin-top: 18px; overflow-x: auto; }
nav a { text-decoration: none; padding: 8px 0 10px; font-size: 15px; white-space: nowrap; }
nav a:hover, nav a:focus-visible { text-decoration: underline; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 12px 28px; margin: 18px 0; }
.facts dt { color: var(--soft); font-size: 13px; }
.facts dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(330px, 1fr)); gap: 16px; margin-top: 14px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 16px 18px; }
.checks { list-style: none; margin: 0; padding: 0; display: grid; gap: 10px; }
.checks strong { font-size: 15px; }
.checks li + li { border-top: 1px solid var(--line); padding-top: 10px; }
.checks li > div { display: flex; justify-content: space-between; align-items: baseline; gap: 10px; }
.checks .chip { margin: 0; }
.checks span.text { color: var(--soft); font-size: 14px; display: block; }
.chip {
  display: inline-block; border-radius: 999px; padding: 2px 10px; font-size: 12.5px; font-weight: 600;
  line-height: 18px;
  background: var(--idle-bg); color: var(--idle); white-space: nowrap; text-align: center; margin-right: 6px;
}
.chip.ok, .chip.held { background: var(--good-bg); color: var(--good); }
.chip.failed, .chip.oom, .chip.degenerate, .chip.not-held { background: var(--bad-bg); color: var(--bad); }
.chip.running, .chip.unclear { background: var(--open-bg); color: var(--open); }
ul.overall { margin: 8px 0; padding-left: 20px; max-width: 86ch; }
ul.overall li { margin: 4px 0; }
.scroll { overflow-x: auto; padding: 6px 14px 10px; }
.unit { display: block; font-weight: 400; }
table { border-collapse: collapse; width: 100%; font-size: 14.5px; font-variant-numeric: tabular-nums; }
th, td { padding: 7px 10px; text-align: left; border-bottom: 1px solid var(--line); vertical-align: baseline; }
th { font-size: 13px; font-weight: 600; color: var(--soft); vertical-align: bottom; }
td.right, th.right { text-align: right; }
table.results td, table.results th { white-space: nowrap; }
td.pair { border-bottom-color: transparent; }
td .spread { color: var(--soft); font-size: .86em; }
td.best { font-weight: 700; }
td.status { color: var(--bad); font-style: italic; }
td.status.pending, td.status.stopped, td.absent { color: var(--soft); }
td.status.running { color: var(--open); }
td a.run { color: inherit; text-decoration: none; }
td a.run:hover, td a.run:focus-visible { text-decoration: underline; color: var(--accent); }
td[title] { cursor: help; }
td sup { color: var(--open); font-size: .72em; margin-left: 1px; }
article.table { margin: 14px 0 30px; }
article.table h3 { margin: 18px 0 8px; }
td.share {
  background: linear-gradient(var(--bar), var(--bar)) no-repeat left 6px center / calc(var(--share) * .9%) 66%;
}
tr.group th { font-size: 15px; color: var(--ink); padding-top: 18px; }
th button { all: unset; cursor: pointer; position: relative; }
th button:hover { color: var(--accent); }
th button:focus-visible, .zoom:focus-visible, summary:focus-visible {
  outline: 2px solid var(--accent); outline-offset: 2px;
}
th button::after { content: "\\2195"; opacity: 0; position: absolute; left: -14px; bottom: 0; }
th.left button::after { left: auto; right: -12px; }
th button:hover::after { opacity: .6; }
th[aria-sort=ascending] button::after { content: "\\2191"; opacity: 1; }
th[aria-sort=descending] button::after { content: "\\2193"; opacity: 1; }
.notes { margin: 10px 0 0; padding-left: 18px; }
figure { margin: 16px 0; }
.paper { background: #ffffff; border-radius: 8px; border: 1px solid var(--line); padding: 10px; }
.zoom { all: unset; display: block; width: 100%; cursor: zoom-in; }
.zoom img { display: block; width: 100%; height: auto; }
.narrow .zoom img { max-width: 780px; margin: 0 auto; }
figcaption { margin-top: 10px; color: var(--soft); font-size: 14px; max-width: 96ch; }
dialog { border: 0; padding: 12px; background: #ffffff; width: 97vw; height: 95vh; max-width: none; max-height: none;
  border-radius: 8px; cursor: zoom-out; }
dialog::backdrop { background: rgba(0, 0, 0, .7); }
dialog img { width: 100%; height: 100%; object-fit: contain; }
details.cell { background: var(--card); border: 1px solid var(--line); border-radius: 8px; margin: 8px 0; }
details.cell > summary {
  padding: 10px 14px; cursor: pointer; display: flex; flex-wrap: wrap; gap: 4px 14px; align-items: baseline;
}
details.cell > summary::before { content: "\\25B8"; color: var(--soft); }
details.cell[open] > summary::before { content: "\\25BE"; }
details.cell > summary::-webkit-details-marker { display: none; }
details.cell > summary .mono { color: var(--soft); }
details.cell > summary .push { margin-left: auto; color: var(--soft); font-size: 14px; }
details.cell > div { padding: 0 14px 14px; }
details.cell table { width: auto; margin: 6px 0; }
pre {
  background: var(--code); border-radius: 6px; padding: 10px 12px; font-size: 13px; margin: 8px 0;
  white-space: pre-wrap; overflow-wrap: anywhere;
}
footer {
  margin: 48px 0 0; border-top: 1px solid var(--line); padding: 16px 0 32px; color: var(--soft); font-size: 14px;
}
@media print {
  :root { color-scheme: light; --page: #fff; --card: #fff; --ink: #000; --soft: #444; --line: #bbb; --accent: #000; }
  nav, .screen, th button::after, #cells, #glossary { display: none; }
  .card:not(.scroll), tr { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  body { font-size: 14px; }
  h1 { font-size: 24px; }
  table { font-size: 11px; }
  th, td { padding: 4px 5px; }
  th { font-size: 11px; }
  .scroll { overflow: visible; padding: 4px 6px; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""

SCRIPT = """
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
"""
