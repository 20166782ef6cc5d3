import type { Json, JsonObject } from '../api/json';

/** A reset or a step and what came of it: one line of a recording. */
export interface Transition {
  episode_id: string | null;
  session_id: string | null;
  /** 0 is the reset. */
  step: number;
  seed?: number | null;
  arguments?: JsonObject;
  action?: Json;
  observation: Json;
  reward: number | null;
  terminated: boolean | null;
  truncated: boolean | null;
  done: boolean;
  /** Unix seconds at which it was asked for. */
  time: number;
  duration_s: number;
  error: string | null;
  environment: string;
  versions: { openenv?: string | null; environment?: string | null };
  schema: string | null;
  /** What is shown beside the observation; of it, only the drawing is recorded. */
  shown?: Shown;
}

export interface Offer {
  label: string;
  action: JsonObject;
  /** Why it is no action of this environment. */
  error?: string;
}

export interface Shown {
  html: string | null;
  actions: Offer[];
  notes: string[];
  state: Json;
}
