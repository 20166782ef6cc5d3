import { useEffect, useRef, useState } from 'preact/hooks';
import { FILTERS, type Go, type View } from './address';
import type { Folder } from './records';

const AFTER_TYPING_MS = 250;
const NARROW = '(max-width: 700px)';

/** The fields that choose rollouts, and the text that is searched in them. */
export function Filters({ view, go, folder }: { view: View; go: Go; folder: Folder }) {
  const { filter } = view;
  const set = (name: string, values: string[]) => {
    const next = { ...filter, [name]: values };
    if (values.every((value) => value === '')) delete next[name];
    go({ filter: next }, true);
  };
  const field = (name: string) => ({ name, value: filter[name]?.[0] ?? '', onValue: (value: string) => set(name, [value]) });
  const chosen = FILTERS.filter((name) => filter[name]).length + (view.text ? 1 : 0);
  const runs = folder.runs.filter((run) => !filter.run || filter.run.includes(run.run));
  const outcomes = Object.keys(folder.outcomes)
    .map((outcome) => ({ outcome, count: runs.reduce((sum, run) => sum + (run.outcomes[outcome] ?? 0), 0) }))
    .filter(({ outcome, count }) => count > 0 || filter.outcome?.includes(outcome));
  return (
    <details class="filters" open={!matchMedia(NARROW).matches || undefined}>
      <summary>Filter{chosen > 0 && <span class="badge">{chosen}</span>}</summary>
      <form role="search" onSubmit={(event) => event.preventDefault()}>
        {view.list === 'rollouts' && (
          <div class="field wide">
            <label for="text">Text</label>
            <Input name="text" type="search" value={view.text} placeholder="in messages, calls and observations" onValue={(text) => go({ text }, true)} />
          </div>
        )}
        {folder.runs.length > 1 && (
          <div class="field">
            <label for="run">Run</label>
            <select id="run" value={filter.run?.[0] ?? ''} onChange={(event) => set('run', [event.currentTarget.value])}>
              <option value="">all {folder.runs.length}</option>
              {folder.runs.map((run) => <option value={run.run}>{run.run}</option>)}
            </select>
          </div>
        )}
        <div class="field">
          <label for="task">Task</label>
          <Input type="search" placeholder="part of its name" {...field('task')} />
        </div>
        <Bounds label="Return" low={field('min_reward')} high={field('max_reward')} step="any" />
        <Bounds label="Turns" low={field('min_turns')} high={field('max_turns')} step="1" />
        <div class="chips wide" role="group" aria-label="Outcomes">
          {outcomes.map(({ outcome, count }) => {
            const on = filter.outcome ?? [];
            const pressed = on.includes(outcome);
            return (
              <button type="button" class="small" aria-pressed={pressed} onClick={() => set('outcome', pressed ? on.filter((each) => each !== outcome) : [...on, outcome])}>
                <i class={`dot ${kindOf(outcome, folder.outcomes)}`} /> {wordsFor(outcome)} <span class="number">{count.toLocaleString('en')}</span>
              </button>
            );
          })}
          {filter.group && <button type="button" class="small" onClick={() => set('group', [])}>group {filter.group[0]} <span aria-label="remove">×</span></button>}
          {chosen > 0 && <button type="button" class="small" id="clear" onClick={() => go({ filter: {}, text: '' })}>Clear</button>}
        </div>
      </form>
    </details>
  );
}

interface Field {
  name: string;
  value: string;
  onValue: (value: string) => void;
}

function Bounds({ label, low, high, step }: { label: string; low: Field; high: Field; step: string }) {
  return (
    <div class="field bounds" role="group" aria-label={label}>
      <span class="label" aria-hidden="true">{label}</span>
      <Input {...low} type="number" step={step} placeholder="from" label={`${label} from`} />
      <Input {...high} type="number" step={step} placeholder="to" label={`${label} to`} />
    </div>
  );
}

/** A field whose value is used a moment after the last key. */
function Input({ name, value, onValue, label, type: kind, ...more }: Field & { type: 'search' | 'number'; placeholder: string; step?: string; label?: string }) {
  const [typed, setTyped] = useState(value);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(() => {
    clearTimeout(timer.current);
    setTyped(value);
  }, [value]);
  const change = (text: string) => {
    setTyped(text);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onValue(text), AFTER_TYPING_MS);
  };
  return <input id={name} aria-label={label} value={typed} onInput={(event) => change(event.currentTarget.value)} type={kind as 'search'} {...more} />;
}

/** An outcome in words. */
export function wordsFor(outcome: string): string {
  return outcome.replaceAll('_', ' ');
}

/** How an outcome is coloured: `good` for an end of the episode, `cut` for another end with a return, `failed`. */
export function kindOf(outcome: string, outcomes: Record<string, boolean>): string {
  if (outcome === 'terminated') return 'good';
  return outcomes[outcome] ? 'cut' : 'failed';
}
