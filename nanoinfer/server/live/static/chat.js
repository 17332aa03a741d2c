"use strict";
// The chat. The conversation is in this page and this browser's storage only; the server keeps nothing but its cache.

const Chat = {
  now: { name: null, system: "", messages: [] }, // as chats.js keeps it; messages: {role, content, name, facts, reasoning, isPlain}
  running: null,
  hasTemplate: true,
  get conversation() {
    return this.now.messages;
  },
};
const REASONS = { length: "cut: it has reached its number of tokens", abort: "ended by the server", timeout: "took too long", content_filter: "filtered" };

// --- messages ----------------------------------------------------------------------------------------------------------

/** A message in the list; returns what can change: {item, words, thoughts, facts}. What a person has written is shown as it is. */
function addMessage({ role, name = "You", content = "", facts = "", reasoning = "", isPlain = role === "user" }) {
  const words = new Growing(el("div", { class: "words" }), !isPlain);
  const thoughts = new Growing(el("div", { class: "words" }), false);
  const told = el("p", { class: "facts", text: facts });
  const item = el("li", { class: `message ${role}` }, el("h3", { text: name }));
  if (role === "assistant") item.append(el("details", { class: "reasoning" }, el("summary", { text: "Reasoning" }), thoughts.element));
  item.append(words.element, told);
  if (role === "assistant") {
    const again = el("button", { type: "button", class: "again", text: "Regenerate" });
    again.addEventListener("click", () => regenerate(item));
    item.append(el("div", { class: "actions" }, copyButton("Copy the answer", () => words.text, words.element), again));
  }
  $("#messages").append(item);
  $("#no-messages").hidden = true;
  words.show(content);
  thoughts.show(reasoning);
  item.scrollIntoView({ block: "nearest" });
  return { item, words, thoughts, facts: told };
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
  const messages = conversation.map(({ role, content }) => ({ role, content }));
  return { path: "v1/chat/completions", body: { ...body, messages: [...system, ...messages] } };
}

/** The parts of an answer as they come: {text, reasoning}, {reason}, {usage}. Throws a RefusedError for an error, also in mid-stream. */
async function* answerTo({ path, body }, signal) {
  const headers = { "Content-Type": "application/json", "X-Engine-Requests": "?" };
  const own = Live.trace?.about.show_prompts ? null : { prompt: [], written: [] };
  const texts = own && promptTexts(body);
  const options = { method: "POST", headers, body: JSON.stringify(own ? { ...body, return_token_ids: true } : body), signal };
  const response = await Session.fetch(path, options);
  for (const number of (response.headers.get("X-Engine-Requests") ?? "").split(",")) if (number) markMine(Number(number), own, texts);
  for await (const { data } of eventsOf(response)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new RefusedError(chunk.error.code, chunk.error.message);
    const choice = chunk.choices[0];
    const [text, reasoning] = [choice?.delta?.content ?? choice?.text ?? "", choice?.delta?.reasoning ?? ""];
    (choice?.token_ids ?? []).forEach((_, i) => own?.written.push(i ? "" : reasoning + text)); // of several, nobody says whose text it is
    if (text || reasoning) yield { text, reasoning };
    if (choice?.finish_reason) yield { reason: choice.finish_reason };
    if (chunk.usage) yield { usage: chunk.usage };
  }
  throw new RefusedError(0, "The answer broke off: the connection to the server was lost.");
}

/** The texts of a prompt's tokens: with them, the page shows what of the engine's tokens is its own. */
async function promptTexts({ model, messages, prompt }) {
  const options = { method: "POST", headers: { "Content-Type": "application/json" } };
  const body = JSON.stringify({ model, messages, prompt, return_token_strs: true });
  try {
    const { token_strs } = await (await Session.fetch("tokenize", { ...options, body })).json();
    return token_strs.map((text) => (text.startsWith("bytes:") ? "\ufffd" : text)); // a part of a character
  } catch {
    return []; // they stay hidden
  }
}

// --- one turn ----------------------------------------------------------------------------------------------------------

async function ask(question) {
  const user = { role: "user", content: question };
  for (const item of document.querySelectorAll(".message.failed")) item.remove();
  const { item } = addMessage(user);
  if (await turn([...Chat.conversation, user])) return;
  item.classList.add("failed");
  $("#question").value ||= question; // to try again
}

/** Another answer in place of the last one, which comes back if there is none. */
async function regenerate(item) {
  if (Chat.running !== null) return;
  item.hidden = true;
  const conversation = Chat.conversation.slice(0, Chat.conversation.findLastIndex(({ role }) => role === "user") + 1);
  if (await turn(conversation)) item.remove();
  else item.hidden = false;
}

