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
