import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { ConnectionFailed, InvalidAction, ServerFull, UnknownSession, Unauthorized } from '../src/index.ts';
import { HttpServer, HttpSession } from '../src/http.ts';
import { serve, type Served } from './server.ts';

const KEY = 'a-key-of-the-tests-0123456789';
let served: Served;

before(async () => void (served = await serve(['--max-sessions', '1'], { OPENENV_API_KEYS: KEY })));
after(() => served?.kill());

test('a session over HTTP, and its errors', async () => {
  const server = new HttpServer(served.url, { key: () => KEY });
  const session = await HttpSession.open<{ observation: { total: number } }, { step_count: number }>(server);
  assert.equal((await session.reset({ start: 2 })).observation.total, 2);
  assert.equal((await session.step({ amount: 3 })).observation.total, 5);
  assert.equal((await session.state()).step_count, 1);
  await assert.rejects(session.step({ amount: 'many' }), (error) => error instanceof InvalidAction && error.status === 422 && error.faults.length === 1);
  await assert.rejects(HttpSession.open(server), (error) => error instanceof ServerFull && error.retryAfterS !== null);
  await session.close();
  await assert.rejects(session.step({}), UnknownSession);
  await assert.rejects(new HttpServer(served.url).request('sessions'), Unauthorized);
  await assert.rejects(new HttpServer(served.url, { key: '→' }).request('sessions'), Unauthorized);
  await assert.rejects(server.request('health', { signal: AbortSignal.abort(new Error('enough')) }), /enough/);
  await assert.rejects(new HttpServer('http://127.0.0.1:1').request('health'), (error) => error instanceof ConnectionFailed && error.status === 0);
});
