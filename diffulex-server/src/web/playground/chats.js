// The conversations that are kept in this browser.
//
// In: a conversation after each of its turns. Out: what is kept, newest first. Each lies under a key of its own, so that
// two tabs do not write over each other. Never here: how one looks.

const PREFIX = "diffulex-chat:";
/** Browsers give a page about 5 million characters. Chosen by us: half of that is for chats, and no list is longer. */
const MOST_CHARACTERS = 2_500_000;
const MOST_CHATS = 20;

export class Chats {
  /** False where the browser forbids storage or has no room left: chats then last as long as the page. */
  isLasting = true;
  #fallback = new Map();

  /** `{id, at, title}` of each, newest first. `at` is Unix time in milliseconds. */
  list() {
    return this.#keys()
      .map((key) => ({ id: key.slice(PREFIX.length), ...this.#head(key) }))
      .filter((chat) => chat.title)
      .sort((a, b) => b.at - a.at);
  }

  /** The packed turns of a chat; null where there is none to be read. */
  load(id) {
    try {
      const text = this.#read(PREFIX + id);
      return text ? JSON.parse(text.slice(text.indexOf("\n") + 1)) : null;
    } catch {
      return null;
    }
  }

  /** Keeps a chat. `pack` is called with how many of its oldest replays to leave out. */
  save(id, title, nTurns, pack) {
    const head = JSON.stringify({ at: Date.now(), title: title.slice(0, 80) });
    const others = this.list().filter((chat) => chat.id !== id);
    for (const chat of others.splice(MOST_CHATS - 1)) this.remove(chat.id);
    // What is only in memory takes no room.
    const stored = others.filter((chat) => !this.#fallback.has(PREFIX + chat.id));
    for (let nBare = 0; ; ) {
      const text = `${head}\n${JSON.stringify(pack(nBare))}`;
      const total = text.length + stored.reduce((sum, chat) => sum + (this.#read(PREFIX + chat.id)?.length ?? 0), 0);
      if (total <= MOST_CHARACTERS && this.#write(PREFIX + id, text)) return;
      // Room is made of the oldest first: other chats, then replays of this one.
      if (stored.length) this.remove(stored.pop().id);
      else if (nBare < nTurns) nBare += 1;
      else break;
    }
    this.remove(id);
    this.isLasting = false;
    this.#fallback.set(PREFIX + id, `${head}\n${JSON.stringify(pack(0))}`);
  }

  remove(id) {
    this.#fallback.delete(PREFIX + id);
    try {
      localStorage.removeItem(PREFIX + id);
    } catch {
      // Nothing can be kept there, so nothing is.
    }
  }

  #keys() {
    let stored = [];
    try {
      stored = Object.keys(localStorage).filter((key) => key.startsWith(PREFIX));
    } catch {
      this.isLasting = false;
    }
    return [...new Set([...stored, ...this.#fallback.keys()])];
  }

  #head(key) {
    try {
      const text = this.#read(key);
      return JSON.parse(text.slice(0, text.indexOf("\n")));
    } catch {
      return {};
    }
  }

  #read(key) {
    if (this.#fallback.has(key)) return this.#fallback.get(key);
    try {
      return localStorage.getItem(key);
    } catch {
      return null;
    }
  }

  #write(key, text) {
    try {
      localStorage.setItem(key, text);
      this.#fallback.delete(key);
      return true;
    } catch {
      return false;
    }
  }
}
