/* The data, the controls, and the frame that they choose. */
const data = JSON.parse(document.getElementById("data").textContent);

/* Parts that the data names by number are the same object wherever they are named. */
const parts = new Map();
const read = (value) => {
  if (Array.isArray(value)) return value.map(read);
  if (value === null || typeof value !== "object") return value;
  if ("$" in value) {
    if (!parts.has(value.$)) parts.set(value.$, read(data.parts[value.$]));
    return parts.get(value.$);
  }
  return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, read(part)]));
};

const controls = document.getElementById("controls"), panels = document.getElementById("panels");
const chosen = data.controls.map((control) => control.start);
const shown = []; // per section: the panel that is drawn in it

const frameOf = (indices) => read(data.frames[indices.reduce((at, index, i) => at * data.controls[i].labels.length + index, 0)]);

const drawPanel = (section, panel) => {
  const [title, box] = section.children;
  title.textContent = panel.title;
  const table = panel.kind === "numbers";
  if (section.dataset.kind !== panel.kind) box.replaceChildren();
  section.dataset.kind = panel.kind;
  while (section.children.length > 2) section.lastElementChild.remove();
  const below = draw[panel.kind](panel, box);
  if (below) section.append(below);
  if (panel.note) section.append(fill(make("p", { class: "note" }), {}, [panel.note]));
  // Pictures are said in words; a table says itself. What scrolls must be reached by keyboard.
  const scrolls = box.scrollWidth > box.clientWidth + 1;
  for (const name of ["role", "aria-label", "tabindex"]) box.removeAttribute(name);
  if (!table) fill(box, { role: "img", "aria-label": panel.words }, []);
  if (scrolls) box.tabIndex = 0;
};

const show = (indices) => {
  chosen.splice(0, chosen.length, ...indices);
  const frame = frameOf(chosen);
  data.controls.forEach((control, i) => control.update(chosen[i]));
  document.getElementById("sentence").textContent = frame.sentence;
  while (panels.children.length > frame.panels.length) { panels.lastElementChild.remove(); shown.pop(); }
  frame.panels.forEach((panel, i) => {
    if (i >= panels.children.length)
      panels.append(make("section", { class: "panel" }, make("h2"), make("div", { class: "drawing" })));
    const beside = [i - 1, i + 1].some((other) => frame.panels[other]?.kind === "numbers");
    panels.children[i].classList.toggle("half", panel.kind === "numbers" && beside);
    if (shown[i] !== panel) drawPanel(panels.children[i], panel);
    shown[i] = panel;
  });
};

const choose = (number, index) => {
  const last = data.controls[number].labels.length - 1;
  show(chosen.map((old, i) => (i === number ? Math.min(Math.max(index, 0), last) : old)));
};

const slider = (control, number) => {
  const id = `control-${number}`, last = control.labels.length - 1;
  const input = make("input", { type: "range", id, name: control.name, min: 0, max: last, step: 1, value: control.start });
  const output = make("output", { for: id });
  const button = (text, by, words) => {
    const made = make("button", { type: "button", "aria-label": `${control.label}: ${words}` }, text);
    made.addEventListener("click", () => choose(number, chosen[number] + by));
    return made;
  };
  const less = button("−", -1, "one less"), more = button("+", 1, "one more");
  input.addEventListener("input", () => choose(number, Number(input.value)));
  control.update = (index) => {
    const label = control.labels[index];
    output.textContent = label;
    input.value = index;
    input.setAttribute("aria-valuetext", label);
    input.style.setProperty("--done", `${(100 * index) / last}%`);
    less.setAttribute("aria-disabled", index === 0);
    more.setAttribute("aria-disabled", index === last);
  };
  const few = control.labels.length <= 9 && Math.max(...control.labels.map((label) => label.length)) <= 5;
  const ticks = few ? make("div", { class: "ticks", "aria-hidden": "true" }, ...control.labels.map((label) => make("span", {}, label))) : null;
  return make("div", { class: "control" },
    make("div", { class: "name" }, make("label", { for: id }, control.label), output),
    make("div", { class: "step" }, less, make("div", { class: "slide" }, input, ticks), more));
};

const list = (control, number) => {
  const id = `control-${number}`;
  const select = make("select", { id, name: control.name }, ...control.labels.map((label, i) => make("option", { value: i }, label)));
  select.addEventListener("input", () => choose(number, Number(select.value)));
  control.update = (index) => (select.value = index);
  return make("div", { class: "control" }, make("div", { class: "name" }, make("label", { for: id }, control.label)), select);
};

controls.addEventListener("submit", (event) => event.preventDefault());
controls.append(...data.controls.map((control, i) => (control.kind === "slider" ? slider : list)(control, i)));
show(chosen);

let width = panels.clientWidth;
new ResizeObserver(() => {
  if (panels.clientWidth === width) return;
  width = panels.clientWidth;
  shown.forEach((panel, i) => drawPanel(panels.children[i], panel));
}).observe(panels);
const figure = { chosen, show, frameOf }; // for tests
