import { expect, test } from 'vitest';
import { histogramOf, parseMetrics, quantile, since, valueOf } from '../src/server/metrics';

const TEXT = `# HELP openenv_sessions Sessions
# TYPE openenv_sessions gauge
openenv_sessions{state="live"} 3.0
openenv_sessions{state="executing"} 1.0
openenv_errors_total{error="a \\"b\\" \\\\ c",blame="x,y={z}"} 2.0
openenv_phase_seconds_bucket{le="0.001",phase="step"} 4.0
openenv_phase_seconds_bucket{le="0.002",phase="step"} 8.0
openenv_phase_seconds_bucket{le="+Inf",phase="step"} 10.0
openenv_phase_seconds_sum{phase="step"} 0.5
openenv_phase_seconds_bucket{le="+Inf",phase="send"} 99.0
this is { no line
nan_one NaN
`;

test('labels keep what is quoted in them', () => {
  const error = parseMetrics(TEXT).find((sample) => sample.name === 'openenv_errors_total');
  expect(error?.labels).toEqual({ error: 'a "b" \\ c', blame: 'x,y={z}' });
});

test('values are summed over labels, and one that is not there is none', () => {
  expect(valueOf(parseMetrics(TEXT), 'openenv_sessions')).toBe(4);
  expect(valueOf(parseMetrics(TEXT), 'openenv_nothing')).toBeNull();
});

test('a histogram has counts of its own for each bucket', () => {
  const found = histogramOf(parseMetrics(TEXT), 'openenv_phase_seconds', { phase: 'step' });
  expect(found).toEqual({ bounds: [0.001, 0.002, Infinity], counts: [4, 4, 2], count: 10, sum: 0.5 });
  expect(quantile(found, 0.5)).toBeCloseTo(0.00125);
  expect(quantile(found, 0.99)).toBe(0.002);
  expect(quantile({ ...found, counts: [0, 0, 0], count: 0 }, 0.5)).toBeNull();
});

test('what came since is the difference, and all of it after a restart', () => {
  const now = histogramOf(parseMetrics(TEXT), 'openenv_phase_seconds', { phase: 'step' });
  const before = { ...now, counts: [4, 0, 0], count: 4, sum: 0.1 };
  expect(since(now, before).counts).toEqual([0, 4, 2]);
  expect(since(before, now)).toEqual(before);
});