/** Answer a conversation that a question ends. False if it stays as it was, because nothing has been answered. */
async function turn(conversation) {
  const settings = Object.fromEntries(new FormData($("#chat-form")));
  const [chat, isJson] = [Chat.now, $("#json").checked];
  const request = chatRequest(conversation, { ...settings, json: isJson }, Chat.hasTemplate);
  const answer = { role: "assistant", name: settings.model, isPlain: isJson || !Chat.hasTemplate };
  const message = addMessage(answer);
  const { item, words, thoughts } = message;
  const record = () => {
    chat.messages = [...conversation, { ...answer, content: words.text, reasoning: thoughts.text }];
    chat.system = settings.system ?? "";
    if (!chat.isDeleted) keep(chat);
  };
  const began = performance.now();
  let [first, reason, usage, failure] = [null, null, null, null];
  Chat.running = new AbortController();
  setRunning(true);
  addEventListener("pagehide", record); // what has been written so far survives a reload
  item.setAttribute("aria-busy", "true");
  announce("The model is answering.");
  try {
    for await (const part of answerTo(request, Chat.running.signal)) {
      first ??= performance.now();
      if (part.text) words.add(part.text);
      if (part.reasoning) thoughts.add(part.reasoning);
      reason = part.reason ?? reason;
      usage = part.usage ?? usage;
    }
  } catch (error) {
    if (error.name === "AbortError") reason = "stopped";
    else failure = error.message;
    if (error.status === 401) askForKey();
  }
  for (const shown of [words, thoughts]) shown.draw();
  item.removeAttribute("aria-busy");
  answer.facts = factsOf(reason, usage, first === null ? null : first - began, performance.now() - (first ?? began));
  message.facts.textContent = answer.facts;
  removeEventListener("pagehide", record);
  const isKept = failure === null || words.text !== "";
  if (isKept) {
    record();
    announce(`${reason === "stopped" ? "Stopped. " : ""}${settings.model} says: ${words.text}`);
  } else {
    item.classList.add("failed");
  }
  Chat.running = null;
  setRunning(false);
  if (failure !== null) {
    const problem = el("p", { class: "problem", role: "alert", text: failure });
    item.append(problem);
    $("#log").scrollTop = $("#log").scrollHeight;
    problem.scrollIntoView({ block: "nearest" }); // of the page, on a phone
  }
  return isKept;
}

/** What an answer took, in words. */
function factsOf(reason, usage, firstMs, restMs) {
  const facts = [];
  if (reason === "stopped") facts.push("stopped by you");
  else if (REASONS[reason]) facts.push(REASONS[reason]);
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    facts.push(`${cached.toLocaleString("en")} of ${plural(usage.prompt_tokens, "prompt token")} from the cache`, plural(usage.completion_tokens, "new token"));
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
  if (!isRunning && (document.activeElement === document.body || document.activeElement === $("#stop"))) $("#question").focus({ preventScroll: true });
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

// --- the chats that are kept ---------------------------------------------------------------------------------------------

function keep(chat) {
  const isKept = Chats.keep(chat);
  if (isKept && chat === Chat.now) Chats.stay(chat.name);
  $("#not-kept").hidden = isKept || Chats.names().length === 0; // without storage, nobody expects it
  listChats();
}

function listChats() {
  const kept = Chats.names().map((name) => Chats.read(name)).filter((chat) => chat !== null);
  const options = kept.map(({ name, messages }) => el("option", { value: name, text: messages[0].content.trim().slice(0, 60) }));
  $("#chats").replaceChildren(el("option", { value: "", text: "New chat" }), ...options);
  $("#chats").value = Chat.now.name ?? "";
  $("#chats").hidden = kept.length === 0;
  $("#delete").hidden = Chat.now.name === null;
  $("#delete").textContent = "Delete";
}

/** Show a chat that is kept, or for null a new one. An answer that is still being written ends. */
function showChat(chat) {
  Chat.running?.abort();
  Chat.now = chat ?? { name: null, system: $("#system").value, messages: [] };
  Chats.stay(Chat.now.name);
  $("#system").value = Chat.now.system;
  $("#messages").replaceChildren();
  $("#no-messages").hidden = false;
  Chat.conversation.forEach(addMessage);
  $("#not-kept").hidden = true;
  listChats();
}

$("#chats").addEventListener("change", () => showChat(Chats.read($("#chats").value)));
$("#forget").addEventListener("click", () => {
  showChat(null);
  announce("A new chat.");
  $("#question").focus();
});
$("#delete").addEventListener("click", () => {
  if ($("#delete").textContent === "Delete") return ($("#delete").textContent = "Really delete");
  Chats.remove(Chat.now.name);
  Chat.now.isDeleted = true;
  showChat(null);
  announce("The chat is deleted.");
  $("#question").focus();
});
$("#delete").addEventListener("blur", () => ($("#delete").textContent = "Delete"));
addEventListener("storage", listChats); // another tab has kept or deleted one
if (Chats.attempt(() => localStorage) === null) $("#kept").textContent = "What you write is kept in this page only, until you close it.";
showChat(Chats.read(Chats.stayed()));

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
  if (detail.needs_key) $("#key").hidden = false;
  if ($("#model").value === "") listed = listModels(); // the server was not there before
});
document.addEventListener("key", () => (listed = listModels()));
$("#model").addEventListener("focus", listModels); // adapters come and go
let listed = listModels(); // a question that is sent before waits for the models' names
