"use strict";
// The chat. The conversation is in this page's memory only; the server keeps nothing but its cache.

const Chat = { conversation: [], running: null, hasTemplate: true };
const REASONS = { length: "cut: it has reached its number of tokens", abort: "ended by the server", timeout: "took too long", content_filter: "filtered" };

// --- messages ----------------------------------------------------------------------------------------------------------

/** A message in the list; returns what can change: {item, words, facts}. */
function addMessage(role, name, text = "") {
  const [words, facts] = [el("p", { class: "words", text }), el("p", { class: "facts" })];
  const item = el("li", { class: `message ${role}` }, el("h3", { text: name }), words, facts);
  $("#messages").append(item);
  $("#no-messages").hidden = true;
  item.scrollIntoView({ block: "nearest" });
  return { item, words, facts };
}

/** Show text that grows, at most once for each picture of the screen. Keeps the end in view unless the reader has scrolled up. */
class Growing {
  constructor({ words }) {
    Object.assign(this, { words, text: "", scheduled: false });
  }

  add(text) {
    this.text += text;
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.scheduled = false;
    const log = $("#log");
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    this.words.textContent = this.text;
    if (atEnd) log.scrollTop = log.scrollHeight;
  }
}

// --- what is sent for a conversation and settings, and what its stream answers ---

/** {path, body} for a conversation [{role, content}]. `settings`: those of the form, "" for what is not given. Without a chat
 *  template, the newest message alone is continued as plain text. */
function chatRequest(conversation, settings, hasTemplate) {
  const body = { model: settings.model, stream: true, stream_options: { include_usage: true } };
  for (const name of ["temperature", "top_p", "max_tokens", "seed"]) if (settings[name] !== "") body[name] = Number(settings[name]);
  if (settings.json) body.response_format = { type: "json_object" };
  if (!hasTemplate) {
    if (body.max_tokens === undefined) body.max_tokens = 128; // the protocol's own default is 16
    return { path: "v1/completions", body: { ...body, prompt: conversation.at(-1).content } };
  }
  const system = settings.system.trim() === "" ? [] : [{ role: "system", content: settings.system }];
  return { path: "v1/chat/completions", body: { ...body, messages: [...system, ...conversation] } };
}

/** The parts of an answer as they come: {text}, {reason}, {usage}. Throws a RefusedError for an error, also in mid-stream. */
async function* answerTo({ path, body }, signal) {
  const headers = { "Content-Type": "application/json", "X-Engine-Requests": "?" };
  const options = { method: "POST", headers, body: JSON.stringify(body), signal };
  const response = await Session.fetch(path, options);
  for (const number of (response.headers.get("X-Engine-Requests") ?? "").split(",")) if (number) Mine.add(Number(number));
  markMine(); // they may be drawn already, as another's
  for await (const { data } of eventsOf(response)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new RefusedError(chunk.error.code, chunk.error.message);
    const choice = chunk.choices[0];
    const text = choice?.delta?.content ?? choice?.text ?? "";
    if (text) yield { text };
    if (choice?.finish_reason) yield { reason: choice.finish_reason };
    if (chunk.usage) yield { usage: chunk.usage };
  }
  throw new RefusedError(0, "the answer broke off: the connection was lost");
}

// --- one turn ----------------------------------------------------------------------------------------------------------

