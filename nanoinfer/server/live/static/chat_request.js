"use strict";
// A chat's next request: what is sent for a conversation and settings, and what its stream answers.

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
  drawSoon(); // it may be drawn already, as another's
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
