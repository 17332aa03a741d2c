"use strict";
// Markdown as elements. markdown-it only reads it: what it has read becomes elements and texts, never HTML, so nothing of it can run.

const Reader = markdownit({ html: false, breaks: true }).disable("image"); // `![a](b)` is then a link behind a "!"

/** markdown-it's tokens as a fragment. */
function elementsOf(tokens) {
  const open = [document.createDocumentFragment()];
  for (const token of tokens) {
    if (token.hidden) continue; // paragraphs of a tight list
    const top = open.at(-1);
    if (token.type === "inline") top.append(elementsOf(token.children));
    else if (token.type === "text") top.append(token.content);
    else if (token.type === "fence" || token.type === "code_block") top.append(codeBlock(token.content, token.info.trim().split(/\s/)[0]));
    else if (token.type === "code_inline") top.append(el("code", { text: token.content }));
    else if (token.nesting < 0) open.pop();
    else {
      const one = elementOf(token);
      top.append(one.matches("table") ? el("div", { class: "scroll", tabindex: 0 }, one) : one);
      if (token.nesting > 0) open.push(one);
    }
  }
  return open[0];
}

function elementOf(token) {
  if (token.type === "heading_open") return el("h4", { class: token.tag }); // below the one that says whose message it is
  if (token.type !== "link_open") return el(token.tag, Object.fromEntries(token.attrs ?? [])); // where a list starts, how a cell is aligned
  const href = token.attrGet("href");
  return /^(https?|mailto):/i.test(href) ? el("a", { href, title: href, target: "_blank", rel: "noopener noreferrer" }) : el("span");
}

function codeBlock(text, language) {
  const code = el("code", { text });
  const head = el("div", { class: "code-head" }, el("span", { text: language }), copyButton("Copy the code", code));
  return el("div", { class: "code" }, head, el("pre", { tabindex: 0 }, code));
}

/** A button that copies a text. Where the browser refuses (a page that is not secure, a frame), it selects what shows it. */
function copyButton(label, shown, textOf = () => shown.textContent) {
  const button = el("button", { type: "button", "aria-label": label, text: "Copy" });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(textOf());
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(shown);
      button.textContent = "Selected: Ctrl+C copies";
    }
    announce(button.textContent);
    setTimeout(() => (button.textContent = "Copy"), 3000);
  });
  return button;
}

/** Shows a text that grows, as Markdown or as it is, at most once for each picture of the screen, and for at most a fifth of the time.
 *  What is shown already stays, so that it can be selected. Keeps the end in view unless the reader has scrolled up. */
class Growing {
  constructor(element, isMarkdown) {
    Object.assign(this, { element, isMarkdown, text: "", scheduled: false, took: 0 });
    element.classList.toggle("plain", !isMarkdown);
  }

  show(text) {
    this.text = text;
    this.draw();
  }

  add(text) {
    this.text += text;
    if (this.scheduled) return;
    this.scheduled = true;
    setTimeout(() => requestAnimationFrame(() => this.draw()), 4 * this.took);
  }

  draw() {
    this.scheduled = false;
    const began = performance.now();
    const log = $("#log");
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    fill(this.element, ...(this.isMarkdown ? elementsOf(Reader.parse(this.text, {})).childNodes : [this.text]));
    if (atEnd) log.scrollTop = log.scrollHeight;
    this.took = performance.now() - began;
  }
}
