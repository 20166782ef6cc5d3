import { expect, test } from 'vitest';
import { curlOf, quoted } from '../src/code/curl';
import { literal, pythonOf } from '../src/code/python';
import { OpenEnvError, SessionLost } from 'openenv';
import { refusalOf } from 'openenv/http';
import { isAway, isGone } from '../src/api/failure';
import { asked, isFree } from '../src/forms/normal';

test('values are written as Python has them', () => {
  expect(literal({ a: null, b: [true, false], c: 'it\'s "x"\n' })).toBe('{"a": None, "b": [True, False], "c": "it\'s \\"x\\"\\n"}');
});

test('a program never holds the key', () => {
  const program = pythonOf('http://h', true, { seed: 1, 'odd name': 2 }, [{ by: 1 }], false);
  expect(program).toContain('api_key=os.environ["OPENENV_API_KEY"]');
  expect(program).toContain('env.reset(seed=1, **{"odd name": 2})');
  expect(curlOf('http://h', true, {}, [])).toContain('Bearer $OPENENV_API_KEY');
});

test('names that Python keeps for itself come by a dict', () => {
  expect(pythonOf('http://h', false, { class: 1, level: 2 }, [], false)).toContain('env.reset(level=2, **{"class": 1})');
});

test('a shell reads what was meant', () => {
  expect(quoted("it's $HOME `x`")).toBe("'it'\\''s $HOME `x`'");
});

test('errors are read from every shape', async () => {
  const read = (status: number, body: unknown, headers = {}) => refusalOf(new Response(JSON.stringify(body), { status, headers }));
  const failure = await read(422, { error: 'InvalidAction', blame: 'client', message: 'no', detail: [{ loc: ['x', 0], msg: 'bad' }] });
  expect(failure).toMatchObject({ name: 'InvalidAction', faults: [{ loc: ['x', 0], msg: 'bad' }] });
  expect([isAway(await read(502, null)), isAway(await read(503, null)), isAway(await read(500, null))]).toEqual([true, true, false]);
  const full = await read(503, { error: 'ServerFull', message: 'full' }, { 'Retry-After': '3' });
  expect([full.retryAfterS, isAway(full)]).toEqual([3, false]);
  expect(isGone(await read(404, { error: { error: 'SessionLost', message: 'gone' } }))).toBe(true);
  expect((await read(404, { detail: 'Not Found' })).message).toContain('Not Found');
  expect([isGone(new SessionLost('gone')), isAway(new SessionLost('gone')), isAway(new OpenEnvError('no'))]).toEqual([true, false, false]);
});

test('forms ask for values that may be null as for values that may be left out', () => {
  const schema = { type: 'object', properties: { n: { anyOf: [{ type: 'integer', minimum: 0 }, { type: 'null' }], default: null, title: 'N' }, metadata: { type: 'object', additionalProperties: true } } };
  expect(asked(schema as never).properties).toEqual({ n: { type: 'integer', minimum: 0, title: 'N' } });
});

test('what has no fields is asked for as JSON', () => {
  expect([{}, { type: 'object' }, { type: 'array' }, { type: 'array', items: {} }].every((schema) => isFree(schema as never))).toBe(true);
  expect([{ type: 'string' }, { enum: [1] }, { $ref: '#/x' }, { type: 'array', items: { type: 'string' } }].some((schema) => isFree(schema as never))).toBe(false);
});
