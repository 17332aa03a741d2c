/* notebooks/course/regular_expression.py once more, for a page in which a pattern is typed. A test compares the two.
   Equal expressions are one object, so a state is found by its number. */
const MOST_REPEATS = 100, MOST_PARTS = 20000; // of all expressions that a pattern needs
const CLASSES = { d: "0123456789", w: "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz", s: " \t\n\r\f\v" };
const SPECIAL = new Set("\\.*+?{}()[]|^$");
class PatternError extends Error {}

const made = new Map();
const part = (key, fields) => {
  if (!made.has(key)) {
    if (made.size >= MOST_PARTS) throw new PatternError("too many parts for this page");
    made.set(key, { number: made.size, after: new Map(), ...fields });
  }
  return made.get(key);
};
const inOrder = (members) => [...members].sort((a, b) => a.codePointAt(0) - b.codePointAt(0));
const chars = (members, negated = false) => {
  const all = inOrder(new Set(members));
  return part(`c${negated ? "^" : ""}${all.join("")}`, { kind: "chars", members: new Set(all), negated });
};
const orOf = (parts) => part(`o${parts.map((each) => each.number).join(",")}`, { kind: "either", parts });
const repeat = (of) => part(`r${of.number}`, { kind: "repeat", of });
let NOTHING, EMPTY;
const begin = () => {
  made.clear();
  NOTHING = orOf([]);
  EMPTY = repeat(NOTHING); // matches the empty text only
};

const sequence = (first, rest) => {
  if (first === NOTHING || rest === NOTHING) return NOTHING;
  if (first.kind === "then") return sequence(first.first, sequence(first.rest, rest));
  if (first === EMPTY) return rest;
  return rest === EMPTY ? first : part(`t${first.number},${rest.number}`, { kind: "then", first, rest });
};
const either = (...parts) => {
  const flat = [...new Set(parts.flatMap((each) => (each.kind === "either" ? each.parts : [each])))];
  return flat.length === 1 ? flat[0] : orOf(flat.sort((a, b) => a.number - b.number));
};

const matchesEmpty = (each) => {
  if (each.kind === "chars") return false;
  if (each.kind === "then") return matchesEmpty(each.first) && matchesEmpty(each.rest);
  return each.kind === "either" ? each.parts.some(matchesEmpty) : true;
};
const derivative = (each, char) => {
  if (!each.after.has(char)) each.after.set(char, derived(each, char));
  return each.after.get(char);
};
const derived = (each, char) => {
  if (each.kind === "chars") return each.members.has(char) !== each.negated ? EMPTY : NOTHING;
  if (each.kind === "either") return either(...each.parts.map((one) => derivative(one, char)));
  if (each.kind === "repeat") return sequence(derivative(each.of, char), each);
  const after = sequence(derivative(each.first, char), each.rest);
  return matchesEmpty(each.first) ? either(after, derivative(each.rest, char)) : after;
};

/* Reads a pattern from left to right, one function per level. An error has the place of what cannot be read. */
const parse = (pattern) => {
  const signs = [...pattern];
  let at = 0;
  const fail = (reason) => { throw new PatternError(`position ${at}: ${reason}`); };
  const peek = () => signs[at] ?? "";
  const take = (sign) => peek() === sign && (at += 1) > 0;
  const next = () => (peek() ? signs[at++] : fail("the pattern ends too early"));
  const alternatives = () => {
    const parts = [sequenceOf()];
    while (take("|")) parts.push(sequenceOf());
    return either(...parts);
  };
  const sequenceOf = () => {
    const parts = [];
    while (!["", "|", ")"].includes(peek())) parts.push(repetition());
    return parts.reduceRight((rest, each) => sequence(each, rest), EMPTY);
  };
  const repetition = () => {
    let each = atom();
    while (peek() && "*+?{".includes(peek())) {
      const sign = next();
      const [least, most] = { "*": [0, null], "+": [1, null], "?": [0, 1] }[sign] ?? bounds();
      let whole = most === null ? repeat(each) : EMPTY;
      for (let i = 0; i < (most === null ? 0 : most - least); i += 1) whole = either(EMPTY, sequence(each, whole));
      for (let i = 0; i < least; i += 1) whole = sequence(each, whole);
      each = whole;
    }
    return each;
  };
  const bounds = () => {
    const end = signs.indexOf("}", at), inside = signs.slice(at, end < 0 ? undefined : end).join("");
    const found = /^(\d+)(?:(,)(\d*))?$/.exec(inside);
    if (end < 0 || !found || (found[3] && Number(found[3]) < Number(found[1]))) fail("must be {m}, {m,} or {m,n}");
    const low = Number(found[1]), high = found[3] ? Number(found[3]) : found[2] ? null : low;
    if (Math.max(low, high ?? 0) > MOST_REPEATS) fail(`a part may be repeated at most ${MOST_REPEATS} times, or without a limit`);
    at = end + 1;
    return [low, high];
  };
  const atom = () => {
    const char = next();
    if (char === "(") {
      if (take("?") && !take(":")) fail("(?...) is not implemented, except (?:...)");
      const inside = alternatives();
      if (!take(")")) fail("a group has no end");
      return inside;
    }
    if (char === "[") return classOf();
    if (char === ".") return chars("\n", true);
    if ("*+?{^$".includes(char)) fail(`'${char}' cannot be here; for the character itself, write \\${char}`);
    return char === "\\" ? escape() : chars(char);
  };
  const classOf = () => {
    const negated = take("^"), members = [];
    if (peek() === "]") fail("a class has no characters; for the character ']' itself, write \\]");
    while (!take("]")) {
      let low = member();
      if (peek() === "-" && (signs[at + 1] ?? "") !== "]") {
        at += 1;
        const high = member();
        const [from, to] = [low, high].map((few) => few[0].codePointAt(0));
        if (low.length > 1 || high.length > 1 || from > to)
          fail("a range goes from one character to a later one; for '-' itself, write \\-");
        if (to - from >= MOST_PARTS) fail("too many characters for this page");
        low = Array.from({ length: to - from + 1 }, (_, i) => String.fromCodePoint(from + i));
      }
      members.push(...low);
    }
    return chars(members, negated);
  };
  const member = () => {
    const char = next(), found = char === "\\" ? escape() : chars(char);
    if (found.negated) fail("\\D, \\W and \\S are not implemented inside a class");
    return [...found.members];
  };
  const escape = () => {
    const char = next(), lower = char.toLowerCase();
    if (Object.hasOwn(CLASSES, lower)) return chars(CLASSES[lower], char !== lower);
    if (/[\p{L}\p{N}]/u.test(char) && !"ntr".includes(char)) fail(`\\${char} is not implemented`);
    return chars({ n: "\n", t: "\t", r: "\r" }[char] ?? char);
  };
  const whole = alternatives();
  if (peek()) fail("a bracket closes that was never opened");
  return whole;
};

