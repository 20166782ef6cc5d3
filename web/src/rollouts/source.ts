import { OpenEnvError } from 'openenv';
import { SERVER } from '../api/server';
import { Store } from '../store';
import { queryOf, type View } from './address';
import type { Group, Match, Summary } from './records';

const PAGE = 100;
const KEPT_PAGES = 50;

interface State {
  /** Number of rows; null until it is known. */
  total: number | null;
  failure: OpenEnvError | null;
  /** Facts about what is still going on, in words. */
  progress: string;
}

/** The rows of a list, of which a table shows a few. */
export interface Rows<Row> extends Store<State> {
  row(index: number): Row | undefined;
  /** Says which rows are in sight. */
  need(first: number, last: number): void;
  /** The list may have changed. */
  refresh(): void;
  close(): void;
}

type Load<Row> = (start: number, count: number) => Promise<{ total: number; rows: Row[] }>;

/** Rows that the server sorts, fetched by pages as they come into sight. */
export class PagedRows<Row> extends Store<State> implements Rows<Row> {
  private pages = new Map<number, Row[]>();
  private asked = new Set<number>();
  private sight: [number, number] = [0, 0];
  private version = 0;

  constructor(private load: Load<Row>) {
    super({ total: null, failure: null, progress: '' });
    this.need(0, 0);
  }

  row(index: number): Row | undefined {
    return this.pages.get(Math.floor(index / PAGE))?.[index % PAGE];
  }

  need(first: number, last: number): void {
    this.sight = [Math.floor(first / PAGE), Math.floor(last / PAGE)];
    for (let page = this.sight[0]; page <= this.sight[1]; page += 1) if (!this.pages.has(page)) void this.fetch(page);
  }

  refresh(): void {
    this.version += 1;
    this.asked.clear();
    for (const page of this.pages.keys()) if (page < this.sight[0] || page > this.sight[1]) this.pages.delete(page);
    for (let page = this.sight[0]; page <= this.sight[1]; page += 1) void this.fetch(page);
  }

  close(): void {
    this.version += 1;
  }

  private async fetch(page: number): Promise<void> {
    if (this.asked.has(page)) return;
    this.asked.add(page);
    const version = this.version;
    try {
      const { total, rows } = await this.load(page * PAGE, PAGE);
      if (version !== this.version) return;
      this.pages.set(page, rows);
      for (const old of this.pages.keys()) {
        if (this.pages.size <= KEPT_PAGES) break;
        if (old < this.sight[0] || old > this.sight[1]) this.pages.delete(old);
      }
      this.set({ total, failure: null });
    } catch (error) {
      if (version === this.version) this.set({ failure: asFailure(error) });
    } finally {
      if (version === this.version) this.asked.delete(page);
    }
  }
}

export type Found = Summary & { match?: Match };

/** The rollouts that contain a text, as the server finds them. */
export class SearchedRows extends Store<State> implements Rows<Found> {
  private rows: Found[] = [];
  private stop = new AbortController();

  constructor(query: URLSearchParams) {
    super({ total: 0, failure: null, progress: 'searching' });
    void this.read(query);
  }

  row(index: number): Found | undefined {
    return this.rows[index];
  }

  need(): void {}

  refresh(): void {}

  close(): void {
    this.stop.abort();
  }

  private async read(query: URLSearchParams): Promise<void> {
    try {
      const answer = await SERVER.request(`rollouts/search?${query.toString()}`, { signal: this.stop.signal });
      for await (const line of linesOf(answer)) {
        const facts = JSON.parse(line) as { row: Summary; match: Match } | { searched: number; of: number };
        if ('row' in facts) this.rows.push({ ...facts.row, match: facts.match });
        else this.set({ total: this.rows.length, progress: wordsOf(facts.searched, facts.of, this.rows.length) });
      }
      this.set({ progress: this.value.progress.replace('searched', 'Searched') });
    } catch (error) {
      if (!this.stop.signal.aborted) this.set({ failure: asFailure(error) });
    }
  }
}

function wordsOf(searched: number, of: number, found: number): string {
  const part = searched < of ? `${searched.toLocaleString('en')} of ${of.toLocaleString('en')}` : `all ${of.toLocaleString('en')}`;
  return `searched ${part}, found ${found.toLocaleString('en')}`;
}

/** The lines of a body, as they arrive. */
export async function* linesOf(answer: Response): AsyncGenerator<string> {
  const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const part = await reader?.read();
    if (!part || part.done) return;
    const lines = (rest + part.value).split('\n');
    rest = lines.pop() ?? '';
    yield* lines;
  }
}

/** The rows of the list that an address names. */
export function rowsOf(view: View): Rows<Found> | Rows<Group> {
  const query = queryOf(view.filter);
  query.set('sort', view.sort);
  query.set('descending', String(view.descending));
  if (view.list === 'rollouts' && view.text) {
    query.set('text', view.text);
    return new SearchedRows(query);
  }
  const load = <Row>(start: number, count: number) =>
    SERVER.ask<{ total: number; rows: Row[] }>(`rollouts/${view.list === 'groups' ? 'groups' : 'rows'}?${query.toString()}&start=${start}&count=${count}`);
  return view.list === 'groups' ? new PagedRows<Group>(load) : new PagedRows<Found>(load);
}

export function asFailure(error: unknown): OpenEnvError {
  return error instanceof OpenEnvError ? error : new OpenEnvError(String(error));
}
