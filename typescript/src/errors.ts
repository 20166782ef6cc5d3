/** Who must act: the caller, the environment's author, or the operator of the machines. */
export type Blame = 'client' | 'environment' | 'infrastructure';

/** One invalid place of an action or a request. */
export interface Fault {
  loc: (string | number)[];
  msg: string;
  type?: string;
}

/** An error as servers send it. */
export interface ErrorFacts {
  message?: string;
  code?: string;
  error?: string;
  blame?: Blame;
  retryable?: boolean;
  retry_after_s?: number | null;
  data?: Record<string, unknown>;
}

/** Base of every error of this package. Decide by class, then by `blame` and `retryable`. */
export class OpenEnvError extends Error {
  static readonly code: string = 'SESSION_ERROR';
  static readonly blame: Blame = 'infrastructure';
  static readonly retryable: boolean = false;

  /** Each class declares it, so that TypeScript tells classes with the same members apart. */
  protected declare readonly kind: unknown;
  /** The code on the wire, such as `CAPACITY_REACHED`. */
  readonly code: string;
  readonly blame: Blame;
  /** Whether the same call may succeed later without a change. */
  readonly retryable: boolean;
  /** Seconds to wait before a retry; null if unknown. */
  readonly retryAfterS: number | null;
  /** Further facts, such as `active_sessions`. */
  readonly data: Record<string, unknown>;

  /**
   * @param message The cause and the next step.
   * @param facts What a server said; the rest is that of the class.
   * @param status Status of the HTTP answer that reported it; null for none.
   */
  constructor(
    message: string,
    facts: ErrorFacts = {},
    readonly status: number | null = null,
  ) {
    super(message);
    const own = new.target;
    this.code = facts.code ?? own.code;
    this.blame = facts.blame ?? own.blame;
    this.retryable = facts.retryable ?? own.retryable;
    this.retryAfterS = facts.retry_after_s ?? null;
    this.data = facts.data ?? {};
    // A later server may know a kind of error that this client does not.
    if (facts.error !== undefined && facts.error !== this.name) this.name = facts.error;
  }

  /** The invalid places of an action or a request; empty for other errors. */
  get faults(): Fault[] {
    const { errors } = this.data;
    if (!Array.isArray(errors)) return [];
    return errors.filter((fault) => typeof fault === 'object' && fault !== null).map((fault) => ({
      ...fault,
      loc: Array.isArray(fault.loc) ? fault.loc : [],
      msg: typeof fault.msg === 'string' ? fault.msg : 'invalid',
    }));
  }
}

/** The caller's mistake; the same call will fail again. */
export class UsageError extends OpenEnvError {
  static override readonly blame: Blame = 'client';
  protected declare readonly kind: unknown;
}
/** An action or message that does not validate: see `faults`. */
export class InvalidAction extends UsageError {
  static override readonly code = 'VALIDATION_ERROR';
  protected declare readonly kind: unknown;
}
/** A frame that cannot be read. */
export class InvalidMessage extends UsageError {
  static override readonly code = 'INVALID_JSON';
  protected declare readonly kind: unknown;
}
/** A request of an unknown kind. */
export class UnknownMessage extends UsageError {
  static override readonly code = 'UNKNOWN_TYPE';
  protected declare readonly kind: unknown;
}
/** No session of that id on this server. */
export class UnknownSession extends UsageError {
  protected declare readonly kind: unknown;
}
/** A step before the first reset, or after the end of the episode. */
export class ResetRequired extends UsageError {
  static override readonly code = 'EXECUTION_ERROR';
  protected declare readonly kind: unknown;
}
/** A call number that is neither the last one nor the next one of its session. */
export class SequenceError extends UsageError {
  protected declare readonly kind: unknown;
}
/** No key, a wrong key, or a key of a scope that does not cover the call. */
export class Unauthorized extends UsageError {
  protected declare readonly kind: unknown;
}
/** A known key with a scope that does not cover the call. */
export class Forbidden extends Unauthorized {
  static override readonly code: string = 'EXECUTION_ERROR';
  protected declare readonly kind: unknown;
}
/** A request that a server in production mode accepts only with a key of scope control. */
export class Hidden extends Forbidden {
  protected declare readonly kind: unknown;
}
/** Too many wrong keys came from this address. */
export class TooManyFailures extends Unauthorized {
  protected declare readonly kind: unknown;
}
/** A message over the limit. */
export class MessageTooLarge extends UsageError {
  protected declare readonly kind: unknown;
}
/** The call was cancelled, and did not run or did not finish. */
export class Cancelled extends UsageError {
  static override readonly code = 'EXECUTION_ERROR';
  protected declare readonly kind: unknown;
}
/** The client does not read its replies. */
export class SlowReader extends UsageError {
  protected declare readonly kind: unknown;
}

