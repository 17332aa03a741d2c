/* What the drawings share: the data, elements made with their text as text, and the table of drawings by kind of panel. */
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
