import { OpenEnvError } from 'openenv';
import { isRecord, type Json } from '../api/json';
import { SERVER } from '../api/server';
import { parseMetrics, type Sample } from './metrics';

export interface SessionLine {
  id: string;
  state: string;
  age_s: number;
  idle_s: number | null;
  steps: number;
  worker: string | null;
  peer: string;
}

/** The server at one moment. A part that may not be seen, or is not kept, says why. */
export interface Reading {
  at: number;
  sessions: SessionLine[] | null;
  samples: Sample[] | null;
  faults: Partial<Record<Part, OpenEnvError>>;
}

type Part = 'sessions' | 'metrics';
// Refused, or not there: so it stays, whatever is asked again.
const FINAL = [403, 404];

export async function read(before: Reading | null): Promise<Reading> {
  const faults: Reading['faults'] = {};
  const or = async <T>(part: Part, ask_: () => Promise<T>): Promise<T | null> => {
    const refused = before?.faults[part];
    if (refused && FINAL.includes(refused.status ?? 0)) {
      faults[part] = refused;
      return null;
    }
    try {
      return await ask_();
    } catch (error) {
      if (!(error instanceof OpenEnvError)) throw error;
      faults[part] = error;
      return null;
    }
  };
  const [sessions, samples] = await Promise.all([
    or('sessions', () => SERVER.ask<Json>('sessions').then(linesOf)),
    or('metrics', async () => parseMetrics(await (await SERVER.request('metrics')).text())),
  ]);
  return { at: performance.now() / 1000, sessions, samples, faults };
}

function linesOf(answer: Json): SessionLine[] {
  const lines = isRecord(answer) ? answer.sessions : answer;
  return Array.isArray(lines) ? (lines.filter(isRecord) as unknown as SessionLine[]) : [];
}
