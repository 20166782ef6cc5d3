/** Most points that are kept: more than a screen has columns. */
export const MOST_POINTS = 4096;

/**
 * The rewards of an episode of any length. When it is full, two neighbours become one: the reward is their mean, the
 * return that after the later one.
 */
export class Curve {
  steps: number[] = [];
  rewards: (number | null)[] = [];
  returns: number[] = [];
  /** Steps that one point stands for. */
  stride = 1;
  total = 0;
  private open: { rewards: number[]; seen: number } = { rewards: [], seen: 0 };

  constructor(private readonly most = MOST_POINTS) {}

  add(step: number, reward: number | null): void {
    this.total += reward ?? 0;
    this.open.seen += 1;
    if (reward !== null) this.open.rewards.push(reward);
    if (this.open.seen < this.stride) return;
    this.steps.push(step);
    this.rewards.push(mean(this.open.rewards));
    this.returns.push(this.total);
    this.open = { rewards: [], seen: 0 };
    if (this.steps.length >= this.most) this.thin();
  }

  private thin(): void {
    const second = <T>(values: T[]) => values.filter((_, index) => index % 2 === 1);
    const pairs = second(this.rewards).map((reward, index) =>
      mean([this.rewards[2 * index] ?? null, reward].filter((value) => value !== null)),
    );
    this.steps = second(this.steps);
    this.returns = second(this.returns);
    this.rewards = pairs;
    this.stride *= 2;
  }
}

function mean(values: number[]): number | null {
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
}
