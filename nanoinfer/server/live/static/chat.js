"use strict";
// The chat. The conversation is in this page and this browser's storage only; the server keeps nothing but its cache.

const Chat = {
  now: null, // as chats.js keeps it; messages: {role, content, name, facts, reasoning, isPlain}
  running: null,
  hasTemplate: true,
};
const REASONS = { length: "cut: it has reached its number of tokens", abort: "ended by the server", timeout: "took too long", stopped: "stopped by you" };

// --- messages ----------------------------------------------------------------------------------------------------------

/** A message in the list; returns what can change: {item, words, thoughts, facts}. What a person has written is shown as it is. */
function addMessage({ role, name = "You", content = "", facts = "", reasoning = "", isPlain = role === "user" }) {
  const words = new Growing(el("div", { class: "words" }), !isPlain);
  const thoughts = new Growing(el("div", { class: "words" }), false);
  const folded = el("details", { class: "reasoning" }, el("summary", { text: "Reasoning" }), thoughts.element);
  const told = el("p", { class: "facts", text: facts });
  const again = el("button", { type: "button", class: "again", text: "Regenerate" });
  const actions = el("div", { class: "actions" }, copyButton("Copy the answer", words.element, () => words.text), again);
  const item = el("li", { class: `message ${role}` }, el("h3", { text: name }), folded, words.element, told, actions);
  again.addEventListener("click", () => regenerate(item));
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
  const own = Live.trace?.about.show_prompts ? null : { prompt: [], written: [] };
  const texts = own && promptTexts(body);
  const asked = own ? { ...body, return_token_ids: true } : body;
  const response = await Session.fetch(path, { body: asked, headers: { "X-Engine-Requests": "?" }, signal });
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
  try {
    const response = await Session.fetch("tokenize", { body: { model, messages, prompt, return_token_strs: true } });
    const { token_strs } = await response.json();
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
  if (await turn([...Chat.now.messages, user])) return;
  item.classList.add("failed");
  $("#question").value ||= question; // to try again
}

/** Another answer in place of the last one, which comes back if there is none. */
async function regenerate(item) {
  if (Chat.running !== null) return;
  item.hidden = true;
  const conversation = Chat.now.messages.slice(0, Chat.now.messages.findLastIndex(({ role }) => role === "user") + 1);
  if (await turn(conversation)) item.remove();
  else item.hidden = false;
}

/** Answer a conversation that a question ends. False if it stays as it was, because nothing has been answered. */
async function turn(conversation) {
  const settings = Object.fromEntries(new FormData($("#chat-form")));
  const [chat, isJson] = [Chat.now, $("#json").checked];
  const request = chatRequest(conversation, { ...settings, json: isJson }, Chat.hasTemplate);
  const answer = { role: "assistant", name: settings.model, isPlain: isJson || !Chat.hasTemplate };
  const { item, words, thoughts, facts } = addMessage(answer);
  const record = () => {
    chat.messages = [...conversation, { ...answer, content: words.text, reasoning: thoughts.text }];
    chat.system = settings.system ?? "";
    if (chat.isDeleted) return;
    $("#not-kept").hidden = Chats.keep(chat) || Chats.all().length === 0; // without storage, nobody expects it
    listChats();
  };
  const began = performance.now();
  const end = {}; // {reason, usage}
  let [first, failure] = [null, null];
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
      Object.assign(end, part);
    }
  } catch (error) {
    if (error.name === "AbortError") end.reason = "stopped";
    else failure = error.message;
    if (error.status === 401) askForKey();
  }
  for (const shown of [words, thoughts]) shown.draw();
  item.removeAttribute("aria-busy");
  answer.facts = factsOf(end, first === null ? null : first - began, performance.now() - (first ?? began));
  facts.textContent = answer.facts;
  removeEventListener("pagehide", record);
  const isKept = failure === null || words.text !== "";
  item.classList.toggle("failed", !isKept);
  if (isKept) {
    record();
    announce(`${end.reason === "stopped" ? "Stopped. " : ""}${settings.model} says: ${words.text}`);
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
function factsOf({ reason, usage }, firstMs, restMs) {
  const facts = REASONS[reason] ? [REASONS[reason]] : [];
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

function listChats() {
  const kept = Chats.all();
  const options = kept.map(({ id, messages }) => el("option", { value: id, text: messages[0].content.trim().slice(0, 60) }));
  const isKept = kept.some(({ id }) => id === Chat.now.id);
  $("#chats").replaceChildren(el("option", { value: "", text: "New chat" }), ...options);
  $("#chats").value = isKept ? Chat.now.id : "";
  $("#chats").hidden = kept.length === 0;
  $("#delete").hidden = !isKept;
  $("#delete").textContent = "Delete";
  attempt(() => sessionStorage.setItem("nanoinfer-chat", $("#chats").value)); // what this tab shows when it loads the page again
}

/** Show a chat that is kept, or if there is none with this id, a new one. An answer that is still being written ends. */
function showChat(shown) {
  Chat.running?.abort();
  Chat.now = Chats.all().find(({ id }) => id === Number(shown)) ?? { system: $("#system").value, messages: [] };
  $("#system").value = Chat.now.system;
  $("#messages").replaceChildren();
  $("#no-messages").hidden = false;
  Chat.now.messages.forEach(addMessage);
  $("#not-kept").hidden = true;
  listChats();
}

function newChat(announced) {
  showChat(null);
  announce(announced);
  $("#question").focus();
}

$("#chats").addEventListener("change", () => showChat($("#chats").value));
$("#forget").addEventListener("click", () => newChat("A new chat."));
$("#delete").addEventListener("click", () => {
  if ($("#delete").textContent === "Delete") return ($("#delete").textContent = "Really delete");
  Chat.now.isDeleted = true;
  Chats.set(Chats.all().filter(({ id }) => id !== Chat.now.id));
  newChat("The chat is deleted.");
});
$("#delete").addEventListener("blur", () => ($("#delete").textContent = "Delete"));
addEventListener("storage", listChats); // another tab has kept or deleted one
if (attempt(() => localStorage) === null) $("#kept").textContent = "What you write is kept in this page only, until you close it.";
showChat(attempt(() => sessionStorage.getItem("nanoinfer-chat")));

// --- models ------------------------------------------------------------------------------------------------------------

async function listModels() {
  try {
    const { data } = await (await Session.fetch("v1/models")).json();
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
