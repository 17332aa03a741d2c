/* Lines: two axes, curves and points; as wide as its box, so that its texts keep their size. */
draw.lines = (panel, box) => {
  const width = Math.max(box.clientWidth, 240), height = Math.min(380, Math.max(250, 0.5 * width));
  const ups = ticks(panel.y_range, panel.log_y, height / 40);
  const [left, right, top, bottom] = [16 + 7 * Math.max(...ups.map((value) => short(value).length)), 26, 22, 44];
  const axis = ([low, high], log, from, to) => {
    const at = log ? Math.log : (value) => value;
    return (value) => from + ((to - from) * (at(value) - at(low))) / (at(high) - at(low));
  };
  const x = axis(panel.x_range, panel.log_x, left, width - right);
  const y = axis(panel.y_range, panel.log_y, height - bottom, top);
  const inside = (value, [low, high]) => value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9);
  const drawing = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, width, height });
  const text = (content, attributes) => svg("text", attributes, content);
  for (const value of ticks(panel.x_range, panel.log_x, (width - left) / 60)) {
    drawing.append(svg("path", { class: "grid", d: `M${x(value)} ${top}V${height - bottom}` }));
    drawing.append(text(short(value), { x: x(value), y: height - bottom + 17, "text-anchor": "middle" }));
  }
  for (const value of ups) {
    drawing.append(svg("path", { class: "grid", d: `M${left} ${y(value)}H${width - right}` }));
    drawing.append(text(short(value), { x: left - 7, y: y(value) + 4, "text-anchor": "end" }));
  }
  const size = { x: left, y: top, width: width - left - right, height: height - top - bottom };
  drawing.append(svg("rect", { class: "frame", ...size }));
  drawing.append(text(panel.x, { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }), text(panel.y, { x: 2, y: 13 }));
  const colour = (series) => series.face || (series.pale ? "var(--muted)" : `var(--series-${series.colour}, var(--line-${series.colour}))`);
  // A disk, or an open square in which a disk at the same place is seen.
  const point = (series, cx, cy, r, attributes) => {
    const side = 2 * r - 1;
    return series?.squares
      ? svg("rect", { ...attributes, x: cx - side / 2, y: cy - side / 2, width: side, height: side, style: { fill: "none", stroke: colour(series), "stroke-width": r / 2 } })
      : svg("circle", { ...attributes, cx, cy, r, style: series ? { fill: colour(series), ...(series.face ? { stroke: "var(--ink)" } : {}) } : {} });
  };
  const texts = [], ends = panel.series.filter((series) => !series.dots).map((series) => y(series.points.at(-1)[1]));
  for (const series of panel.series) {
    const seen = series.points.filter(([across, up]) => inside(across, panel.x_range) && inside(up, panel.y_range));
    if (series.dots)
      for (const [across, up] of seen)
        drawing.append(point(series, x(across), y(up), 5, { class: "dots" }));
    else {
      const path = series.points.map(([across, up]) => `${x(across).toFixed(1)} ${y(up).toFixed(1)}`).join("L");
      drawing.append(svg("path", { class: series.pale ? "curve pale" : "curve", d: `M${path}`, style: { stroke: colour(series) } }));
    }
    if (series.label && series.label_at !== null && (width >= 560 || series.pale)) {
      const [across, up] = series.points.at(series.label_at);
      const crossed = ends.some((end) => end < y(up) - 1 && end > y(up) - 24); // by the line above it
      texts.push([series.label, x(across), y(up) + (crossed ? 15 : -9), "halo"]);
    }
  }
  // Of two marks that are close, one is named above to the left, the other below to the right.
  panel.marks.forEach((mark, i) => {
    const above = panel.marks.length > 1 && i % 2 === 0;
    const series = mark.of === null ? null : panel.series[mark.of];
    drawing.append(point(series, x(mark.x), y(mark.y), 8, { class: series ? "mark of" : "mark" }));
    texts.push([mark.text, x(mark.x), y(mark.y) + (above ? -14 : 24), "halo marked", panel.marks.length > 1 ? above : null]);
  });
  for (const [content, across, down, kind, before] of texts) {
    const end = before ?? across > (left + width - right) / 2;
    const at = end ? Math.max(across - 6, left + 10 * content.length) : across + 6; // not over the numbers of the axis
    drawing.append(text(content, { x: at, y: Math.max(down, top + 12), class: kind, "text-anchor": end ? "end" : "start" }));
  }
  box.replaceChildren(drawing);
  const sign = (series) => {
    const shape = series.dots
      ? point(series, 9, 7, 5)
      : svg("path", { d: "M0 7H18", style: { stroke: colour(series) }, "stroke-width": 3 });
    return svg("svg", { width: 18, height: 14, "aria-hidden": "true" }, shape);
  };
  return legend(panel.series.filter((series) => series.label && !series.pale).map((series) => [sign(series), series.label]));
};

/* Round numbers between two limits, about as many as wanted: powers of ten where the axis is logarithmic. */
const ticks = ([low, high], log, wanted) => {
  const found = [];
  if (log) {
    const decades = Math.log10(high / low), every = Math.max(1, Math.ceil(decades / wanted));
    const factors = decades <= wanted / 3 ? [1, 2, 5] : [1];
    for (let power = Math.ceil(Math.log10(low) - 1); power <= Math.log10(high) + 1e-9; power += 1)
      if (power % every === 0) found.push(...factors.map((factor) => factor * 10 ** power));
  } else {
    const rough = (high - low) / wanted, unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((factor) => factor * unit >= rough) * unit;
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-9); i += 1) found.push(i * step);
  }
  return found.filter((value) => value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9));
};
const short = (value) => Number(value.toPrecision(6)).toLocaleString("en", { maximumSignificantDigits: 4 });
