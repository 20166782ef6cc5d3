import { useEffect, useState } from 'preact/hooks';

export const LISTS = ['rollouts', 'groups', 'runs'] as const;
export type ListName = (typeof LISTS)[number];

/** A rollout: the name of its file, and the byte at which its line begins. */
export interface Place {
  file: string;
  offset: number;
}

/** What the page shows, as its address says after the `#`. */
export interface View {
  list: ListName;
  /** Fields of the filter that are set, as the server calls them. */
  filter: Record<string, string[]>;
  sort: string;
  descending: boolean;
  /** The text that is searched. */
  text: string;
  open: Place | null;
  /** The turn of the open rollout to begin with, from 1. */
  turn: number;
  beside: Place | null;
}

export const FILTERS = ['run', 'group', 'outcome', 'task', 'min_reward', 'max_reward', 'min_turns', 'max_turns'];
const EMPTY: View = { list: 'rollouts', filter: {}, sort: 'started', descending: true, text: '', open: null, turn: 1, beside: null };

export function readAddress(hash: string): View {
  const given = new URLSearchParams(hash.replace(/^#/, ''));
  const filter: View['filter'] = {};
  for (const name of FILTERS) {
    const values = given.getAll(name).filter((value) => value !== '');
    if (values.length) filter[name] = values;
  }
  return {
    list: LISTS.find((each) => each === given.get('list')) ?? EMPTY.list,
    filter,
    sort: given.get('sort') ?? EMPTY.sort,
    descending: given.get('order') !== 'up',
    text: given.get('text') ?? '',
    open: placeOf(given.get('open')),
    turn: Math.max(1, Math.floor(Number(given.get('turn'))) || 1),
    beside: placeOf(given.get('beside')),
  };
}

export function writeAddress(view: View): string {
  const said = queryOf(view.filter);
  if (view.list !== EMPTY.list) said.set('list', view.list);
  if (view.sort !== EMPTY.sort) said.set('sort', view.sort);
  if (!view.descending) said.set('order', 'up');
  if (view.text) said.set('text', view.text);
  if (view.open) said.set('open', nameOf(view.open));
  if (view.open && view.turn > 1) said.set('turn', String(view.turn));
  if (view.open && view.beside) said.set('beside', nameOf(view.beside));
  return `#${said.toString()}`;
}

/** A filter as a query of the server. */
export function queryOf(filter: View['filter']): URLSearchParams {
  const query = new URLSearchParams();
  for (const [name, values] of Object.entries(filter)) for (const value of values) if (value !== '') query.append(name, value);
  return query;
}

export function nameOf({ file, offset }: Place): string {
  return `${file}:${offset}`;
}

function placeOf(text: string | null): Place | null {
  const found = /^(.+):(\d+)$/.exec(text ?? '');
  return found ? { file: found[1] as string, offset: Number(found[2]) } : null;
}

export type Go = (change: Partial<View>, replace?: boolean) => void;

/** What the address says, and a function that changes it; `replace` adds no entry to the history of the browser. */
export function useAddress(): [View, Go] {
  const [view, setView] = useState(() => readAddress(location.hash));
  useEffect(() => {
    const look = () => setView(readAddress(location.hash));
    window.addEventListener('popstate', look);
    window.addEventListener('hashchange', look);
    return () => {
      window.removeEventListener('popstate', look);
      window.removeEventListener('hashchange', look);
    };
  }, []);
  const go: Go = (change, replace = false) => {
    const next = { ...readAddress(location.hash), ...change };
    history[replace ? 'replaceState' : 'pushState'](null, '', writeAddress(next));
    setView(next);
  };
  return [view, go];
}
