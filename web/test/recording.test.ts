import { expect, test } from 'vitest';
import { byEpisode, readRecording, written } from '../src/episode/recording';
import type { Transition } from '../src/episode/transition';

const transition = (step: number, more: Partial<Transition> = {}): Transition => ({
  episode_id: 'e',
  session_id: 's',
  step,
  seed: step === 0 ? 7 : null,
  action: step === 0 ? undefined : { by: step },
  observation: { value: step, text: 'line\nbreak \u2028 é' },
  reward: step === 0 ? null : step / 2,
  terminated: null,
  truncated: null,
  done: step === 3,
  time: 1,
  duration_s: 0.1,
  error: null,
  environment: 'counter',
  versions: { openenv: '1.0.0' },
  schema: 'abc',
  ...more,
});
const EPISODE = [0, 1, 2, 3].map((step) => transition(step));

test('what was written is read again', () => {
  const read = readRecording(written(EPISODE));
  expect(read.faults).toEqual([]);
  expect(JSON.parse(JSON.stringify(read.transitions))).toEqual(JSON.parse(JSON.stringify(EPISODE.map((each) => ({ ...each, seed: each.seed ?? null })))));
});

test('what is shown beside the observation is not written', () => {
  const shown = { html: '<b>', actions: [], notes: [], state: null };
  expect(written([transition(1, { shown })])).not.toContain('shown');
});

test('a torn file is shown up to where it is torn', () => {
  const text = written(EPISODE);
  const read = readRecording(text.slice(0, text.length - 40));
  expect(read.transitions.map((each) => each.step)).toEqual([0, 1, 2]);
  expect(read.faults).toEqual(['line 4 is incomplete: the file ends in the middle of it']);
});

test('lines of something else are named, and missing steps told', () => {
  const lines = written(EPISODE).split('\n');
  const read = readRecording([lines[0], '[1]', '{"a": 1}', '{"observation": 1, "step": -1}', 'null', lines[3]].join('\n'));
  expect(read.transitions).toHaveLength(2);
  expect(read.faults).toHaveLength(5);
  expect(read.faults.at(-1)).toBe('2 transitions are missing before step 3 of episode e');
});

test('any number of missing steps is told in a few lines', () => {
  const line = JSON.stringify({ step: 5, observation: 1 });
  const read = readRecording(Array.from({ length: 200_000 }, () => line).join('\n'));
  expect(read.transitions).toHaveLength(200_000);
  expect(read.faults.length).toBeLessThan(30);
});

test('values of another type than they should have do no harm', () => {
  const read = readRecording('{"observation": null, "step": 0, "reward": "much", "versions": 3, "time": "now", "error": {"a": 1}}');
  expect(read.transitions[0]).toMatchObject({ reward: null, versions: {}, time: 0, error: '{"a":1}' });
});

test('thousands of faults are not listed', () => {
  expect(readRecording('x\n'.repeat(5000)).faults).toHaveLength(21);
});

test('episodes of one file are told apart', () => {
  const other = EPISODE.map((each) => ({ ...each, episode_id: 'f' }));
  expect(byEpisode([...EPISODE, ...other]).map((each) => each.length)).toEqual([4, 4]);
});

test('lines of sessions that a server mixed are no gaps', () => {
  const other = EPISODE.map((line) => ({ ...line, episode_id: 'f', session_id: 't' }));
  const read = readRecording(written(EPISODE.flatMap((line, index) => [line, other[index] as Transition])));
  expect(read.faults).toEqual([]);
  expect(byEpisode(read.transitions).map((each) => each.length)).toEqual([4, 4]);
});

test('a reset begins another episode, though its id is the same', () => {
  const read = readRecording(written([...EPISODE, ...EPISODE.slice(0, 2)]));
  expect(read.faults).toEqual([]);
  expect(byEpisode(read.transitions).map((each) => each.length)).toEqual([4, 2]);
});
