import { ResetRequired } from 'openenv';
import { HttpSession } from 'openenv/http';
import { isGone } from '../api/failure';
import { SERVER } from '../api/server';
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

/** The session of this page: opened by its first reset, closed when the page is left. */
export class Visit {
  private session: HttpSession<Outcome, Json> | null = null;
  /** When the server last heard of it, in ms of `performance.now()`. */
  private usedAt = 0;

  get id(): string | null {
    return this.session?.id ?? null;
  }

  /** Seconds until it ends by itself, if nothing is asked of it; null: it does not, or there is none. */
  get leaseS(): number | null {
    const limit = this.limitS;
    return limit ? limit - (performance.now() - this.usedAt) / 1000 : null;
  }

  /** Seconds that it may be idle. */
  get limitS(): number | null {
    return this.session?.idleTimeoutS ?? null;
  }

  async reset(given: JsonObject): Promise<Outcome> {
    const session = this.session ?? (await this.open());
    try {
      return await this.used(session.reset(given));
    } catch (error) {
      if (!isGone(error)) throw error;
      const fresh = await this.open(); // it was idle for too long, or its server is another one now
      return await this.used(fresh.reset(given));
    }
  }

  async step(action: Json): Promise<Outcome> {
    return this.used(this.opened.step(action));
  }

  /** The environment's state now; the lease begins anew. */
  async state(): Promise<Json> {
    return this.used(this.opened.state());
  }

  /** Ends it, also while the page goes away. Nobody waits for that. */
  close(): void {
    this.session?.close().catch(() => undefined); // it ends by itself, with its lease
    this.forget();
  }

  forget(): void {
    this.session = null;
  }

  private async open(): Promise<HttpSession<Outcome, Json>> {
    this.forget();
    this.session = await HttpSession.open(SERVER, 'web/');
    this.usedAt = performance.now();
    return this.session;
  }

  private async used<T>(call: Promise<T>): Promise<T> {
    try {
      return await call;
    } finally {
      this.usedAt = performance.now();
    }
  }

  /** What names no session is for that of the cookie, which another tab may have opened. */
  private get opened(): HttpSession<Outcome, Json> {
    if (this.session === null) throw new ResetRequired('this page has no session');
    return this.session;
  }
}
