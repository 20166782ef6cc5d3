import { ConnectionFailed, OpenEnvError, SessionLost, UnknownSession } from 'openenv';

/** Whether no server answered: it is down, restarting, or the network is. */
export function isAway(error: unknown): boolean {
  if (!(error instanceof OpenEnvError)) return false;
  return error.status === 0 || error.status === 502 || (error.status === 503 && error instanceof ConnectionFailed);
}

/** Whether the server wants a key, or another one. */
export function isLocked(error: unknown): boolean {
  return error instanceof OpenEnvError && error.status === 401;
}

/** Whether the session that a request named has ended. */
export function isGone(error: unknown): boolean {
  return error instanceof UnknownSession || error instanceof SessionLost;
}
