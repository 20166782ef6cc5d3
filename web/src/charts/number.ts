/** A number in few characters. */
export function short(value: number): string {
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)));
}

/** Seconds for people: `1.2 ms`, `3 s`, `2 min`. */
export function lasting(seconds: number): string {
  if (seconds < 1e-3) return `${short(Number((seconds * 1e6).toPrecision(3)))} µs`;
  if (seconds < 1) return `${short(Number((seconds * 1e3).toPrecision(3)))} ms`;
  if (seconds < 120) return `${short(Number(seconds.toPrecision(3)))} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}
