import { OpenEnvError, ResetRequired } from 'openenv';
import { isAway, isGone, isLocked } from '../api/failure';
import { isRecord, type Json, type JsonObject } from '../api/json';
import { holdKey, heldKey } from '../api/key';
import type { Metadata } from '../api/metadata';
import { SERVER } from '../api/server';
import { History } from '../episode/history';
import type { Transition } from '../episode/transition';
import { Store } from '../store';
import { Visit, type Outcome } from './visit';

export type Phase = 'loading' | 'ready' | 'away' | 'locked' | 'failed';
export type Busy = 'reset' | 'step' | 'state' | null;

/** What the page shows of the visit. */
export interface Playing {
  phase: Phase;
  metadata: Metadata | null;
  busy: Busy;
  /** Of the last call; shown until the next one. */
  failure: OpenEnvError | null;
  failedCall: Busy;
  /** Something to know that is no failure. */
  notice: string | null;
  /** Whether a session with an episode is there to be stepped. */
  live: boolean;
  keyRefused: boolean;
  /** When the server is asked for the next time, in ms of `performance.now()`. */
  retryAt: number | null;
}

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15_000;

/** The visit: one session, its episodes, and what is to be told about them. One call at a time. */
export class Play extends Store<Playing> {
  readonly visit = new Visit();
  readonly history = new History();
  private timer: ReturnType<typeof setTimeout> | undefined;
  private wait = FIRST_WAIT_MS;

  constructor() {
    super({
      phase: 'loading',
      metadata: null,
      busy: null,
      failure: null,
      failedCall: null,
      notice: null,
      live: false,
      keyRefused: false,
      retryAt: null,
    });
  }

  /** Asks the server what it is. */
  async load(): Promise<void> {
    try {
      const metadata = await SERVER.ask<Metadata>('web/metadata');
      this.set({ phase: 'ready', metadata, keyRefused: false, failure: null });
    } catch (error) {
      this.failed(error, null);
    }
  }

  async unlock(key: string): Promise<void> {
    holdKey(key);
    if (this.value.metadata === null) await this.load();
    else {
      try {
        await SERVER.request('web/metadata');
        this.set({ phase: 'ready', keyRefused: false, failure: null });
      } catch (error) {
        this.failed(error, null);
      }
    }
  }

  reset(given: JsonObject): Promise<Outcome | null> {
    return this.call('reset', () => this.visit.reset(given), (outcome) => {
      const { seed, episode_id: _, ...rest } = given;
      return { seed: typeof seed === 'number' ? seed : null, arguments: rest, step: outcome ? 0 : -1 };
    });
  }

  step(action: Json): Promise<Outcome | null> {
    if (!this.value.live || this.history.current?.done) return Promise.resolve(null);
    // Counted here: not every environment counts its steps.
    const step = (this.history.current?.steps ?? 0) + 1;
    return this.call('step', () => this.visit.step(action), () => ({ action, step }));
  }

  /** Tells the server that somebody is still here. */
  async keep(): Promise<void> {
    if (this.value.busy) return;
    this.set({ busy: 'state' });
    try {
      await this.visit.state();
      this.set({ busy: null });
    } catch (error) {
      this.set({ busy: null });
      this.failed(error, 'state');
    }
  }

  /** The page is left, or put away by the browser. */
  leave(): void {
    const had = this.visit.id !== null;
    this.visit.close();
    if (had) this.set({ live: false, notice: 'The session was closed when this page was left. Reset to begin a new one.' });
  }

  async retry(): Promise<void> {
    clearTimeout(this.timer);
    this.set({ retryAt: null });
    try {
      await SERVER.request('health');
    } catch (error) {
      if (isAway(error)) return this.wait_();
    }
    await this.returned();
  }

  private async returned(): Promise<void> {
    this.wait = FIRST_WAIT_MS;
    if (this.value.metadata === null) return this.load();
    let live = false;
    if (this.visit.id !== null) {
      try {
        await this.visit.state();
        live = this.value.live;
      } catch (error) {
        if (isLocked(error) || isAway(error)) return this.failed(error, null);
        this.visit.forget();
      }
    }
    const notice = live
      ? 'The server answers again, and your session is still there.'
      : 'The server restarted, and your session ended with it. The history is kept. Reset to begin a new session.';
    this.set({ phase: 'ready', failure: null, live, notice });
  }

