"use strict";
// The chats that this browser keeps, each under the time when it was last used. Without storage (a frame may have none), it keeps none.

const Chats = {
  MOST: 20,
  MOST_CHARS: 200_000, // of one

  /** What `use` returns; `otherwise` where storage is denied, full, or has something else under our name. */
  attempt(use, otherwise = null) {
    try {
      return use();
    } catch {
      return otherwise;
    }
  },

  /** Their names, the newest first. */
  names() {
    return this.attempt(() => Object.keys(localStorage).filter((name) => name.startsWith("nanoinfer-chat-")).sort().reverse(), []);
  },

  /** {name, system, messages}, or null. */
  read(name) {
    return this.attempt(() => {
      const { system, messages } = JSON.parse(localStorage.getItem(name));
      if (!messages.length || !messages.every(({ role, content }) => ["user", "assistant"].includes(role) && typeof content === "string")) return null;
      return { name, system: String(system), messages };
    });
  },

  /** Keep a chat in place of what was kept of it before; the oldest ones go. False if it cannot be kept. */
  keep(chat) {
    const text = JSON.stringify({ system: chat.system, messages: chat.messages });
    const name = `nanoinfer-chat-${Date.now()}`;
    const others = this.names().filter((other) => other !== chat.name);
    for (const oldest of others.splice(this.MOST - 1)) this.remove(oldest);
    const isKept = text.length <= this.MOST_CHARS && this.attempt(() => localStorage.setItem(name, text) ?? true, false);
    if (isKept) {
      if (chat.name !== name) this.remove(chat.name);
      chat.name = name;
    }
    return isKept;
  },

  remove(name) {
    this.attempt(() => localStorage.removeItem(name));
  },

  /** Which one this tab shows when it loads the page again. */
  stay(name) {
    this.attempt(() => (name === null ? sessionStorage.removeItem("nanoinfer-chat") : sessionStorage.setItem("nanoinfer-chat", name)));
  },

  stayed() {
    return this.attempt(() => sessionStorage.getItem("nanoinfer-chat"));
  },
};
