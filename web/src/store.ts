import { useEffect, useState } from 'preact/hooks';

/** A value that components watch. */
export class Store<T> {
  private watchers = new Set<() => void>();

  constructor(private current: T) {}

  get value(): T {
    return this.current;
  }

  set(next: Partial<T>): void {
    this.current = { ...this.current, ...next };
    this.tell();
  }

  tell(): void {
    for (const watcher of [...this.watchers]) watcher();
  }

  watch(watcher: () => void): () => void {
    this.watchers.add(watcher);
    return () => this.watchers.delete(watcher);
  }
}

/** Draws the component again when the value changes. */
export function useStore<T>(store: Store<T>): T {
  const [, redraw] = useState(0);
  useEffect(() => {
    redraw((count) => count + 1); // it may have changed before this ran
    return store.watch(() => redraw((count) => count + 1));
  }, [store]);
  return store.value;
}
