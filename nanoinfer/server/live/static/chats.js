"use strict";
// The chats that this browser keeps, the newest first. Without storage (a frame may have none), it keeps none.

const Chats = {
  MOST: 20,
  MOST_CHARS: 200_000, // of one

  /** [{id, system, messages}] */
  all() {
    return attempt(() => JSON.parse(localStorage.getItem("nanoinfer-chats")).filter(({ messages }) => messages[0].content), []);
  },

  /** Keep these and no others. False if that cannot be. */
  set(chats) {
    return attempt(() => localStorage.setItem("nanoinfer-chats", JSON.stringify(chats)) ?? true, false);
  },

  /** Keep a chat in place of what was kept of it before; the oldest ones go. False if it cannot be kept. */
  keep(chat) {
    chat.id ??= Date.now();
    const others = this.all().filter(({ id }) => id !== chat.id);
    return JSON.stringify(chat).length <= this.MOST_CHARS && this.set([chat, ...others].slice(0, this.MOST));
  },
};
