/* How panels are drawn: elements made with their text as text, and a function for each kind of panel. */
const fill = (element, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style") for (const [property, to] of Object.entries(value)) element.style.setProperty(property, to);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
};
const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const legend = (entries) =>
  entries.length ? make("ul", { class: "legend" }, ...entries.map(([look, text]) => make("li", {}, look, text))) : null;
const swatch = (look) => make("span", { class: `swatch ${look}` });

/* kind → draws panel into box, which is in the page and has the panel's width. */
const draw = {};

/* Bars: drawn again in place, so that they grow and shrink. */
draw.bars = (panel, box) => {
  const share = (value) => `${(100 * value) / panel.most}%`;
  if (box.querySelectorAll(".bar").length !== panel.bars.length) {
    const part = (name) => make("span", { class: name });
    const room = () => make("span", { class: "room" }, make("span", { class: "track" }, make("i"), make("i"), part("text")));
    box.replaceChildren(...panel.bars.map(() => make("div", { class: "bar" }, part("label"), room())));
  }
  const longest = Math.max(...panel.bars.map(([label]) => label.length));
  box.style.setProperty("--names", `min(${0.56 * longest + 0.5}em, 42%)`);
  panel.bars.forEach(([label, size, text, off, was, look], i) => {
    const line = box.children[i];
    const [before, value] = line.querySelectorAll("i");
    line.className = off ? "bar off" : "bar";
    line.querySelector(".label").textContent = label;
    before.className = "before";
    before.style.width = share(was ?? 0);
    before.hidden = was === null;
    value.className = `value o-${look}${off ? " off" : ""}`;
    value.style.width = share(size);
    line.querySelector(".text").textContent = text;
    line.querySelector(".text").style.left = share(Math.max(was ?? 0, off ? 0 : size));
  });
};

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

/* Lanes: a column per step and a line per request; above them, how much each owner holds. */
draw.lanes = (panel, box) => {
  const { edges } = panel, percent = (share) => `${100 * share}%`;
  const place = (start, end) => ({ left: percent(edges[start]), width: percent(edges[end] - edges[start]) });
  const grid = make("div", { class: "lanes" });
  box.replaceChildren(grid); // it must be in the page: how wide a column is says which texts fit
  let rows = 0;
  const line = (label, content) => {
    rows += 1;
    for (const [element, column] of [[label, 1], [content, 2]]) {
      if (element) grid.append(fill(element, { style: { "grid-row": String(rows), "grid-column": String(column) } }, []));
    }
    return content;
  };
  const mark = (kind, start, end, ...children) => make("i", { class: kind, style: place(start, end) }, ...children);

  if (panel.flags.length)
    line(null, make("div", { class: "flags", "aria-hidden": "true" }, ...panel.flags.map(({ step }) => mark("flag", step, step, make("b", {}, "!")))));
  const top = rows + 1;
  if (panel.strip) {
    const columns = panel.strip.steps.map((held, i) =>
      make("div", { class: "column", style: place(i, i + 1) }, ...held.map(([look, size]) =>
        make("i", { class: `o-${look}`, "data-held": size, style: { height: percent(size / panel.strip.size) } }))),
    );
    line(make("span", { class: "label" }, panel.strip.label), make("div", { class: "strip" }, ...columns));
  }
  for (const { label, look, spans, ends } of panel.lanes) {
    const name = make("span", { class: "label" }, look ? swatch(`o-${look}`) : null, look ? " " : "", label);
    const lane = line(name, make("div", { class: "lane" }));
    for (const { start, end, phase, text } of spans) {
      const fits = lane.clientWidth * (edges[end] - edges[start]) >= 7 * text.length + 2;
      const span = mark(`p-${phase}`, start, end, fits ? text : "");
      lane.append(fill(span, { title: text || null, "data-span": `${start} ${end}` }, []));
    }
    if (ends !== null) lane.append(mark("ends", ends, ends));
  }
  const over = make("div", { class: "over", style: { "grid-row": `${top} / ${rows + 1}`, "grid-column": "2" } });
  for (const { step } of panel.flags) over.append(mark("flag", step, step));
  if (panel.at !== null) over.append(mark("cursor", panel.at, (panel.until ?? panel.at) + 1));
  grid.append(over);
  line(null, make("div", { class: "scale" }, ...panel.scale.map((text) => make("span", {}, text))));
  const said = panel.flags.map(({ text }) => make("li", {}, make("b", {}, "!"), ` ${text}`));
  return make("div", {}, said.length ? make("ul", { class: "said-flags" }, ...said) : null,
    legend(panel.legend.map(([look, text]) => [swatch(look), text])));
};

/* Numbers: a table. */
draw.numbers = (panel, box) => {
  const rows = panel.numbers.map(({ name, value, look, strong }) => {
    const head = make("th", { scope: "row" }, look ? swatch(`o-${look}`) : null, name);
    return make("tr", { class: strong ? "strong" : null }, head, make("td", {}, value));
  });
  box.replaceChildren(make("table", { class: "numbers" }, make("tbody", {}, ...rows)));
};

/* Tree: nested lists; before and after side by side (below one another on a narrow page), and arrows between them. */
draw.tree = (panel, box) => {
  const node = (item, depth) => {
    const locks = item.locks ? make("span", { class: "locks" }, item.locks === 1 ? "1 lock" : `${item.locks} locks`) : null;
    const look = depth === 0 ? "free" : item.locks ? "locked" : "tree";
    const shown = make("div", { class: `node o-${look} ${item.mark}`.trim(), "data-key": item.key || null, "data-was": item.was || null },
      make("b", {}, item.text || "root"),
      item.slots ? make("span", { class: "slots" }, `${/[^0-9]/.test(item.slots) ? "slots" : "slot"} ${item.slots}`) : null, locks,
      item.note ? make("span", {}, item.note) : null,
      item.mark ? make("span", { class: "mark" }, item.mark) : null);
    const below = item.children.length ? make("ul", { class: "tree" }, ...item.children.map((child) => node(child, depth + 1))) : null;
    return make("li", {}, shown, below);
  };
  const side = (root, name) => make("div", { class: `side ${name}` }, name === "only" ? null : make("p", {}, name), make("ul", { class: "tree" }, node(root, 0)));
  const two = panel.before !== null, stacked = box.clientWidth < 560;
  const sides = make("div", { class: !two ? "sides" : stacked ? "sides stacked" : "sides two" },
    ...(two ? [side(panel.before, "before"), side(panel.root, "after")] : [side(panel.root, "only")]));
  box.replaceChildren(sides);
  if (!two) return;
  const area = sides.getBoundingClientRect();
  const head = svg("marker", { id: "head", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, svg("path", { d: "M0 0 8 4 0 8z" }));
  const arrows = svg("svg", { class: "arrows" }, svg("defs", {}, head));
  const old = new Map([...sides.querySelectorAll(".before .node")].map((element) => [element.dataset.key, element]));
  for (const now of sides.querySelectorAll(".after .node[data-was]")) {
    const [a, b] = [old.get(now.dataset.was), now].map((element) => element.getBoundingClientRect());
    const from = [a.right + 4 - area.left, a.top + a.height / 2 - area.top];
    const to = [(stacked ? b.right + 5 : b.left - 5) - area.left, b.top + b.height / 2 - area.top];
    const bend = stacked ? [area.width - 4, from[1], area.width - 4, to[1]] : [from[0] + 26, from[1], to[0] - 26, to[1]];
    arrows.append(svg("path", { d: `M${from}C${bend} ${to}`, "marker-end": "url(#head)" }));
  }
  sides.append(arrows);
};
