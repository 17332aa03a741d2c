/* What is typed: the state after each character, and what may come next. */
const field = (id) => document.getElementById(id);
const data = JSON.parse(field("data").textContent);
const MOST_STATES = 40, MOST_TOKENS = 60; // numbered before a text is followed; shown
const put = (tag, text, attributes = {}) => {
  const element = document.createElement(tag);
  element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
};
const times = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

/* The states of a pattern are numbered in the order in which they are found from the start, so a text changes no number. */
const machineOf = (pattern) => {
  const machine = new Machine(pattern), named = ["", ...inOrder(machine.alphabet)].slice(1);
  for (let state = 0; state < Math.min(machine.states.length, MOST_STATES); state += 1)
    for (const char of [...named, ""]) {
      const after = derivative(machine.states[state], char);
      if (after !== NOTHING && !machine.numbers.has(after)) {
        machine.numbers.set(after, machine.states.length);
        machine.states.push(after);
      }
    }
  return machine;
};

/* For the start and each character up to the first that is not allowed: what there is to say. */
const follow = (pattern, text) => {
  const machine = machineOf(pattern), lines = [];
  let state = 0;
  for (const char of ["", ...text]) {
    state = machine.step(state, char);
    if (state === DEAD) {
      lines.push({ char, state });
      break;
    }
    const allowed = machine.mask(state, data.tokens).flatMap((may, i) => (may ? [i] : []));
    const rest = expressionText(machine.states[state]);
    lines.push({ char, state, rest, ends: machine.accepts(state), next: machine.next(state), allowed });
  }
  return lines;
};

const sentence = (text, lines) => {
  const last = lines.at(-1), before = [...text].slice(0, lines.length - 1).join("");
  if (last.state === DEAD) return `“${last.char}” is not allowed after “${[...before].slice(0, -1).join("")}”. No text leads back from there.`;
  const where = before ? `After “${before}”` : "At the beginning", end = last.ends ? "The text may end here" : "The text may not end here yet";
  if (!last.next) return `${where}: state ${last.state}. Nothing may follow, so the text is complete.`;
  return `${where}: state ${last.state}. ${end}. ${times(last.allowed.length, "token")} of ${data.tokens.length.toLocaleString("en")} may come next.`;
};

const row = ({ char, state, rest, ends, next, allowed }, i) => {
  const line = document.createElement("tr");
  const cells = state === DEAD ? ["none", "", "", "not allowed", ""] : [state, rest || "nothing", next || "nothing", ends ? "yes" : "no", allowed.length];
  line.append(put("th", i ? visible(char) : "start", { scope: "row" }));
  cells.forEach((cell, j) => {
    const box = document.createElement("td");
    box.append(put(j === 1 || j === 2 ? "code" : "span", cell));
    line.append(box);
  });
  return line;
};

const update = () => {
  const pattern = field("pattern").value, text = field("text").value;
  let lines;
  try {
    lines = follow(pattern, text);
  } catch (error) {
    if (!(error instanceof PatternError || error instanceof RangeError)) throw error;
    field("pattern").setAttribute("aria-invalid", "true");
    const reason = error instanceof PatternError ? error.message : "too many parts, one inside or behind the other";
    field("sentence").textContent = `This expression cannot be read: ${reason}.`;
    field("walk").replaceChildren();
    field("number").textContent = "Tokens that may come next";
    field("tokens").replaceChildren();
    return;
  }
  field("pattern").removeAttribute("aria-invalid");
  field("sentence").textContent = sentence(text, lines);
  const head = document.createElement("tr");
  for (const name of ["character", "state", "what may still come", "next characters", "may end", "tokens"])
    head.append(put("th", name, { scope: "col" }));
  const [table, top, body] = ["table", "thead", "tbody"].map((tag) => document.createElement(tag));
  table.className = "walk";
  top.append(head);
  body.append(...lines.map(row));
  table.append(top, body);
  field("walk").replaceChildren(table);
  const scrolls = field("walk").scrollWidth > field("walk").clientWidth + 1;
  for (const [name, value] of [["tabindex", "0"], ["role", "group"], ["aria-label", "The text, character by character"]]) {
    if (scrolls) field("walk").setAttribute(name, value);
    else field("walk").removeAttribute(name);
  }
  const allowed = lines.at(-1).allowed ?? [];
  field("number").textContent = `Tokens that may come next: ${allowed.length.toLocaleString("en")} of ${data.tokens.length.toLocaleString("en")}`;
  const shown = allowed.slice(0, MOST_TOKENS).map((i) => put("li", visible(data.tokens[i])));
  if (allowed.length > MOST_TOKENS) shown.push(put("li", `and ${times(allowed.length - MOST_TOKENS, "other")}`, { class: "more" }));
  if (!allowed.length) shown.push(put("li", lines.at(-1).ends ? "none but the end token" : "none", { class: "more" }));
  field("tokens").replaceChildren(...shown);
};

const choose = (i) => {
  field("pattern").value = data.examples[i].pattern;
  field("text").value = data.examples[i].text;
  field("example").value = i;
  update();
};
data.examples.forEach(({ name }, i) => field("example").append(put("option", name, { value: i })));
field("controls").addEventListener("submit", (event) => event.preventDefault());
field("pattern").addEventListener("input", update);
field("text").addEventListener("input", update);
field("example").addEventListener("input", () => choose(Number(field("example").value)));
choose(0);
addEventListener("resize", update);
const explorable = { show: update, follow }; // for tests
