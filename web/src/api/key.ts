import { ROOT } from './root';

const PLACE = `openenv.key ${ROOT.pathname}`;

/** The key for this server, for as long as this tab lives. */
export function heldKey(): string | null {
  try {
    return sessionStorage.getItem(PLACE);
  } catch {
    return unstored; // frames of other sites may have no storage
  }
}

export function holdKey(key: string | null): void {
  unstored = key;
  try {
    if (key === null) sessionStorage.removeItem(PLACE);
    else sessionStorage.setItem(PLACE, key);
  } catch {
    // It is held until the page is left.
  }
}

/** Takes a key out of the address (`#key=...`), so that it stays in no history. */
export function takeKeyFromAddress(): void {
  const found = /^#key=(.+)$/.exec(location.hash);
  if (!found?.[1]) return;
  try {
    holdKey(decodeURIComponent(found[1]));
  } catch {
    holdKey(found[1]); // a percent sign of its own
  }
  history.replaceState(null, '', location.pathname + location.search);
}

let unstored: string | null = null;
