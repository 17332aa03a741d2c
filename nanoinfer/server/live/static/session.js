"use strict";
// What every request of the page has in common: the key, errors as sentences, and events read from a stream.
// The key is sent in a header, so streams are read with fetch: an EventSource could only carry it in the address.

const Session = {
  key: "",

  /** Use a key from now on, also when this tab loads the page again (but a frame may have no storage). */
  use(key) {
    this.key = key;
    try {
      sessionStorage.setItem("nanoinfer-key", key);
    } catch {}
  },

  /** fetch with the key. Throws a RefusedError for any status but 200. */
  async fetch(path, options = {}) {
    const headers = { ...options.headers, ...(Session.key && { Authorization: `Bearer ${Session.key}` }) };
    const response = await fetch(path, { ...options, headers, cache: "no-store" }).catch(refuse);
    if (!response.ok) throw new RefusedError(response.status, await errorText(response));
    return response;
  },

  async json(path) {
    return (await Session.fetch(path)).json();
  },
};

try {
  Session.key = sessionStorage.getItem("nanoinfer-key") ?? "";
} catch {}

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

/** What the server says is wrong, in OpenAI's shape if it answers at all. */
async function errorText(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered with status ${response.status}`;
  }
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
