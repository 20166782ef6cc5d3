import { useEffect, useState } from 'preact/hooks';

export const PAGES = ['play', 'server', 'replay', 'about'] as const;
export type Page = (typeof PAGES)[number];

/** The page that the address names, after its `#`: what stands before it belongs to the server. */
export function usePage(): Page {
  const [page, setPage] = useState(named);
  useEffect(() => {
    const look = () => setPage(named());
    window.addEventListener('hashchange', look);
    return () => window.removeEventListener('hashchange', look);
  }, []);
  return page;
}

export function goTo(page: Page): void {
  location.hash = page;
}

function named(): Page {
  const wanted = location.hash.slice(1);
  return PAGES.find((page) => page === wanted) ?? 'play';
}
