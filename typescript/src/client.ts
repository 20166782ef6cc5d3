/// <reference lib="esnext.disposable" preserve="true" />
import { Connection, CONNECT_TIMEOUT_S, endpointOf, type Affinity, type ConnectionOptions } from './connection.ts';
import { ConnectionFailed, ConnectionLost, ConnectTimeout, errorOf, OpenEnvError, SessionLost, TooManyFailures, UsageError, type ErrorFacts } from './errors.ts';
import { LONGEST_S, Session, type AnyContract, type CallOptions, type UntypedContract } from './session.ts';

export interface ClientOptions extends ConnectionOptions {
  /** Seconds for one call, its waiting included; absent: 60. */
  timeoutS?: number;
  /** Seconds that a new session may wait for a free slot; absent: as the server is set. */
  waitS?: number;
  /** Ends the opening of a session. */
  signal?: AbortSignal;
}

const FIRST_PAUSE_MS = 50;
const LONGEST_PAUSE_MS = 2000;

/**
 * Opens one session of the environment at a URL; its connection ends with it.
 * @throws ServerFull, Unauthorized, ConnectTimeout, ConnectionFailed, UsageError: as their names say.
 */
export async function connect<C extends AnyContract = UntypedContract>(url: string | URL, options: ClientOptions = {}): Promise<Session<C>> {
  const client = new Client(url, options);
  try {
    const session = await client.open<C>();
    session.onClose = () => client.close();
    return session;
  } catch (error) {
    await client.close();
    throw error;
  }
}

/** Sessions of one server, over one connection. When that is lost, another one resumes them. */
export class Client {
  readonly options: ClientOptions;
  readonly #endpoint: URL;
  readonly #sessions = new Set<Session<AnyContract>>();
  readonly #closing = new AbortController();
  #connection: Connection | null = null;
  #affinity: Affinity = {};
  #connecting = false;

  /** @param url Address of the server; it is not contacted before the first session. */
  constructor(url: string | URL, options: ClientOptions = {}) {
    this.#endpoint = endpointOf(url);
    this.options = options;
  }

  /** The connection, if there is one now. @internal */
  get connection(): Connection | null {
    return this.#connection;
  }

  /** Opens a session. Sessions run side by side: `await Promise.all(sessions.map((each) => each.step(action)))`. */
  async open<C extends AnyContract = UntypedContract>(options: CallOptions = this.options): Promise<Session<C>> {
    const session = new Session<C>(this);
    await session.open(options);
    return session;
  }

  /** Ends all sessions and the connection, within two seconds. */
  async close(): Promise<void> {
    if (this.#closing.signal.aborted) return;
    const ids = [...this.#sessions].map((session) => session.id);
    this.#closing.abort();
    await this.#connection?.close(ids);
    this.#lose(new ConnectionLost('this client was closed'));
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Gives a session a connection, now or soon. @internal */
  add(session: Session<AnyContract>): void {
    if (this.#closing.signal.aborted) throw new UsageError('this client was closed: make another one');
    this.#sessions.add(session);
    if (this.#connection === null && !this.#connecting) {
      this.#affinity = {};
      void this.#connect(0);
    }
  }

  /** @internal */
  remove(session: Session<AnyContract>): void {
    this.#sessions.delete(session);
  }

  /** Connects and attaches the sessions, again and again for `windowS` seconds. */
  async #connect(windowS: number, cause?: OpenEnvError): Promise<void> {
    this.#connecting = true;
    const { signal } = this.#closing;
    const due = performance.now() + windowS * 1000;
    let pause = FIRST_PAUSE_MS;
    let last: unknown;
    if (cause) await rest(jittered(pause), signal);
    while (!signal.aborted) {
      try {
        const left = cause === undefined ? Number.POSITIVE_INFINITY : (due - performance.now()) / 1000;
        return await this.#establish(Math.min(left, this.options.connectTimeoutS ?? CONNECT_TIMEOUT_S), signal);
      } catch (error) {
        last = error;
        const wait = Math.max(jittered(pause), ((error as OpenEnvError).retryAfterS ?? 0) * 1000);
        const transient = error instanceof TooManyFailures || (error instanceof OpenEnvError && error.retryable);
        if (!transient || performance.now() + wait > due) break;
        await rest(wait, signal);
        pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
      }
    }
    this.#connecting = false;
    if (cause === undefined) return this.#lose(last as Error);
    const message = `the session is gone, call reset() for a new one: ${cause.message}, and no new connection could be made within ${windowS} s`;
    this.#lose(new SessionLost(`${message} (resume_window_s of the server)${last === undefined ? '' : `: ${String(last)}`}`));
  }

  async #establish(connectTimeoutS: number, signal: AbortSignal): Promise<void> {
    const connection = await Connection.open(this.#endpoint, { ...this.options, connectTimeoutS }, this.#affinity, signal);
    const silence = new ConnectTimeout(`no answer to attach within ${connectTimeoutS} s (connectTimeoutS)`);
    const timer = setTimeout(() => connection.end(silence), connectTimeoutS * 1000);
    const stop = () => connection.end(new ConnectionLost('this client was closed'));
    signal.addEventListener('abort', stop);
    try {
      connection.onEvent = (name, fields) => {
        if (name !== 'session_lost') return;
        for (const session of this.#sessions) if (session.id === fields.session) session.lose(errorOf(fields.error as ErrorFacts));
      };
      const gone = new Map<string, OpenEnvError | null>();
      await Promise.all([...this.#sessions].map(async (session) => gone.set(session.id, await session.findOn(connection))));
      if (signal.aborted) stop();
      if (connection.error !== null) throw new ConnectionLost(connection.error.message);
      connection.onEnd = (error) => this.#onEnd(connection, error);
      this.#affinity = connection.affinity;
      this.#connection = connection;
      this.#connecting = false;
      for (const session of [...this.#sessions]) {
        const error = gone.get(session.id); // undefined for a session that has come meanwhile
        gone.delete(session.id);
        if (error) session.lose(error);
        else session.resume(connection);
      }
      for (const session of gone.keys()) connection.post('close', { session }); // closed meanwhile
    } catch (error) {
      connection.end(new ConnectionLost('given up'));
      throw error;
    } finally {
      clearTimeout(timer);
      signal.removeEventListener('abort', stop);
    }
  }

  #onEnd(connection: Connection, error: OpenEnvError): void {
    this.#connection = null;
    const windowS = connection.hello.resume_window_s;
    if (this.#closing.signal.aborted || this.#sessions.size === 0) return;
    if (error instanceof ConnectionFailed && error.retryable && windowS > 0) void this.#connect(Math.min(windowS, LONGEST_S), error);
    else this.#lose(new SessionLost(`the session is gone, call reset() for a new one: ${error.message}`));
  }

  #lose(error: Error): void {
    for (const session of [...this.#sessions]) session.lose(error);
  }
}

/** A random part of a pause: clients that were disconnected together come back at different times. */
function jittered(longestMs: number): number {
  return longestMs * (0.5 + Math.random() / 2);
}

function rest(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const over = () => {
      clearTimeout(timer);
      signal.removeEventListener('abort', over);
      resolve();
    };
    const timer = setTimeout(over, ms);
    signal.addEventListener('abort', over);
  });
}