  private wait_(): void {
    const wait = this.wait;
    this.wait = Math.min(wait * 2, LONGEST_WAIT_MS);
    this.set({ phase: 'away', retryAt: performance.now() + wait });
    this.timer = setTimeout(() => void this.retry(), wait);
  }

  private async call(
    busy: 'reset' | 'step',
    ask_: () => Promise<Outcome>,
    about: (outcome: Outcome | null) => Partial<Transition> & { step: number },
  ): Promise<Outcome | null> {
    if (this.value.busy || this.value.phase !== 'ready') return null; // a second press of the same button
    this.set({ busy, failure: null, notice: null });
    const time = Date.now() / 1000;
    const began = performance.now();
    try {
      const outcome = await ask_();
      const lasted = { time, duration_s: (performance.now() - began) / 1000 };
      this.history.add(this.transition(outcome, { ...lasted, ...about(outcome) }));
      this.set({ busy: null, live: this.visit.id !== null });
      return outcome;
    } catch (error) {
      this.set({ busy: null });
      if (busy === 'step' && error instanceof OpenEnvError && error.blame === 'environment') {
        const lasted = { time, duration_s: (performance.now() - began) / 1000 };
        this.history.add({ ...this.transition(null, { ...lasted, ...about(null) }), error: `${error.name}: ${error.message}` });
      }
      this.failed(error, busy);
      return null;
    }
  }

  private failed(thrown: unknown, failedCall: Busy): void {
    const error = thrown instanceof OpenEnvError ? thrown : new OpenEnvError(`the answer could not be shown: ${String(thrown)}`);
    if (isAway(error)) {
      this.set({ failure: null });
      this.wait_();
    } else if (isLocked(error)) {
      this.set({ phase: 'locked', keyRefused: heldKey() !== null, failure: error });
    } else if (this.value.metadata === null) {
      this.set({ phase: 'failed', failure: error });
    } else {
      if (isGone(error)) this.visit.forget();
      const live = this.value.live && this.visit.id !== null && !(error instanceof ResetRequired);
      this.set({ failure: error, failedCall, live });
    }
  }

  private transition(outcome: Outcome | null, more: Partial<Transition> & { step: number }): Transition {
    const { metadata } = this.value;
    const before = this.history.current?.last;
    return {
      episode_id: outcome?.episode_id ?? before?.episode_id ?? null,
      session_id: outcome?.session_id ?? this.visit.id,
      observation: outcome?.observation ?? null,
      reward: rewardOf(outcome),
      terminated: outcome?.terminated ?? flagOf(outcome?.observation, 'terminated'),
      truncated: outcome?.truncated ?? flagOf(outcome?.observation, 'truncated'),
      done: outcome?.done ?? false,
      time: 0,
      duration_s: 0,
      error: null,
      environment: metadata?.server.environment ?? '',
      versions: { openenv: metadata?.server.version ?? null, environment: metadata?.version ?? null },
      schema: metadata?.schema_hash ?? null,
      shown: shownOf(outcome),
      ...more,
      ...(outcome?.duration_s === undefined ? {} : { duration_s: outcome.duration_s }),
    };
  }
}

/** A reward as a number; one that is none, as NaN, is seen in the notes. */
function rewardOf(outcome: Outcome | null): number | null {
  const reward: unknown = outcome?.reward;
  if (typeof reward === 'boolean') return Number(reward);
  return typeof reward === 'number' ? reward : null;
}

function shownOf(outcome: Outcome | null): Transition['shown'] {
  return {
    html: typeof outcome?.html === 'string' ? outcome.html : null,
    actions: (Array.isArray(outcome?.actions) ? outcome.actions : []).filter((offer) => isRecord(offer) && isRecord(offer.action)),
    notes: [...(Array.isArray(outcome?.notes) ? outcome.notes.map(String) : []), ...strange(outcome)],
    state: outcome?.state ?? null,
  };
}

function flagOf(observation: Json | undefined, name: string): boolean | null {
  const flag = isRecord(observation) ? observation[name] : undefined;
  return typeof flag === 'boolean' ? flag : null;
}

function strange(outcome: Outcome | null): string[] {
  const reward: unknown = outcome?.reward;
  return typeof reward === 'string' ? [`The reward was ${reward}, which is not a number: the curve leaves it out.`] : [];
}
