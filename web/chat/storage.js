// What outlives a reload: the conversations, in the tab's session storage. Knows no turn from inside.
//
// Storage may be switched off, or full: then the conversations last as long as the page, and nothing else changes.

const PREFIX = "rota.chat:";
const KEY_NAME = "rota.key";
const VERSION = 1;

export class Keeper {
  #name;

  /** `name`: whose conversations; two widgets on one site have two. */
  constructor(name) {
    this.#name = PREFIX + name;
  }

  /** `{current, talks}` as `save` was given them, or null. */
  load() {
    const kept = parsed(read(this.#name));
    return kept?.version === VERSION && Array.isArray(kept.talks) ? kept : null;
  }

  /** `talks`: newest last; the oldest are left out until the rest fits. */
  save(current, talks) {
    for (let first = 0; first < talks.length; first += 1) {
      if (write(this.#name, JSON.stringify({ version: VERSION, current, talks: talks.slice(first) }))) return;
    }
    this.forget();
  }

  forget() {
    write(this.#name, null);
  }
}

export function storedKey() {
  return read(KEY_NAME);
}

export function storeKey(key) {
  write(KEY_NAME, key);
}

function read(name) {
  try {
    return sessionStorage.getItem(name);
  } catch {
    return null;
  }
}

function write(name, value) {
  try {
    if (value === null) sessionStorage.removeItem(name);
    else sessionStorage.setItem(name, value);
    return true;
  } catch {
    return false;
  }
}

function parsed(json) {
  try {
    return JSON.parse(json);
  } catch {
    return null;
  }
}
