/* Cells: a grid; as wide as the page where texts leave it that choice, else it scrolls sideways. */
draw.cells = (panel, box) => {
  const lengths = panel.rows.map((row) => row.runs.reduce((sum, run) => sum + run[3], 0));
  const texts = [...panel.columns, ...panel.rows.flatMap((row) => row.runs.map(([look, text]) => text || (look === "unused" ? "–" : "")))];
  const longest = Math.max(...texts.map((text) => text.length));
  const names = Math.max(...panel.rows.map((row) => row.label.length));
  const notes = Math.max(...panel.rows.map((row) => row.note.length));
  const cell = ([look, text, mark, number]) =>
    Array.from({ length: number }, () =>
      make("span", { class: `cell o-${look} ${mark}`.trim(), "data-look": look }, text || (look === "unused" ? "–" : "")),
    );
  const line = (label, cells, note) =>
    make("div", { class: "line" }, make("span", { class: "label" }, label), make("div", { class: "run" }, ...cells),
      notes ? make("span", { class: "end" }, note) : null);
  const style = {
    "--columns": Math.max(...lengths),
    "--cell": longest ? `${Math.max(0.62 * longest + 0.6, 1.5)}em` : "3px",
    "--widest": longest ? `${Math.max(0.62 * longest + 2, 2.6)}em` : "1fr",
    "--run": longest ? "minmax(0, max-content)" : "1fr",
    "--names": names ? `min(${0.58 * names + 1}em, 34vw)` : "0px",
    "--notes": notes ? `${0.56 * notes + 1}em` : "0px",
  };
  const group = (cells) => {
    if (panel.group) cells.forEach((cell, i) => cell.classList.toggle("last", (i + 1) % panel.group === 0 && i + 1 < cells.length));
    return cells;
  };
  const head = panel.columns.map((text) => make("span", { class: "head" }, text));
  const rows = panel.rows.map((row) => line(row.label, group(row.runs.flatMap(cell)), row.note));
  box.replaceChildren(make("div", { class: "cells", style }, head.length ? line("", head, "") : null, ...rows));
  return legend(panel.legend.map(([look, text]) => [swatch(`o-${look}`), text]));
};