/* The states of a pattern, made when they are first reached. State 0 is the start, and DEAD is where no text leads back. */
const DEAD = -1;
class Machine {
  constructor(pattern) {
    begin();
    this.states = [parse(pattern)];
    this.numbers = new Map([[this.states[0], 0]]);
    this.alphabet = new Set();
    const todo = [this.states[0]];
    while (todo.length) {
      const each = todo.pop();
      for (const char of each.members ?? []) this.alphabet.add(char);
      todo.push(...(each.parts ?? []), ...[each.first, each.rest, each.of].filter(Boolean));
    }
  }
  step(state, text) {
    for (const char of text) {
      if (state === DEAD) break;
      const named = this.alphabet.has(char) ? char : ""; // "" stands for every character that the pattern does not name
      const after = derivative(this.states[state], named);
      if (after === NOTHING) { state = DEAD; continue; }
      if (!this.numbers.has(after)) {
        this.numbers.set(after, this.states.length);
        this.states.push(after);
      }
      state = this.numbers.get(after);
    }
    return state;
  }
  accepts(state) { return state !== DEAD && matchesEmpty(this.states[state]); }
  mask(state, tokens) { return tokens.map((token) => token !== "" && this.step(state, token) !== DEAD); }
  /* What may come next as characters, in words: `0-9`, `all but "`. */
  next(state) {
    const allowed = inOrder(this.alphabet).filter((char) => this.step(state, char) !== DEAD);
    const others = derivative(this.states[state], "") !== NOTHING;
    if (!others) return ranges(allowed);
    const refused = inOrder(this.alphabet).filter((char) => !allowed.includes(char));
    return refused.length ? `all but ${ranges(refused)}` : "all";
  }
}

/* As notebooks/course/expression_text.py has it: the shortest pattern of an expression. */
const visible = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll("\r", "␍").replace(/\p{Cc}|\p{Cs}/gu, "▯").replaceAll(" ", "·");
const ranges = (members) => {
  const runs = [];
  for (const char of inOrder(members)) {
    if (runs.length && runs.at(-1).at(-1).codePointAt(0) === char.codePointAt(0) - 1) runs.at(-1).push(char);
    else runs.push([char]);
  }
  return runs.map((run) => (run.length > 2 ? `${run[0]}-${run.at(-1)}` : visible(run.join("")))).join("");
};
const byCode = (a, b) => {
  const [x, y] = [[...a], [...b]];
  for (let i = 0; i < Math.min(x.length, y.length); i += 1)
    if (x[i] !== y[i]) return x[i].codePointAt(0) - y[i].codePointAt(0);
  return x.length - y.length;
};
const expressionText = (each) => {
  if (each.kind === "chars") {
    const members = [...each.members];
    if (members.length === 1 && !each.negated) return SPECIAL.has(members[0]) ? `\\${members[0]}` : visible(members[0]);
    if (members.join("") === CLASSES.d) return each.negated ? "\\D" : "\\d";
    return each.negated && members.join("") === "\n" ? "." : `[${each.negated ? "^" : ""}${ranges(members)}]`;
  }
  if (each.kind === "then") {
    const { first, rest } = each, again = rest.kind === "then" ? rest.first : rest;
    if (again.kind === "repeat" && again.of === first)
      return `${groupText(first)}+${rest.kind === "then" ? expressionText(rest.rest) : ""}`;
    return partText(first) + partText(rest);
  }
  if (each.kind === "either") {
    if (each === NOTHING) return "[]";
    const others = each.parts.filter((one) => one !== EMPTY), shown = others.map(expressionText).sort(byCode);
    if (others.length === each.parts.length) return shown.join("|");
    return `${others.length > 1 ? `(${shown.join("|")})` : groupText(others[0])}?`;
  }
  return each === EMPTY ? "" : `${groupText(each.of)}*`;
};
const partText = (each) => {
  const text = expressionText(each);
  return each.kind === "either" && !text.endsWith("?") ? `(${text})` : text;
};
const groupText = (each) => (each.kind === "chars" ? expressionText(each) : `(${expressionText(each)})`);
