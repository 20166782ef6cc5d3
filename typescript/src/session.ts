/// <reference lib="esnext.disposable" preserve="true" />
import type { Client } from './client.ts';
import type { Connection, Message } from './connection.ts';
import {
  CapacityError,
  ConnectionLost,
  InvalidAction,
  OpenEnvError,
  SequenceError,
  SessionLost,
  StepTimeout,
  TooManyCalls,
  Unauthorized,
  UnknownMessage,
  UnknownSession,
  UsageError,
} from './errors.ts';
import { write, Written } from './values.ts';

/** The types of an environment; `openenv contract types` writes one. */
export interface AnyContract {
  action: unknown;
  observation: object;
  state: object;
}

export interface UntypedContract extends AnyContract {
  observation: Record<string, unknown>;
  state: Record<string, unknown>;
}

/** The result of a reset or a step. */
export interface StepResult<Observation = Record<string, unknown>> {
  observation: Observation;
  /** null: no reward, which differs from 0. */
  reward: number | boolean | null;
  /** Whether the episode is over, for any reason. */
  done: boolean;
  /** Whether the episode reached its own end. */
  terminated: boolean;
  /** Whether the episode was cut short. */
  truncated: boolean;
  metadata: Record<string, unknown>;
}

/** Arguments of the environment's reset. */
export interface ResetArguments {
  seed?: number | null;
  episode_id?: string | null;
  [name: string]: unknown;
}

export interface CallOptions {
  /** Seconds for the call, its waiting included; absent: that of the client. */
  timeoutS?: number;
  /** Ends the call: the server does not begin it, or stops it if it can. */
  signal?: AbortSignal;
}

// The server's own StepTimeout has this long to arrive.
const LATE_MS = 250;
// Of a timer.
const LONGEST_MS = 2 ** 31 - 1;
const SHORTEST_S = 0.001;
/** The longest deadline of the protocol, in seconds. @internal */
export const LONGEST_S = 86_400;

interface Call {
  op: string;
  fields: Message;
  /** Number in its session; 0 before it has one. */
  seq: number;
  counted: boolean;
  /** By `performance.now()`. */
  due: number;
  /** Number of the request that sent it last. */
  request: number | null;
  /** Its caller has a result, or has left. */
  settled: boolean;
  resolve(reply: Message): void;
  reject(error: unknown): void;
}

/** One environment on a server. Its calls execute one after another, each once. */
export class Session<C extends AnyContract = UntypedContract> {
  id = secret();
  /** What else ends with it. @internal */
  onClose: () => Promise<void> = async () => undefined;
  readonly #client: Client;
  #token = secret();
  #seq = 0;
  /** Whether the server knows it, or may know it. */
  #known: 'no' | 'perhaps' | 'yes' = 'no';
  #calls: Call[] = [];
  #underway = false;
  #lost: Error | null = null;
  #closed = false;

  /** @internal */
  constructor(client: Client) {
    this.#client = client;
  }

