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
