import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer as createHttpServer } from 'node:http';
import { createServer, type AddressInfo } from 'node:net';
import { after, before, test } from 'node:test';
import { WebSocket } from 'ws';
import {
  Client,
  connect,
  ConnectionFailed,
  ConnectTimeout,
  InvalidAction,
  MessageTooLarge,
  NdArray,
  ServerFull,
  SessionLost,
  StepFailed,
  StepTimeout,
  Unauthorized,
  UsageError,
  type ClientOptions,
  type Session,
} from '../src/index.ts';
import { Network, serve, type Served } from './server.ts';

interface Adder {
  action: { kind?: 'add' | 'fail' | 'hang' | 'say'; amount?: number; value?: unknown };
  observation: { total: number; value: unknown; pixels: number[][] };
  state: { episode_id: string | null; step_count: number };
}

const KEY = 'a-key-of-the-tests-0123456789';
const options = { WebSocket, connectTimeoutS: 60 } as unknown as ClientOptions;
let server: Served;

before(async () => void (server = await serve(['--max-sessions', '3'], { OPENENV_MAX_MESSAGE_MB: '1', OPENENV_HEARTBEAT_S: '0.5' })));
after(() => server?.kill());

/** Runs a part of a test with a session, which is closed after it. */
async function playing(play: (env: Session<Adder>) => Promise<void>, url = server.url): Promise<void> {
  const env = await connect<Adder>(url, options);
  try {
    await play(env);
  } finally {
    await env.close();
  }
}

test('an episode, with typed results', () =>
  playing(async (env) => {
    const begun = await env.reset({ seed: 3, episode_id: 'mine', start: 90 });
    assert.deepEqual(begun.observation.pixels, [[0, 1], [2, 3]]);
    assert.equal(begun.observation.total, 90);
    assert.equal(begun.done, false);
    const stepped = await env.step({ amount: 10 });
    assert.deepEqual([stepped.reward, stepped.done, stepped.terminated, stepped.truncated], [100, true, true, false]);
    assert.deepEqual(await env.state(), { episode_id: 'mine', step_count: 1 });
  }));

test('values that JSON does not have arrive as they were sent', () =>
  playing(async (env) => {
    await env.reset();
    for (const value of [Number.NaN, [Number.POSITIVE_INFINITY, 'NaN, "Infinity"'], { $bytes: 'no' }, { $object: 1 }, new Uint8Array([0, 255]), 'ü→'])
      assert.deepEqual((await env.step({ value })).observation.value, value);
    const array = new NdArray('<i4', [1, 2], new Int32Array([7, -7]));
    assert.deepEqual((await env.step({ value: array })).observation.value, array);
    await assert.rejects(env.step({ value: () => 1 }), UsageError);
    assert.equal((await env.step({})).observation.total, 8);
  }));

test('errors are classes with the facts of the wire, and the session goes on', () =>
  playing(async (env) => {
    await env.reset();
    await assert.rejects(env.step({ kind: 'fail' }), (error) => error instanceof StepFailed && error.blame === 'environment' && /told to fail/.test(error.message));
    await assert.rejects(env.step({ amount: 'many' } as never), (error) => {
      assert(error instanceof InvalidAction);
      assert.equal(error.name, 'InvalidAction');
      assert.equal(error.code, 'VALIDATION_ERROR');
      assert.deepEqual(error.faults[0]?.loc, ['amount']);
      return true;
    });
    assert.equal((await env.step({ amount: 2 })).observation.total, 2);
  }));

test('an action is the one of the call, whatever its caller does with it later', () =>
  playing(async (env) => {
    await env.reset();
    const action = { amount: 1 };
    const first = env.step(action);
    action.amount = 10;
    assert.deepEqual((await Promise.all([first, env.step(action)])).map((each) => each.observation.total), [1, 11]);
  }));

test('a message over the limit is not sent', () =>
  playing(async (env) => {
    await env.reset();
    await assert.rejects(env.step({ value: 'ü'.repeat(600 * 1024) }), MessageTooLarge);
    assert.equal((await env.step({})).observation.total, 1);
  }));

test('a call ends with its deadline or its signal, and the next one has its turn', () =>
  playing(async (env) => {
    await env.reset();
    await assert.rejects(env.step({ kind: 'hang' }, { timeoutS: 0.1 }), StepTimeout);
    await assert.rejects(env.step({}, { timeoutS: Number.NaN }), UsageError);
    await env.step({ amount: 0 }, { timeoutS: Number.POSITIVE_INFINITY });
    const controller = new AbortController();
    const hung = env.step({ kind: 'hang' }, { signal: controller.signal });
    const behind = env.step({ amount: 5 }, { signal: controller.signal });
    controller.abort(new Error('enough'));
    await assert.rejects(hung, /enough/);
    await assert.rejects(behind, /enough/);
    assert.equal((await env.step({})).observation.total, 1);
  }));

