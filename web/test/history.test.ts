import { expect, test } from 'vitest';
import { Curve } from '../src/episode/curve';
import { History } from '../src/episode/history';
import type { Transition } from '../src/episode/transition';

const transition = (step: number, text = ''): Transition =>
  ({ episode_id: 'e', step, observation: { text }, reward: step ? 1 : null, done: false, error: null }) as unknown as Transition;

test('10,000 steps keep the newest, within both limits', () => {
  const history = new History(1000, 1_000_000);
  for (let step = 0; step <= 10_000; step++) history.add(transition(step, 'x'.repeat(2000)));
  expect(history.kept).toBeLessThan(500);
  expect(history.current?.last?.step).toBe(10_000);
  expect(history.current?.steps).toBe(10_000);
  expect(history.current?.forgotten).toBe(10_001 - history.kept);
  expect(history.current?.curve.total).toBe(10_000);
  expect(history.current?.curve.steps.length).toBeLessThan(4096);
});

test('one transition over the limit of bytes is kept while it is the newest', () => {
  const history = new History(1000, 100);
  history.add(transition(0, 'x'.repeat(5000)));
  expect(history.kept).toBe(1);
  history.add(transition(1, 'x'.repeat(5000)));
  expect(history.current?.transitions.map((each) => each.step)).toEqual([1]);
});

test('the oldest episodes go first', () => {
  const history = new History(10);
  for (const _ of [1, 2, 3]) for (let step = 0; step < 5; step++) history.add(transition(step));
  expect(history.episodes.map((each) => [each.number, each.transitions.length])).toEqual([[2, 5], [3, 5]]);
});

test('no more than fifty episodes are kept', () => {
  const history = new History();
  for (let count = 0; count < 80; count++) history.add(transition(0));
  expect(history.episodes.length).toBe(50);
  expect(history.current?.number).toBe(80);
});

test('a full curve keeps its form: means of rewards, last returns', () => {
  const curve = new Curve(8);
  for (let step = 1; step <= 32; step++) curve.add(step, step % 2);
  expect(curve.stride).toBe(8);
  expect(curve.steps).toEqual([8, 16, 24, 32]);
  expect(curve.rewards).toEqual([0.5, 0.5, 0.5, 0.5]);
  expect(curve.returns).toEqual([4, 8, 12, 16]);
});
