import {
  ConnectionFailed,
  ConnectionLost,
  ConnectTimeout,
  errorOf,
  MessageTooLarge,
  OpenEnvError,
  ProtocolViolation,
  SlowReader,
  Unauthorized,
  UsageError,
  type ErrorFacts,
} from './errors.ts';
import { HttpServer } from './http.ts';
import { read, write } from './values.ts';

const SUBPROTOCOL = 'openenv.v2.json';
const SCHEMES: Record<string, string> = { http: 'ws', https: 'wss', ws: 'ws', wss: 'wss' };
const CLOSE_MS = 2000;
export const CONNECT_TIMEOUT_S = 10;

/** What this package uses of a WebSocket. */
export interface Socket {
  readonly protocol: string;
  send(text: string): void;
  close(code?: number): void;
  /** Ends it without a closing handshake; browsers have none. */
  terminate?(): void;
  addEventListener(type: 'open' | 'message' | 'error' | 'close', listener: (event: any) => void): void;
}

export type SocketClass = new (url: string, protocols: string[]) => Socket;

export interface ConnectionOptions {
  /** The API key of the server. */
  key?: string | null;
  /** The class of WebSockets; absent: that of the platform. Node 20 has none: pass that of the package `ws`. */
  WebSocket?: SocketClass;
  /** Seconds for a connection, up to the first message of the server; absent: 10. */
  connectTimeoutS?: number;
}

/** Where a session lives: the worker process, and the server behind a gateway. */
export interface Affinity {
  worker?: string | null;
  route?: string | null;
}

/** The first message of a server. */
export interface Hello {
  server: string;
  environment: string;
  limits: { max_message_bytes: number; max_sessions: number };
  heartbeat_s: number | null;
  resume_window_s: number;
  worker: string | null;
}

export type Message = Record<string, unknown>;

interface Waiting {
  answer(reply: Message): void;
  fail(error: OpenEnvError): void;
}

/** The WebSocket endpoint of a server.
 * @param url `http`, `https`, `ws` or `wss` URL, or `host:port`; with or without `/ws` at its end.
 * @throws UsageError Other text.
 */
