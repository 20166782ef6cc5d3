import { ConnectionFailed, errorOf, InvalidAction, OpenEnvError, ProtocolViolation, Unauthorized, type ErrorFacts } from './errors.ts';

// A header cannot hold other characters.
const SENDABLE = /^[\x21-\x7e]+$/;

export interface HttpOptions {
  /** The API key, or a function that returns the present one; null for none. */
  key?: string | null | (() => string | null);
}

export interface HttpRequest {
  method?: 'GET' | 'POST' | 'DELETE';
  /** A value of JSON. */
  body?: unknown;
  headers?: Record<string, string>;
  /** The request outlives its page. */
  keepalive?: boolean;
  signal?: AbortSignal;
}

/** The routes of a server over HTTP. */
export class HttpServer {
  readonly url: string;
  readonly #options: HttpOptions;

  /** @param url Its address, with the prefix of a proxy if there is one. */
  constructor(url: string | URL, options: HttpOptions = {}) {
    this.url = String(url).replace(/\/*$/, '/');
    this.#options = options;
  }

  /**
   * Sends one request. It has no time limit of its own: pass `AbortSignal.timeout(ms)` as `signal`.
   * @param path Route below the address, without a slash at its beginning.
   * @throws OpenEnvError The server reported an error; `ConnectionFailed` if there was no answer.
   */
  async request(path: string, { body, headers, ...wanted }: HttpRequest = {}): Promise<Response> {
    const answer = await this.#fetch(path, {
      ...wanted,
      headers: { ...headers, ...this.#key(), ...(body === undefined ? {} : { 'Content-Type': 'application/json' }) },
      ...(body === undefined ? {} : { body: jsonOf(body) }),
    });
    if (!answer.ok) throw await refusalOf(answer);
    return answer;
  }

  /** As `request`, for an answer in JSON. */
  async ask<T>(path: string, wanted: HttpRequest = {}): Promise<T> {
    const answer = await this.request(path, wanted);
    try {
      return (await answer.json()) as T;
    } catch {
      throw new ProtocolViolation(`the answer of ${path} is not JSON: this is not an OpenEnv server, or the answer is incomplete`, {}, answer.status);
    }
  }

  async #fetch(path: string, init: RequestInit): Promise<Response> {
    try {
      // A Space asks for its own cookies.
      return await fetch(new URL(path, this.url), { ...init, credentials: 'same-origin', cache: 'no-store' });
    } catch (error) {
      if (init.signal?.aborted) throw init.signal.reason;
      throw new ConnectionFailed(`${this.url} does not answer: is the server up?`, {}, 0);
    }
  }

  #key(): Record<string, string> {
    const { key } = this.#options;
    const held = typeof key === 'function' ? key() : key;
    if (held === null || held === undefined) return {};
    if (!SENDABLE.test(held)) throw new Unauthorized('the key cannot be sent: it must be printable ASCII without spaces', {}, 401);
    return { Authorization: `Bearer ${held}` };
  }
}

/** One session over HTTP, for networks without WebSocket. A call that is repeated executes again. */
export class HttpSession<Result = unknown, State = unknown> {
  private constructor(
    readonly server: HttpServer,
    readonly id: string,
    /** Seconds without a request after which the server ends it; null for no limit. */
    readonly idleTimeoutS: number | null,
    private readonly headers: Record<string, string>,
    private readonly prefix: string,
  ) {}

  /**
   * Opens a session: a new environment, and a slot of the server.
   * @param prefix What the routes of reset, step and state begin with, such as `web/`.
   */
  static async open<Result, State>(server: HttpServer, prefix = '', signal?: AbortSignal): Promise<HttpSession<Result, State>> {
    const answer = await server.request('sessions', { method: 'POST', ...(signal && { signal }) });
    const opened = (await answer.json()) as { session_id: string; token: string; idle_timeout_s: number | null };
    const route = answer.headers.get('X-OpenEnv-Route');
    const headers = { 'X-Session-ID': opened.session_id, 'X-Session-Token': opened.token, ...(route !== null && { 'X-OpenEnv-Route': route }) };
    return new HttpSession(server, opened.session_id, opened.idle_timeout_s, headers, prefix);
  }

  /** Starts an episode. */
  reset(kwargs: object = {}, signal?: AbortSignal): Promise<Result> {
    return this.#ask('reset', { method: 'POST', body: kwargs, ...(signal && { signal }) });
  }

  /** Executes one step. */
  step(action: unknown, signal?: AbortSignal): Promise<Result> {
    return this.#ask('step', { method: 'POST', body: { action }, ...(signal && { signal }) });
  }

  /** Reads the environment's state; the idle time begins again. */
  state(signal?: AbortSignal): Promise<State> {
    return this.#ask('state', signal && { signal });
  }

  /** Ends the session, also while its page is left. */
  async close(): Promise<void> {
    await this.server.request(`sessions/${encodeURIComponent(this.id)}`, { method: 'DELETE', headers: this.headers, keepalive: true });
  }

  #ask<T>(route: string, wanted: HttpRequest = {}): Promise<T> {
    return this.server.ask<T>(this.prefix + route, { ...wanted, headers: this.headers });
  }
}

function jsonOf(value: unknown): string {
  try {
    return JSON.stringify(value);
  } catch (error) {
    throw new InvalidAction(`the request cannot be written as JSON: ${String(error)}`, {}, 422);
  }
}

/** The error of an answer that is not a success. @internal */
export async function refusalOf(answer: Response): Promise<OpenEnvError> {
  const body: unknown = await answer.json().catch(() => null);
  const outer = isRecord(body) ? body : {};
  const facts = isRecord(outer.error) ? outer.error : outer;
  const detail = facts.detail ?? outer.detail ?? facts.errors;
  const wait = Number(answer.headers.get('Retry-After') ?? Number.NaN);
  const said = { ...(typeof detail === 'string' && { message: detail }), ...facts, ...(wait > 0 && { retry_after_s: wait }), ...(Array.isArray(detail) && { data: { errors: detail } }) };
  const gateway = answer.status === 502 || answer.status === 503;
  if (typeof facts.error !== 'string') {
    const message = `the server answered ${answer.status}${typeof detail === 'string' ? `: ${detail}` : ''}`;
    return gateway ? new ConnectionFailed(message, {}, answer.status) : new OpenEnvError(message, {}, answer.status);
  }
  return errorOf(said as ErrorFacts, answer.status);
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