async function ask(question) {
  const settings = Object.fromEntries(new FormData($("#chat-form")));
  const conversation = [...Chat.conversation, { role: "user", content: question }];
  const request = chatRequest(conversation, { ...settings, json: $("#json").checked }, Chat.hasTemplate);
  addMessage("user", "You", question);
  const message = addMessage("assistant", settings.model);
  const answer = new Growing(message);
  const began = performance.now();
  let [first, reason, usage, failure] = [null, null, null, null];
  Chat.running = new AbortController();
  setRunning(true);
  message.item.setAttribute("aria-busy", "true");
  announce("The model is answering.");
  try {
    for await (const part of answerTo(request, Chat.running.signal)) {
      first ??= performance.now();
      if (part.text) answer.add(part.text);
      reason = part.reason ?? reason;
      usage = part.usage ?? usage;
    }
  } catch (error) {
    if (error.name === "AbortError") reason = "stopped";
    else failure = error;
    if (error.status === 401) askForKey();
  }
  answer.draw();
  message.item.removeAttribute("aria-busy");
  message.facts.textContent = factsOf(reason, usage, first === null ? null : first - began, performance.now() - (first ?? began));
  if (failure !== null) message.item.append(el("p", { class: "problem", role: "alert", text: failure.message }));
  if (failure === null || answer.text) {
    Chat.conversation = [...conversation, { role: "assistant", content: answer.text }];
    announce(`${reason === "stopped" ? "Stopped. " : ""}${settings.model} says: ${answer.text}`);
  } else {
    $("#question").value ||= question; // to try again
  }
  Chat.running = null;
  setRunning(false);
}

/** What an answer took, in words. */
function factsOf(reason, usage, firstMs, restMs) {
  const facts = [];
  if (reason === "stopped") facts.push("stopped by you");
  else if (REASONS[reason]) facts.push(REASONS[reason]);
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    facts.push(`${plural(usage.prompt_tokens, "prompt token")}, ${cached} found in the tree`, plural(usage.completion_tokens, "new token"));
    if (usage.completion_tokens > 1 && restMs > 0) facts.push(`${Math.round((1000 * (usage.completion_tokens - 1)) / restMs)} tokens/s`);
  }
  if (firstMs !== null) facts.push(`first text after ${Math.round(firstMs)} ms`);
  return facts.join(" · ");
}

/** Say something once to those who listen to the page. */
function announce(text) {
  $("#announcer").textContent = text;
}

function setRunning(isRunning) {
  $("#send").hidden = isRunning;
  $("#stop").hidden = !isRunning;
  if (isRunning && document.activeElement === document.body) $("#stop").focus();
  if (!isRunning && (document.activeElement === document.body || document.activeElement === $("#stop"))) $("#question").focus();
}

// --- the form ----------------------------------------------------------------------------------------------------------

$("#chat-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  await listed;
  const question = $("#question").value;
  if (Chat.running !== null || question.trim() === "") return;
  $("#question").value = "";
  ask(question);
});
$("#question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("#chat-form").requestSubmit();
});
document.addEventListener("keydown", (event) => event.key === "Escape" && Chat.running?.abort());
$("#stop").addEventListener("click", () => Chat.running?.abort());
$("#forget").addEventListener("click", () => {
  Chat.running?.abort();
  Chat.conversation = [];
  $("#messages").replaceChildren();
  $("#no-messages").hidden = false;
  announce("The conversation is forgotten.");
  $("#question").focus();
});

// --- models ------------------------------------------------------------------------------------------------------------

async function listModels() {
  try {
    const { data } = await Session.json("v1/models");
    const chosen = $("#model").value;
    $("#model").replaceChildren(...data.map(({ id, parent }) => el("option", { value: id, text: parent ? `${id} (adapter)` : id })));
    if (data.some(({ id }) => id === chosen)) $("#model").value = chosen;
  } catch (error) {
    if (error.status !== 401) $("#model").replaceChildren(el("option", { value: "", text: error.message }));
  }
}

document.addEventListener("about", ({ detail }) => {
  Chat.hasTemplate = detail.has_chat_template;
  $("#no-template").hidden = Chat.hasTemplate;
  $("#system").disabled = !Chat.hasTemplate;
  $("#shows-prompts").hidden = !detail.show_prompts;
});
document.addEventListener("key", () => (listed = listModels()));
$("#model").addEventListener("focus", listModels); // adapters come and go
let listed = listModels(); // a question that is sent before waits for the models' names