export function endpointOf(url: string | URL): URL {
  const text = String(url);
  try {
    const parsed = new URL(text.includes('://') ? text : `http://${text}`);
    const scheme = SCHEMES[parsed.protocol.slice(0, -1)];
    if (scheme !== undefined) {
      const path = parsed.pathname.replace(/\/*$/, '');
      return new URL(`${scheme}://${parsed.host}${path.endsWith('/ws') ? path : `${path}/ws`}${parsed.search}`);
    }
  } catch {
    // No URL: the error below says so.
  }
  throw new UsageError(`${JSON.stringify(text)} is not the address of a server: write http://host:port or host:port`);
}

/** One WebSocket of protocol v2: requests, their replies, and events. */
export class Connection {
  /** Why it has ended; null while it lasts. */
  error: OpenEnvError | null = null;
  readonly affinity: Affinity;
  onEvent: (name: string, fields: Message) => void = () => undefined;
  onEnd: (error: OpenEnvError) => void = () => undefined;
  readonly #socket: Socket;
  readonly #waiting = new Map<number, Waiting>();
  readonly #beats: ReturnType<typeof setInterval> | undefined;
  #lastId = 0;
  #unanswered = false;

  private constructor(
    socket: Socket,
    readonly hello: Hello,
    route: string | null,
  ) {
    this.#socket = socket;
    this.affinity = { worker: hello.worker, route };
    if (hello.heartbeat_s) this.#beats = setInterval(() => this.#beat(hello.heartbeat_s as number), hello.heartbeat_s * 1000);
  }

  /**
   * Connects, and waits for the server's first message.
   * @throws ConnectTimeout No message within `connectTimeoutS`.
   * @throws Unauthorized The server needs a valid key.
   * @throws ConnectionFailed Nothing answers there, or no OpenEnv server.
   */
  static async open(endpoint: URL, options: ConnectionOptions, affinity: Affinity = {}, signal?: AbortSignal): Promise<Connection> {
    const limit = options.connectTimeoutS ?? CONNECT_TIMEOUT_S;
    const Class = options.WebSocket ?? (globalThis as { WebSocket?: SocketClass }).WebSocket;
    if (Class === undefined) throw new UsageError('this JavaScript has no WebSocket: use Node 22 or later, or pass { WebSocket } from the package ws');
    const address = new URL(endpoint);
    for (const [name, value] of Object.entries(affinity)) if (value) address.searchParams.set(name, value);
    const socket = new Class(address.href, [SUBPROTOCOL, ...keyOffer(options.key)]);
    const place = endpoint.href;
    let stop: () => void = () => undefined;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const opening = new Promise<Connection>((resolve, reject) => {
      let made: Connection | null = null;
      let route: string | null = null;
      const late = () => reject(new ConnectTimeout(`no connection to ${place} within ${limit} s (connectTimeoutS): is the server up?`));
      timer = setTimeout(late, limit * 1000);
      stop = () => reject(signal?.reason);
      signal?.addEventListener('abort', stop);
      // Browsers show no header of the handshake; the package ws does.
      (socket as { on?: (event: string, call: (answer: { headers: Record<string, string> }) => void) => void }).on?.(
        'upgrade',
        (answer) => (route = answer.headers['x-openenv-route'] ?? null),
      );
      socket.addEventListener('open', () => {
        if (socket.protocol !== SUBPROTOCOL) reject(new ProtocolViolation(`${place} does not speak protocol v2: update the server`));
      });
      socket.addEventListener('message', ({ data }) => {
        if (made !== null) return made.#receive(data);
        try {
          const hello = read(data) as Hello & { event: string };
          if (hello.event !== 'hello') throw new ProtocolViolation(`${place} did not begin with hello`);
          resolve((made = new Connection(socket, hello, route)));
        } catch (error) {
          reject(error instanceof OpenEnvError ? error : new ProtocolViolation(`the first message of ${place} cannot be read: ${String(error)}`));
        }
      });
      socket.addEventListener('error', () => undefined); // close follows, and says more
      socket.addEventListener('close', ({ code, reason }) => {
        if (made !== null) made.end(endOf(place, code, String(reason)));
        else void reasonOf(endpoint, options).then(reject);
      });
    });
    try {
      return await opening;
    } catch (error) {
      socket.close(1000);
      throw error;
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener('abort', stop);
    }
  }

  /**
   * Sends a request.
   * @returns Its number, for `cancel`.
   * @throws MessageTooLarge It is over the server's limit, and was not sent.
   * @throws UsageError It cannot be written.
   */
  request(op: string, fields: Message, waiting: Waiting): number {
    const id = this.#lastId + 1;
    const text = write({ id, op, ...fields });
    const most = this.hello.limits.max_message_bytes;
    if (text.length * 3 > most) {
      const size = new TextEncoder().encode(text).length;
      if (size > most) throw new MessageTooLarge(`a message of ${size} bytes is over the server's limit of ${most} (max_message_mb)`);
    }
    this.#lastId = id;
    this.#waiting.set(id, waiting);
    this.#socket.send(text);
    return id;
  }

  /** Sends a request, and returns its reply. */
  ask(op: string, fields: Message): Promise<Message> {
    return new Promise((answer, fail) => this.request(op, fields, { answer, fail }));
  }

  /** Sends a request without interest in its reply. */
  post(op: string, fields: Message): void {
    this.ask(op, fields).catch(() => undefined);
  }

  /** Ends the sessions and the connection, within two seconds. */
  async close(sessions: string[]): Promise<void> {
    await this.closeSessions(sessions);
    this.end(new ConnectionLost('this client was closed'));
  }

  /** Ends sessions, within two seconds. */
  closeSessions(sessions: string[]): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, CLOSE_MS);
      const over = () => (clearTimeout(timer), resolve());
      void Promise.allSettled(sessions.map((session) => this.ask('close', { session }))).then(over);
    });
  }

  /** Ends it: requests without a reply fail. */
  end(error: OpenEnvError): void {
    if (this.error !== null) return;
    this.error = error;
    clearInterval(this.#beats);
    this.#socket.close(1000);
    for (const waiting of this.#waiting.values()) waiting.fail(error);
    this.#waiting.clear();
    this.onEnd(error);
  }

  #receive(data: unknown): void {
    if (this.error !== null) return;
    let message: Message;
    let error: OpenEnvError | null;
    try {
      message = read(data as string) as Message;
      error = message.error === undefined ? null : errorOf(message.error as ErrorFacts);
    } catch (fault) {
      return this.end(new ProtocolViolation(`a message of the server cannot be read: ${String(fault)}`));
    }
    if (typeof message.event === 'string') return this.onEvent(message.event, message);
    if (message.id === null && error !== null) return this.end(error); // about a frame that the server could not read
    const waiting = this.#waiting.get(message.id as number);
    this.#waiting.delete(message.id as number);
    if (error === null) waiting?.answer(message);
    else waiting?.fail(error);
  }

  #beat(period: number): void {
    if (this.#unanswered) {
      this.#socket.terminate?.(); // no answer to a closing handshake will come either
      return this.end(new ConnectionLost(`the server did not answer a heartbeat within ${period} s`));
    }
    this.#unanswered = true;
    const over = () => void (this.#unanswered = false);
    this.ask('heartbeat', {}).then(over, over);
  }
}

/** A browser can send no header with a WebSocket: the key is an offered subprotocol. */
function keyOffer(key: string | null | undefined): string[] {
  if (key === null || key === undefined) return [];
  if (!/^[\x21-\x7e]+$/.test(key)) throw new Unauthorized('the key cannot be sent: it must be printable ASCII without spaces');
  return [`openenv.key.${btoa(key).replaceAll('+', '-').replaceAll('/', '_').replace(/=*$/, '')}`];
}

/** Why there is no connection: a WebSocket does not say, so the server is asked over HTTP. */
async function reasonOf(endpoint: URL, options: ConnectionOptions): Promise<OpenEnvError> {
  const place = endpoint.href;
  const server = new HttpServer(place.replace(/^ws/, 'http').replace(/\/ws(\?.*)?$/, ''), { key: options.key ?? null });
  try {
    await server.request('schema', { signal: AbortSignal.timeout((options.connectTimeoutS ?? CONNECT_TIMEOUT_S) * 1000) });
  } catch (error) {
    if (!(error instanceof OpenEnvError)) return new ConnectTimeout(`${place} does not answer: is the server up?`);
    if (error.status === 0) {
      const allowed = 'document' in globalThis ? ', and does it allow the origin of this page (OPENENV_ALLOWED_ORIGINS)' : '';
      return new ConnectionFailed(`cannot connect to ${place}: is the server up${allowed}?`);
    }
    if (error instanceof Unauthorized || error.retryable) return error;
    return new ConnectionFailed(`${place} does not speak WebSocket: is this the address of an OpenEnv server? ${error.message}`, { retryable: false });
  }
  return new ConnectionFailed(`${place} refused a WebSocket, but answers over HTTP: does a proxy between pass WebSockets?`);
}

function endOf(place: string, code: number, reason: string): OpenEnvError {
  const how = `the connection to ${place} has ended (code ${code}${reason && `: ${reason}`})`;
  if (code === 1008) return new SlowReader(how);
  return code === 1009 ? new MessageTooLarge(how) : new ConnectionLost(how);
}
