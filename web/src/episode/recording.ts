import { isRecord, type Json } from '../api/json';
import type { Transition } from './transition';

/** Episodes read from a file, and what could not be read. */
export interface Recording {
  transitions: Transition[];
  faults: string[];
}

const MOST_FAULTS = 20;

/** The lines of a recording (JSONL); `render` is what the environment drew. */
export function written(transitions: Transition[]): string {
  return transitions.map(({ shown, ...line }) => `${JSON.stringify(shown?.html ? { ...line, render: shown.html } : line)}\n`).join('');
}

/** Reads a recording as far as it can be read: what is wrong with it is told, the rest is shown. */
export function readRecording(content: string): Recording {
  const transitions: Transition[] = [];
  const faults: string[] = [];
  const lines = content.split('\n');
  const last = lines.length - 1;
  lines.forEach((line, index) => {
    if (!line.trim()) return;
    let value: Json;
    try {
      value = JSON.parse(line) as Json;
    } catch {
      faults.push(
        index === last
          ? `line ${index + 1} is incomplete: the file ends in the middle of it`
          : `line ${index + 1} is not JSON`,
      );
      return;
    }
    const read = readLine(value);
    if (typeof read === 'string') faults.push(`line ${index + 1}: ${read}`);
    else transitions.push(read);
  });
  for (const gap of gaps(transitions)) faults.push(gap);
  if (faults.length > MOST_FAULTS) faults.splice(MOST_FAULTS, faults.length, `and ${faults.length - MOST_FAULTS} more`);
  return { transitions, faults };
}

function readLine(value: Json): Transition | string {
  if (!isRecord(value)) return 'not an object: a recording has one transition a line';
  if (!('observation' in value)) return 'it has no "observation": is this an episode of openenv?';
  if (typeof value.step !== 'number' || !Number.isInteger(value.step) || value.step < 0) return '"step" is not a number of steps';
  return {
    episode_id: text(value.episode_id),
    session_id: text(value.session_id),
    step: value.step,
    seed: number(value.seed),
    ...(isRecord(value.arguments) ? { arguments: value.arguments } : {}),
    ...('action' in value ? { action: value.action } : {}),
    observation: value.observation ?? null,
    reward: number(value.reward),
    terminated: flag(value.terminated),
    truncated: flag(value.truncated),
    done: value.done === true,
    time: number(value.time) ?? 0,
    duration_s: number(value.duration_s) ?? 0,
    error: value.error === null || value.error === undefined ? null : (text(value.error) ?? JSON.stringify(value.error)),
    environment: text(value.environment) ?? '',
    versions: isRecord(value.versions) ? (value.versions as Transition['versions']) : {},
    schema: text(value.schema),
    ...(typeof value.render === 'string' ? { shown: { html: value.render, actions: [], notes: [], state: null } } : {}),
  };
}

function gaps(transitions: Transition[]): string[] {
  const found: string[] = [];
  for (const episode of byEpisode(transitions)) {
    let next = 0;
    for (const { step, episode_id } of episode) {
      if (step > next) found.push(`${step - next} transitions are missing before step ${step} of episode ${episode_id}`);
      next = step + 1;
    }
  }
  return found;
}

/** The transitions of each episode, in the order in which they began. A server mixes the lines of its sessions, and
 * clients may give one id to many episodes: a reset begins the next one of its session. */
export function byEpisode(transitions: Transition[]): Transition[][] {
  const episodes: Transition[][] = [];
  const going = new Map<string, Transition[]>();
  for (const transition of transitions) {
    const name = `${transition.session_id} ${transition.episode_id}`;
    let lines = going.get(name);
    if (!lines || transition.step === 0) {
      lines = [];
      going.set(name, lines);
      episodes.push(lines);
    }
    lines.push(transition);
  }
  return episodes;
}

const text = (value: Json | undefined) => (typeof value === 'string' ? value : null);
const number = (value: Json | undefined) => (typeof value === 'number' ? value : null);
const flag = (value: Json | undefined) => (typeof value === 'boolean' ? value : null);
