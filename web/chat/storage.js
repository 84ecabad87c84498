// What outlives a reload: the conversations, in the tab's session storage. Knows no turn from inside.
//
// Storage may be switched off, or full: then the conversations last as long as the page, and nothing else changes.

const PREFIX = "rota.chat:";
const KEY = "rota.key:";

export class Keeper {
  #name;

  /** `name`: whose conversations; two widgets on one site have two. */
  constructor(name) {
    this.#name = PREFIX + name;
  }

  /** `{current, talks}` as `save` was given them, or null. */
  load() {
    const kept = parsed(read(this.#name));
    return Array.isArray(kept?.talks) ? kept : null;
  }

  /** `talks`: newest last; the oldest are left out until the rest fits. */
  save(current, talks) {
    for (let first = 0; first < talks.length; first += 1) {
      if (write(this.#name, JSON.stringify({ current, talks: talks.slice(first) }))) return;
    }
    this.forget();
  }

  forget() {
    write(this.#name, null);
  }
}

/** The key that was entered for the server at `origin`: no other server is ever told it. */
export function storedKey(origin) {
  return read(KEY + origin);
}

export function storeKey(origin, key) {
  write(KEY + origin, key);
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
