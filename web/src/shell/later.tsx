import type { ComponentType } from 'preact';
import { useEffect, useState } from 'preact/hooks';

type Load<P> = () => Promise<ComponentType<P>>;

/** A page whose code is fetched when it is first seen. */
export function later<P extends object>(load: Load<P>): ComponentType<P> {
  let found: ComponentType<P> | null = null;
  return function Later(props: P) {
    const [, arrived] = useState(false);
    const [failed, setFailed] = useState(false);
    useEffect(() => {
      if (found) return;
      load().then(
        (page) => {
          found = page;
          arrived(true);
        },
        () => setFailed(true),
      );
    }, []);
    if (failed) return <div class="box bad" role="alert">This page could not be loaded: the server does not answer, or has another version now. Reload it.</div>;
    const Found = found;
    return Found ? <Found {...props} /> : <p class="loading">Loading…</p>;
  };
}
