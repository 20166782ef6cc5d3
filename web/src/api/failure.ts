import { isRecord, type Json } from './json';

/** A fault of one value, as validation tells it. */
export interface Fault {
  loc: (string | number)[];
  msg: string;
}

/** What went wrong with a request, in the server's words where it said any. */
export class Failure extends Error {
  constructor(
    readonly kind: string,
    message: string,
    readonly status: number,
    readonly blame: string | null = null,
    readonly faults: Fault[] = [],
    readonly retryAfterS: number | null = null,
  ) {
    super(message);
  }

  /** Nobody answered for the server: it is down, restarting, or the network is. */
  get away(): boolean {
    return this.status === 0 || this.status === 502 || (this.status === 503 && this.kind === 'Answer');
  }

  get locked(): boolean {
    return this.status === 401;
  }

  /** The session that the request named is no more. */
  get sessionGone(): boolean {
    return ['UnknownSession', 'SessionLost', 'SessionExpired'].includes(this.kind);
  }
}

/** What an answer that is no success says. */
export function failureOf(status: number, body: Json, retryAfter: string | null): Failure {
  const outer = isRecord(body) ? body : {};
  const facts = isRecord(outer.error) ? outer.error : outer;
  const kind = text(facts.error) ?? text(facts.type) ?? text(outer.error) ?? 'Answer';
  const detail = facts.detail ?? outer.detail ?? facts.errors;
  const message = text(facts.message) ?? text(detail) ?? `the server answered ${status}`;
  const seconds = Number(retryAfter);
  return new Failure(kind, message, status, text(facts.blame), faultsOf(detail), retryAfter && seconds > 0 ? seconds : null);
}

function text(value: unknown): string | null {
  return typeof value === 'string' ? value : null;
}

function faultsOf(detail: Json | undefined): Fault[] {
  if (!Array.isArray(detail)) return [];
  return detail.filter(isRecord).map((fault) => ({
    loc: Array.isArray(fault.loc) ? (fault.loc as (string | number)[]) : [],
    msg: text(fault.msg) ?? 'not valid',
  }));
}
