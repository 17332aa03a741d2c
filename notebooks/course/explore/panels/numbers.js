/* Numbers: a table. */
draw.numbers = (panel, box) => {
  const rows = panel.numbers.map(({ name, value, look, strong }) => {
    const head = make("th", { scope: "row" }, look ? swatch(`o-${look}`) : null, name);
    return make("tr", { class: strong ? "strong" : null }, head, make("td", {}, value));
  });
  box.replaceChildren(make("table", { class: "numbers" }, make("tbody", {}, ...rows)));
};
