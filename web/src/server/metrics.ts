/** One number of a Prometheus exposition. */
export interface Sample {
  name: string;
  labels: Record<string, string>;
  value: number;
}

const LINE = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$/;
const LABEL = /([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"\s*,?\s*/g;

/** Reads Prometheus' text format; lines that are none are left out. */
export function parseMetrics(text: string): Sample[] {
  const samples: Sample[] = [];
  for (const line of text.split('\n')) {
    if (!line || line.startsWith('#')) continue;
    const found = LINE.exec(line);
    if (!found?.[1]) continue;
    const labels: Record<string, string> = {};
    for (const [, name, value] of (found[2] ?? '').matchAll(LABEL)) labels[name as string] = unescaped(value as string);
    samples.push({ name: found[1], labels, value: numberOf(found[3] as string) });
  }
  return samples;
}

/** Counts in buckets, each for what took longer than the one before. */
export interface Histogram {
  /** Upper bounds in seconds; the last is infinite. */
  bounds: number[];
  counts: number[];
  count: number;
  sum: number;
}

/** The histogram of a phase (`openenv_phase_seconds`). */
export function histogramOf(samples: Sample[], name: string, labels: Record<string, string>): Histogram {
  const mine = samples.filter((sample) => Object.entries(labels).every(([key, value]) => sample.labels[key] === value));
  const buckets = mine
    .filter((sample) => sample.name === `${name}_bucket`)
    .map((sample) => ({ bound: numberOf(sample.labels.le ?? '+Inf'), below: sample.value }))
    .sort((one, other) => one.bound - other.bound);
  const counts = buckets.map((bucket, index) => bucket.below - (buckets[index - 1]?.below ?? 0));
  return {
    bounds: buckets.map((bucket) => bucket.bound),
    counts,
    count: counts.reduce((sum, count) => sum + count, 0),
    sum: mine.find((sample) => sample.name === `${name}_sum`)?.value ?? 0,
  };
}

/** What of a histogram came after another reading; all of it, if the server has begun anew since. */
export function since(now: Histogram, before: Histogram | undefined): Histogram {
  if (!before || before.count > now.count || before.counts.length !== now.counts.length) return now;
  const counts = now.counts.map((count, index) => count - (before.counts[index] ?? 0));
  return { bounds: now.bounds, counts, count: now.count - before.count, sum: now.sum - before.sum };
}

/** The duration that a part of all (0 to 1) did not take longer than; within its bucket they count as even. */
export function quantile(histogram: Histogram, part: number): number | null {
  if (histogram.count === 0) return null;
  let left = part * histogram.count;
  for (const [index, count] of histogram.counts.entries()) {
    const high = histogram.bounds[index] as number;
    if (left <= count && count > 0) {
      const low = index === 0 ? 0 : (histogram.bounds[index - 1] as number);
      return Number.isFinite(high) ? low + ((high - low) * left) / count : low;
    }
    left -= count;
  }
  return histogram.bounds.at(-2) ?? null;
}

/** The sum of a metric over all its labels; null if there is none. */
export function valueOf(samples: Sample[], name: string): number | null {
  const mine = samples.filter((sample) => sample.name === name);
  return mine.length ? mine.reduce((sum, sample) => sum + sample.value, 0) : null;
}

function numberOf(text: string): number {
  if (text === '+Inf') return Infinity;
  if (text === '-Inf') return -Infinity;
  return Number(text);
}

function unescaped(text: string): string {
  return text.replace(/\\(.)/g, (_, char: string) => (char === 'n' ? '\n' : char));
}
