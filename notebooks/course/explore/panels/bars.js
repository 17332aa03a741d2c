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
