// What the drawings of an engine are made with, in the trace player and on the server's live page: elements, and words for numbers.
// Text from a trace or a model is only ever set as text, never as HTML.

const $ = (selector) => document.querySelector(selector);

/** An element with attributes (`text` sets its text) and children. */
function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") element.textContent = value;
    else if (name === "style") element.style.cssText = value; // a page's policy may forbid it as an attribute
    else if (value !== null && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** Make `children` (elements or texts) the content of `parent`. Elements that were there before stay, if one of the same kind and
 *  with the same `data-` attributes comes in their order: so they keep the focus, and a pointer stays on them. */
function fill(parent, ...children) {
  let at = parent.firstChild;
  for (const child of children) {
    const kept = keptFor(child, at);
    if (kept === null) {
      parent.insertBefore(typeof child === "string" ? document.createTextNode(child) : child, at);
      continue;
    }
    while (at !== kept) at = removed(at);
    at = at.nextSibling;
    if (kept.nodeType === Node.TEXT_NODE) {
      const text = typeof child === "string" ? child : child.data;
      if (kept.data !== text) kept.data = text;
      continue;
    }
    for (const name of kept.getAttributeNames()) if (!child.hasAttribute(name) && name !== "style") kept.removeAttribute(name);
    for (const name of child.getAttributeNames()) {
      if (name !== "style" && kept.getAttribute(name) !== child.getAttribute(name)) kept.setAttribute(name, child.getAttribute(name));
    }
    if (kept.style.cssText !== child.style.cssText) kept.style.cssText = child.style.cssText;
    fill(kept, ...child.childNodes);
  }
  while (at !== null) at = removed(at);
}

/** The first of `at` and the nodes after it that `child` may change; null if there is none. */
function keptFor(child, at) {
  const isText = typeof child === "string" || child.nodeType === Node.TEXT_NODE;
  for (let node = at; node !== null; node = node.nextSibling) {
    if (isText) return node.nodeType === Node.TEXT_NODE ? node : null;
    if (node.nodeType === Node.ELEMENT_NODE && node.tagName === child.tagName && keyOf(node) === keyOf(child)) return node;
    if (keyOf(child) === "" && node.nodeType === Node.ELEMENT_NODE && keyOf(node) !== "") return null;
  }
  return null;
}

const keyOf = (element) => ["node", "request", "key"].map((name) => element.dataset?.[name] ?? "").join(" ").trim();

function removed(node) {
  const next = node.nextSibling;
  node.remove();
  return next;
}

const plural = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
const visible = (text) => text.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥");
const shortened = (text, head, tail) => (text.length > head + tail + 1 ? `${text.slice(0, head)}…${text.slice(-tail)}` : text);

/** Slots as runs of neighbours: "0–6, 16–20". */
function runsText(slots, limit = 4) {
  const runs = runsOf(slots).map(([start, length]) => (length === 1 ? `${start}` : `${start}–${start + length - 1}`));
  return runs.length > limit ? `${runs.slice(0, limit).join(", ")}, …` : runs.join(", ");
}

function runsOf(slots) {
  const runs = [];
  for (const slot of slots) {
    const last = runs.at(-1);
    if (last && slot === last[0] + last[1]) last[1] += 1;
    else runs.push([slot, 1]);
  }
  return runs;
}

/** Runs [start, length, start, length, ...] as slots, in order. */
function fromRuns(runs) {
  const slots = [];
  for (let i = 0; i < runs.length; i += 2) {
    for (let slot = runs[i]; slot < runs[i] + runs[i + 1]; slot++) slots.push(slot);
  }
  return slots;
}

const TIERS = { host: "host memory", disk: "files" };

/** How many of a request's `cached` tokens came from which tier: {host, disk}. */
function origins({ cached, fetched }) {
  const count = ([start, end] = [0, 0]) => Math.min(end, cached) - Math.min(start, cached);
  return { host: count(fetched.host), disk: count(fetched.disk) };
}

/** {host: 32, disk: 16} as "32 from host memory, 16 from files". */
function tierWords(counts, between) {
  const present = Object.keys(TIERS).filter((tier) => counts?.[tier]);
  return present.map((tier) => `${counts[tier].toLocaleString("en")} ${between} ${TIERS[tier]}`).join(", ");
}
