import { Failure } from '../api/failure';
import { ask, request } from '../api/request';
import type { Json, JsonObject } from '../api/json';
import type { Offer } from '../episode/transition';

/** What a reset or a step answers. */
export interface Outcome {
  observation: Json;
  reward: number | null;
  done: boolean;
  terminated?: boolean;
  truncated?: boolean;
  metadata?: JsonObject;
  session_id: string;
  episode_id: string | null;
  step_count: number | null;
  state: Json;
  html?: string | null;
  actions?: Offer[] | null;
  notes?: string[] | null;
  /** Of the call itself, on the server. */
  duration_s?: number;
}

interface Opened {
  session_id: string;
  token: string;
  idle_timeout_s: number | null;
}

/** The session of this page: opened by its first reset, closed when the page is left. */
export class Visit {
  private opened: Opened | null = null;
  private route: string | null = null;
  /** When the server last heard of it, in ms of `performance.now()`. */
  private usedAt = 0;

  get id(): string | null {
    return this.opened?.session_id ?? null;
  }

  /** Seconds until it ends by itself, if nothing is asked of it; null: it does not, or there is none. */
  get leaseS(): number | null {
    const limit = this.opened?.idle_timeout_s;
    return limit ? limit - (performance.now() - this.usedAt) / 1000 : null;
  }

  /** Seconds that it may be idle. */
  get limitS(): number | null {
    return this.opened?.idle_timeout_s ?? null;
  }

  async reset(given: JsonObject): Promise<Outcome> {
    if (this.opened === null) await this.open();
    try {
      return await this.call('web/reset', given);
    } catch (error) {
      if (!(error instanceof Failure && error.sessionGone)) throw error;
      await this.open(); // it was idle for too long, or its server is another one now
      return await this.call('web/reset', given);
    }
  }

  async step(action: Json): Promise<Outcome> {
    this.mustBeOpen();
    return this.call('web/step', { action });
  }

  /** The environment's state now; the lease begins anew. */
  async state(): Promise<Json> {
    this.mustBeOpen();
    const state = await ask<Json>('web/state', { headers: this.headers() });
    this.usedAt = performance.now();
    return state;
  }

  /** Ends it, also while the page goes away. Nobody waits for that. */
  close(): void {
    const { opened } = this;
    if (opened === null) return;
    const headers = this.headers();
    this.forget();
    request(`sessions/${encodeURIComponent(opened.session_id)}`, { method: 'DELETE', headers, keepalive: true }).catch(
      () => undefined, // it ends by itself, with its lease
    );
  }

  forget(): void {
    this.opened = null;
    this.route = null;
  }

  private async open(): Promise<void> {
    this.forget();
    const answer = await request('sessions', { method: 'POST' });
    this.route = answer.headers.get('X-OpenEnv-Route');
    this.opened = (await answer.json()) as Opened;
    this.usedAt = performance.now();
  }

  private async call(path: string, body: JsonObject): Promise<Outcome> {
    try {
      return await ask<Outcome>(path, { method: 'POST', body, headers: this.headers() });
    } finally {
      this.usedAt = performance.now();
    }
  }

  /** What names no session is for that of the cookie, which another tab may have opened. */
  private mustBeOpen(): void {
    if (this.opened === null) throw new Failure('ResetRequired', 'this page has no session', 400, 'client');
  }

  private headers(): Record<string, string> {
    if (this.opened === null) return {};
    const headers: Record<string, string> = {
      'X-Session-ID': this.opened.session_id,
      'X-Session-Token': this.opened.token,
    };
    if (this.route !== null) headers['X-OpenEnv-Route'] = this.route;
    return headers;
  }
}