test('sessions side by side, over one connection, up to the limit of the server', async () => {
  await using client = new Client(server.url, options);
  const sessions = await Promise.all([1, 2, 3].map(() => client.open<Adder>()));
  await Promise.all(sessions.map((each) => each.reset()));
  const results = await Promise.all(sessions.map((each, index) => each.step({ amount: index + 1 })));
  assert.deepEqual(results.map((each) => each.observation.total), [1, 2, 3]);
  const full = await connect(server.url, options).catch((error: unknown) => error);
  assert(full instanceof ServerFull && full.retryable);
  assert.equal(full.data.max_sessions, 3);
  await sessions[0]!.close();
  await assert.rejects(sessions[0]!.step({}), /closed/);
  assert.equal((await sessions[1]!.step({})).observation.total, 3);
});

for (const when of ['request', 'reply'] as const)
  test(`a connection that is cut at a ${when} is resumed, and the call executes once`, async () => {
    const network = await Network.to(server.url);
    await playing(async (env) => {
      await env.reset();
      network.cut(when);
      const both = await Promise.all([env.step({ amount: 2 }), env.step({ amount: 3 })]);
      assert.deepEqual(both.map((each) => each.observation.total), [2, 5]);
      assert.equal((await env.state()).step_count, 2);
      assert.match(network.requests[1]!, /\/ws\?(worker=\w+&)?route=here /);
    }, network.url);
    network.close();
  });

test('a connection that passes nothing on is found out by heartbeats, and resumed', async () => {
  const network = await Network.to(server.url);
  await playing(async (env) => {
    await env.reset();
    network.silence();
    assert.equal((await env.step({ amount: 2 })).observation.total, 2);
  }, network.url);
  network.close();
});

test('a connection that is cut while a session opens opens it once', async () => {
  const network = await Network.to(server.url);
  await using client = new Client(network.url, options);
  const first = await client.open<Adder>();
  network.cut('reply');
  const second = await client.open<Adder>();
  await Promise.all([first.reset(), second.reset()]);
  const third = await client.open<Adder>(); // the last of three slots
  assert.equal((await third.reset()).observation.total, 0);
  network.close();
});

test('a server that was killed and restarted has lost the session; a reset begins a new one', async () => {
  const key = { OPENENV_API_KEYS: KEY };
  let locked = await serve([], key);
  try {
    for (const wrong of [undefined, 'no-such-key']) await assert.rejects(connect(locked.url, { ...options, ...(wrong && { key: wrong }) }), Unauthorized);
    await assert.rejects(connect(locked.url, { ...options, key: 'not→a key' }), Unauthorized);
    const env = await connect<Adder>(locked.url, { ...options, key: KEY });
    await env.reset();
    const { port } = locked;
    const hung = env.step({ kind: 'hang' });
    await locked.kill();
    locked = await serve(['--port', port], key);
    await assert.rejects(hung, SessionLost);
    await assert.rejects(env.step({}), SessionLost);
    assert.equal((await env.reset({ start: 4 })).observation.total, 4);
    await env.close();
    await assert.rejects(env.reset(), /closed/);
  } finally {
    await locked.kill();
  }
});

test('addresses where no server is', async () => {
  await assert.rejects(connect('ftp://somewhere', options), UsageError);
  await assert.rejects(connect('http://', options), UsageError);
  const silent = createServer().listen(0, '127.0.0.1');
  const other = createHttpServer((_, answer) => answer.writeHead(404).end()).listen(0, '127.0.0.1');
  await Promise.all([once(silent, 'listening'), once(other, 'listening')]);
  const at = (listener: typeof silent) => `127.0.0.1:${(listener.address() as AddressInfo).port}`;
  const [silentUrl, otherUrl] = [at(silent), at(other)];
  await assert.rejects(connect(silentUrl, { ...options, connectTimeoutS: 0.1 }), ConnectTimeout);
  await assert.rejects(connect(otherUrl, options), (error) => error instanceof ConnectionFailed && !error.retryable);
  silent.close();
  other.close();
  await assert.rejects(connect(silentUrl, options), (error) => error instanceof ConnectionFailed && error.retryable);
  await assert.rejects(connect(server.url, { ...options, signal: AbortSignal.abort(new Error('enough')) }), /enough/);
});
