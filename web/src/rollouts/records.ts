import type { Json, JsonObject } from '../api/json';

/** Returns by the name of an outcome: whether a rollout that ended so may have one. */
export type Outcomes = Record<string, boolean>;

/** One rollout in a list. Fields that have their default are not sent. */
export interface Summary {
  file: string;
  offset: number;
  run: string;
  rollout_id: string;
  group: string;
  member: number;
  task: string;
  outcome: string;
  reward?: number;
  turns?: number;
  breaks?: number;
  tokens?: number;
  cost?: number;
  seconds?: number;
  started?: number;
  environment?: string;
  model?: string;
  version?: number;
  invalid_actions?: number;
  attempts?: number;
  error?: string;
}

export interface Group {
  run: string;
  group: string;
  task: string;
  rollouts: number;
  failed: number;
  reward: number | null;
  low: number | null;
  high: number | null;
  spread: number | null;
  turns: number;
  tokens: number;
  started: number;
}

export interface Run {
  run: string;
  rollouts: number;
  groups: number;
  outcomes: Record<string, number>;
  reward: number | null;
  usage: { completion_tokens?: number; cost?: number };
  models: string[];
  environments: string[];
  started: number;
  ended: number;
}

/** What `GET rollouts/runs` says. */
export interface Folder {
  folder: string;
  /** The part of the files that is read, up to 1. */
  read: number;
  reading: boolean;
  faults: string[];
  outcomes: Outcomes;
  runs: Run[];
}

/** Where a text was found in a rollout. */
export interface Match {
  turn: number;
  part: 'prompt' | 'completion' | 'step';
  before: string;
  found: string;
  after: string;
  count: number;
}

export interface Step {
  action?: Json;
  call_id?: string;
  tool?: string;
  observation?: Json;
  reward?: number;
  rubric?: Record<string, number>;
  done?: boolean;
  truncated?: boolean;
  error?: string;
}

export interface Turn {
  prompt: JsonObject[];
  completion: JsonObject;
  prefix_break?: { kind: string; position: number; expected: number; found: number };
  finish_reason?: string;
  usage?: { prompt_tokens?: number; cached_tokens?: number; completion_tokens?: number; reasoning_tokens?: number; cost?: number };
  steps?: Step[];
  version?: number;
  model?: string;
  tokens?: string;
  model_s?: number;
  environment_s?: number;
}

export interface TokenFacts {
  prompt: number;
  completion: number;
  /** The mean of the completion's logprobs. */
  logprob: number | null;
}

/** What `GET rollouts/rollout` says. */
export interface Shown {
  rollout: {
    rollout_id: string;
    task: { seed?: number; split?: string; index?: number; arguments?: JsonObject };
    group: string;
    member: number;
    outcome: string;
    reward?: number;
    rubric?: Record<string, number>;
    turns?: Turn[];
    failure?: { error: string; message: string; blame?: string };
    usage?: Turn['usage'];
    environment?: string;
    model?: string;
    tools?: JsonObject[];
    invalid_actions?: number;
    attempts?: number;
    started?: number;
    seconds?: number;
    episode_id?: string;
    forked_from?: string;
    forked_at?: number;
    metadata?: JsonObject;
  };
  run: string;
  tokens: TokenFacts[];
}

/** The sum of the rewards of a turn; null without any. */
export function rewardOf(turn: Turn): number | null {
  const given = (turn.steps ?? []).flatMap((step) => step.reward ?? []);
  return given.length ? given.reduce((sum, reward) => sum + reward, 0) : null;
}

/** The least probability of each colour of a token. */
export const LEVELS = [0.9, 0.6, 0.3, 0.1];

/** How unlikely a token was, from 0 to 4. */
export function levelOf(logprob: number): number {
  const level = LEVELS.findIndex((least) => Math.exp(logprob) >= least);
  return level < 0 ? LEVELS.length : level;
}

/** A task as people name it: `train/3`, `seed 7`. */
export function taskOf({ task }: Shown['rollout']): string {
  if (task.index !== undefined) return `${task.split ?? 'none'}/${task.index}`;
  if (task.seed !== undefined) return `seed ${task.seed}`;
  return task.arguments ? JSON.stringify(task.arguments) : '-';
}
