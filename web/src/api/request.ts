import { Failure, failureOf } from './failure';
import type { Json } from './json';
import { heldKey } from './key';
import { at } from './root';

// What a header may hold; of anything else `fetch` says no more than of a server that is away.
const SENDABLE = /^[\x20-\x7e]+$/;

export interface Wanted {
  method?: 'GET' | 'POST' | 'DELETE';
  body?: Json;
  headers?: Record<string, string>;
  /** Outlives the page. */
  keepalive?: boolean;
  /** Ends the request. */
  signal?: AbortSignal;
}

/** Asks the server.
 * @throws Failure whatever goes wrong.
 */
export async function request(path: string, wanted: Wanted = {}): Promise<Response> {
  const key = heldKey();
  const headers: Record<string, string> = { ...wanted.headers };
  if (key !== null && !SENDABLE.test(key)) throw new Failure('Unauthorized', 'the key has characters that a key cannot have', 401, 'client');
  if (key !== null) headers.Authorization = `Bearer ${key}`;
  if (wanted.body !== undefined) headers['Content-Type'] = 'application/json';
  let body: string | undefined;
  try {
    body = wanted.body === undefined ? undefined : JSON.stringify(wanted.body);
  } catch (error) {
    throw new Failure('InvalidAction', `the request cannot be written as JSON: ${String(error)}`, 422, 'client');
  }
  let answer: Response;
  try {
    answer = await fetch(at(path), {
      method: wanted.method ?? 'GET',
      headers,
      body,
      keepalive: wanted.keepalive,
      signal: wanted.signal,
      credentials: 'same-origin', // what stands before a Space asks for its cookies
      cache: 'no-store',
    });
  } catch {
    throw new Failure('ConnectionFailed', 'the server does not answer', 0);
  }
  if (!answer.ok) throw failureOf(answer.status, await bodyOf(answer), answer.headers.get('Retry-After'));
  return answer;
}

/** As `request`, for an answer that is JSON. */
export async function ask<T>(path: string, wanted: Wanted = {}): Promise<T> {
  const answer = await request(path, wanted);
  try {
    return (await answer.json()) as T;
  } catch {
    throw new Failure('Answer', `the answer of ${path} is not JSON: this is not an OpenEnv server, or the answer is incomplete`, answer.status);
  }
}

async function bodyOf(answer: Response): Promise<Json> {
  try {
    return (await answer.json()) as Json;
  } catch {
    return null;
  }
}