  /**
   * Starts an episode; in a new session, if this one was lost.
   * @throws SessionLost The session ended during the call. StepFailed: the environment raised.
   */
  async reset(kwargs: ResetArguments = {}, options: CallOptions = {}): Promise<StepResult<C['observation']>> {
    if (this.#lost !== null && !this.#closed) this.open(options).catch(() => undefined); // the reset fails with its error
    return resultOf(await this.#call('reset', { kwargs }, options));
  }

  /**
   * Executes one step.
   * @throws InvalidAction, ResetRequired, StepFailed, StepTimeout, SessionLost: as their names say.
   */
  async step(action: C['action'], options: CallOptions = {}): Promise<StepResult<C['observation']>> {
    return resultOf(await this.#call('step', { action }, options));
  }

  /** Reads the environment's state. */
  async state(options: CallOptions = {}): Promise<C['state']> {
    return (await this.#call('state', {}, options)).state as C['state'];
  }

  /** Ends the session. Calls without a reply fail. */
  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    const { connection } = this.#client;
    const open = this.#lost === null;
    this.lose(new UsageError('this session was closed'));
    if (open) await connection?.closeSessions([this.id]);
    await this.onClose();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Opens it, or opens a new one in its place. @internal */
  async open(options: CallOptions): Promise<void> {
    this.#client.add(this);
    const { waitS } = this.#client.options;
    this.id = secret();
    this.#token = secret();
    this.#seq = 0;
    this.#known = 'no';
    this.#lost = null;
    const timeoutS = (options.timeoutS ?? this.#client.options.timeoutS ?? 60) + (waitS ?? 0);
    const fields = { token: this.#token, ...(waitS !== undefined && { wait_s: waitS }) };
    await this.#call('open', fields, { ...options, timeoutS });
  }

  /** Finds it on another connection. Returns why it is gone; null if it is there. @internal */
  async findOn(connection: Connection): Promise<OpenEnvError | null> {
    if (this.#known === 'no') return null;
    try {
      await connection.ask('attach', { session: this.id, token: this.#token });
      return null;
    } catch (error) {
      if (connection.error !== null || error instanceof CapacityError || !(error instanceof OpenEnvError)) throw error;
      if (error instanceof UnknownSession && this.#known === 'perhaps') return null; // its `open` did not arrive
      return new SessionLost(`the session is gone, call reset() for a new one: ${error.message}`);
    }
  }

  /** Goes on with a connection that has it, or begins. @internal */
  resume(connection: Connection): void {
    const call = this.#calls[0];
    if (this.#underway && call !== undefined) {
      this.#send(connection, call);
      if (call.settled && call.request !== null) connection.post('cancel', { target: call.request });
    } else this.#advance();
  }

  /** Ends it: calls without a reply fail. @internal */
  lose(error: Error): void {
    if (this.#lost !== null) return;
    this.#lost = error;
    this.#client.remove(this);
    this.#underway = false;
    for (const call of this.#calls.splice(0)) call.reject(error);
  }

  #call(op: string, fields: Message, options: CallOptions): Promise<Message> {
    const { signal } = options;
    const timeoutS = options.timeoutS ?? this.#client.options.timeoutS ?? 60;
    return new Promise((resolve, reject) => {
      if (this.#lost !== null) return reject(this.#lost);
      if (signal?.aborted) return reject(signal.reason);
      if (!(timeoutS > 0)) throw new UsageError(`timeoutS must be a positive number of seconds, got ${timeoutS}`);
      // Now, as its caller may change the action before it is sent, or sent again.
      const written = Object.fromEntries(Object.entries(fields).map(([name, value]) => [name, new Written(write(value))]));
      const settle = (act: () => void) => {
        if (call.settled) return;
        call.settled = true;
        clearTimeout(timer);
        signal?.removeEventListener('abort', abort);
        act();
      };
      const call: Call = {
        op,
        fields: written,
        seq: 0,
        counted: op === 'reset' || op === 'step',
        due: performance.now() + timeoutS * 1000,
        request: null,
        settled: false,
        resolve: (reply) => settle(() => resolve(reply)),
        reject: (error) => settle(() => reject(error)),
      };
      const abort = () => this.#giveUp(call, signal?.reason);
      const timer = setTimeout(() => this.#giveUp(call, this.#late(op, timeoutS)), Math.min(timeoutS * 1000 + LATE_MS, LONGEST_MS));
      signal?.addEventListener('abort', abort);
      this.#calls.push(call);
      this.#advance();
    });
  }

  #late(op: string, timeoutS: number): OpenEnvError {
    const message = `no reply to ${op} within ${timeoutS} s (timeoutS)`;
    return this.#client.connection === null ? new ConnectionLost(`${message}: there is no connection`) : new StepTimeout(message);
  }

  /** Its caller has left: has the server stop the call. */
  #giveUp(call: Call, error: unknown): void {
    call.reject(error);
    const { connection } = this.#client;
    if (call.op === 'open') {
      connection?.post('close', { session: this.id });
      this.lose(error as Error);
    } else if (this.#calls[0] === call && call.request !== null) connection?.post('cancel', { target: call.request });
  }

  /** Sends the next call, if none is underway. */
  #advance(): void {
    const { connection } = this.#client;
    while (connection !== null && connection.error === null && !this.#underway && this.#calls[0] !== undefined) {
      const call = this.#calls[0];
      if (call.settled) {
        this.#calls.shift();
        continue;
      }
      if (call.counted) call.seq = ++this.#seq;
      this.#underway = true;
      this.#send(connection, call);
    }
  }

  #send(connection: Connection, call: Call): void {
    const left = Math.min(LONGEST_S, Math.max(SHORTEST_S, (call.due - performance.now()) / 1000));
    const fields = { session: this.id, ...(call.counted && { seq: call.seq, deadline_s: left }), ...call.fields };
    if (call.op === 'open' && this.#known === 'no') this.#known = 'perhaps';
    const answered = (error: OpenEnvError | null, reply: Message) => {
      if (this.#calls[0] === call && (error === null || error !== connection.error)) this.#answered(connection, call, error, reply);
    };
    try {
      call.request = connection.request(call.op, fields, { answer: (reply) => answered(null, reply), fail: (error) => answered(error, {}) });
    } catch (error) {
      this.#over(call, () => call.reject(error)); // it was not sent
    }
  }

  #answered(connection: Connection, call: Call, error: OpenEnvError | null, reply: Message): void {
    if (error === null) {
      this.#known = 'yes';
      this.#over(call, () => call.resolve(reply), true);
    } else if (call.op === 'open' || error instanceof SessionLost) {
      this.lose(error);
    } else if (error instanceof UnknownSession || error instanceof SequenceError) {
      connection.post('close', { session: this.id }); // it is unknown which calls were executed
      this.lose(new SessionLost(`the session is gone, call reset() for a new one: ${error.message}`));
    } else {
      this.#over(call, () => call.reject(error), !isNotTaken(error));
    }
  }

  /** A call has its reply, or could not be sent. */
  #over(call: Call, settle: () => void, taken = false): void {
    if (call.counted && !taken) this.#seq -= 1;
    this.#calls.shift();
    this.#underway = false;
    settle();
    this.#advance();
  }
}

/** Whether a server did not take a call, which then has not used its number. */
function isNotTaken(error: OpenEnvError): boolean {
  const malformed = error instanceof InvalidAction && error.faults[0]?.type === 'message';
  return malformed || error instanceof Unauthorized || error instanceof UnknownMessage || error instanceof TooManyCalls;
}

function resultOf(reply: Message): StepResult<never> {
  const { observation, reward, done, terminated, truncated, metadata } = reply as unknown as StepResult<never>;
  return { observation, reward, done, terminated, truncated, metadata: metadata ?? {} };
}

/** A name that is unique and hard to guess. */
function secret(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}
