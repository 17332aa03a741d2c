"use strict";
// What every request of the page has in common: the key, errors as sentences, and events read from a stream.
// The key is sent in a header, so streams are read with fetch: an EventSource could only carry it in the address.

/** What `use` returns; `otherwise` where it fails: storage may be denied (in a frame), full, or have something else under our name. */
function attempt(use, otherwise = null) {
  try {
    return use();
  } catch {
    return otherwise;
  }
}

const Session = {
  key: attempt(() => sessionStorage.getItem("nanoinfer-key")) ?? "",

  /** Use a key from now on, also when this tab loads the page again. */
  use(key) {
    this.key = key;
    attempt(() => sessionStorage.setItem("nanoinfer-key", key));
  },

  /** fetch with the key; with a `body`, it is posted as JSON. Throws a RefusedError for any status but 200. */
  async fetch(path, { body, headers, signal } = {}) {
    const posted = body && { method: "POST", body: JSON.stringify(body) };
    const all = { ...headers, ...(body && { "Content-Type": "application/json" }), ...(this.key && { Authorization: `Bearer ${this.key}` }) };
    const response = await fetch(path, { ...posted, headers: all, signal, cache: "no-store" }).catch(refuse);
    if (response.ok) return response;
    const told = response.json().then(({ error }) => error.message); // OpenAI's shape, if the server answers at all
    throw new RefusedError(response.status, await told.catch(() => `the server answered with status ${response.status}`));
  },
};

class RefusedError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Throw what has become of a connection, in words. */
function refuse(error) {
  throw error.name === "AbortError" ? error : new RefusedError(0, `The server is gone: nothing answers at ${location.host}.`);
}

/** The events of a stream of this server, whose data is one line: one {event, data} after the other. */
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read().catch(refuse);
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const event = Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/)));
        if (event.data) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // it may have ended already
  }
}