/** No capacity now; try again later. */
export class CapacityError extends OpenEnvError {
  static override readonly code: string = 'CAPACITY_REACHED';
  static override readonly retryable = true;
  protected declare readonly kind: unknown;
}
/** Every session slot is taken. */
export class ServerFull extends CapacityError {
  protected declare readonly kind: unknown;
}
/** No slot came free in time. */
export class QueueTimeout extends ServerFull {
  protected declare readonly kind: unknown;
}
/** The server is stopping and opens no new session. */
export class Draining extends CapacityError {
  protected declare readonly kind: unknown;
}
/** More calls wait for their turn than a session or connection may have. */
export class TooManyCalls extends CapacityError {
  static override readonly code = 'EXECUTION_ERROR';
  protected declare readonly kind: unknown;
}

/** The environment's own code failed. */
export class EnvironmentFailed extends OpenEnvError {
  static override readonly code: string = 'EXECUTION_ERROR';
  static override readonly blame: Blame = 'environment';
  protected declare readonly kind: unknown;
}
/** A session could not be made. */
export class SessionCreationError extends EnvironmentFailed {
  protected declare readonly kind: unknown;
}
/** The environment's constructor raised. */
export class FactoryFailed extends SessionCreationError {
  static override readonly code = 'FACTORY_ERROR';
  protected declare readonly kind: unknown;
}
/** `reset`, `step` or `state` raised, or returned a value that cannot be sent. */
export class StepFailed extends EnvironmentFailed {
  protected declare readonly kind: unknown;
}
/** A rubric gave an invalid score, so the step has no reward. */
export class RubricFailed extends StepFailed {
  protected declare readonly kind: unknown;
}
/** A judge gave no score. */
export class JudgeFailed extends RubricFailed {
  static override readonly blame = 'infrastructure';
  protected declare readonly kind: unknown;
}
/** An agent program did nothing that can be scored. */
export class AgentFailed extends EnvironmentFailed {
  protected declare readonly kind: unknown;
}
/** The state of an environment cannot be copied. */
export class NotForkable extends EnvironmentFailed {
  protected declare readonly kind: unknown;
}
/** A tool gave no result; the episode continues. */
export class ToolFailed extends EnvironmentFailed {
  protected declare readonly kind: unknown;
}
/** A call did not end within its deadline; it may still take effect. */
export class StepTimeout extends EnvironmentFailed {
  protected declare readonly kind: unknown;
}
/** The process of an environment ended; `reset()` starts a new one. */
export class EnvironmentCrashed extends EnvironmentFailed {
  protected declare readonly kind: unknown;
}

/** The network between client and server failed. */
export class ConnectionFailed extends OpenEnvError {
  static override readonly retryable: boolean = true;
  protected declare readonly kind: unknown;
}
/** No connection in time. */
export class ConnectTimeout extends ConnectionFailed {
  protected declare readonly kind: unknown;
}
/** The connection ended while a reply was awaited; the call may or may not have been executed. */
export class ConnectionLost extends ConnectionFailed {
  protected declare readonly kind: unknown;
}
/** The other side sent a message that the protocol does not allow. */
export class ProtocolViolation extends ConnectionFailed {
  static override readonly retryable = false;
  protected declare readonly kind: unknown;
}
/** The session is gone, and its episode with it; `reset()` starts a new one. */
export class SessionLost extends ConnectionFailed {
  static override readonly retryable = false;
  protected declare readonly kind: unknown;
}
/** A provider failed: the engine, cluster or service that runs servers. */
export class ProviderFailed extends OpenEnvError {
  protected declare readonly kind: unknown;
}

/** The classes by their names on the wire. */
export const ERRORS: Readonly<Record<string, typeof OpenEnvError>> = {
  OpenEnvError,
  UsageError,
  InvalidAction,
  InvalidMessage,
  UnknownMessage,
  UnknownSession,
  ResetRequired,
  SequenceError,
  Unauthorized,
  Forbidden,
  Hidden,
  TooManyFailures,
  MessageTooLarge,
  Cancelled,
  SlowReader,
  CapacityError,
  ServerFull,
  QueueTimeout,
  Draining,
  TooManyCalls,
  EnvironmentFailed,
  SessionCreationError,
  FactoryFailed,
  StepFailed,
  RubricFailed,
  JudgeFailed,
  AgentFailed,
  NotForkable,
  ToolFailed,
  StepTimeout,
  EnvironmentCrashed,
  ConnectionFailed,
  ConnectTimeout,
  ConnectionLost,
  ProtocolViolation,
  SessionLost,
  ProviderFailed,
};
// A program that was minified has other names for its classes.
for (const [name, kind] of Object.entries(ERRORS)) Object.defineProperty(kind.prototype, 'name', { value: name, writable: true });

const BY_BLAME: Record<Blame, typeof OpenEnvError> = { client: UsageError, environment: EnvironmentFailed, infrastructure: OpenEnvError };

/** The error for the facts that a server sent: of the named class, or of one for its blame. */
export function errorOf(facts: ErrorFacts, status: number | null = null): OpenEnvError {
  const named = facts.error !== undefined && Object.hasOwn(ERRORS, facts.error) ? ERRORS[facts.error] : undefined;
  const kind = named ?? BY_BLAME[facts.blame ?? 'infrastructure'] ?? OpenEnvError;
  return new kind(facts.message ?? 'the server reported an error', facts, status);
}
