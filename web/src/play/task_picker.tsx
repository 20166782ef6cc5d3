import { useEffect, useRef, useState } from 'preact/hooks';
import { SERVER } from '../api/server';
import type { Json } from '../api/json';
import { inWords } from './action_form';

/** What a reset takes to begin a task of a split: a certain one, or one that the environment chooses. */
export interface Task {
  split: string;
  index?: number;
}

interface Props {
  /** The environment's name in the routes of its tasks. */
  environment: string;
  disabled: boolean;
  onPick: (task: Task | null) => void;
  /** The tasks cannot be listed, for this reason. */
  onFailed: (reason: string) => void;
}

// Of a longer split, the first ones are listed; a field takes the number of any.
const MOST_LISTED = 200;
const MOST_WORDS = 70;

/** The splits and tasks of an environment, to choose from. */
export function TaskPicker({ environment, disabled, onPick, onFailed }: Props) {
  const [splits, setSplits] = useState<string[]>([]);
  const [split, setSplit] = useState('');
  const [tasks, setTasks] = useState<Json[]>([]);
  const [count, setCount] = useState(0);
  const [index, setIndex] = useState<number | null>(null);
  const latest = useRef('');
  const path = encodeURIComponent(environment);

  useEffect(() => {
    SERVER.ask<{ name: string }[]>(`${path}/splits`).then((found) => setSplits(found.map((each) => each.name)), (error: Error) => onFailed(error.message));
  }, [path]);
  const choose = async (name: string) => {
    latest.current = name;
    setSplit(name);
    setIndex(null);
    setTasks([]);
    setCount(0);
    onPick(name === '' ? null : { split: name });
    if (name === '') return;
    try {
      const { num_tasks } = await SERVER.ask<{ num_tasks: number }>(`${path}/num_tasks`, { method: 'POST', body: { split: name } });
      const body = { split: name, start: 0, stop: Math.min(num_tasks, MOST_LISTED) };
      const found = await SERVER.ask<{ tasks: Json[] }>(`${path}/task_range`, { method: 'POST', body });
      if (latest.current !== name) return; // another split was chosen meanwhile
      setCount(num_tasks);
      setTasks(found.tasks);
    } catch (error) {
      if (latest.current === name) onFailed((error as Error).message);
    }
  };
  const pick = (next: number | null) => {
    setIndex(next);
    onPick(next === null ? { split } : { split, index: next });
  };
  return (
    <div class="tasks" role="group" aria-label="Task">
      <div class="field">
        <label for="split">Split</label>
        <select id="split" value={split} disabled={disabled} onChange={(event) => void choose(event.currentTarget.value)}>
          <option value="">any</option>
          {splits.map((name) => <option value={name}>{name}</option>)}
        </select>
      </div>
      {count > 0 && (
        <div class="field">
          <label for="task">Task</label>
          <select id="task" value={index === null ? '' : String(index)} disabled={disabled} onChange={(event) => pick(event.currentTarget.value === '' ? null : Number(event.currentTarget.value))}>
            <option value="">any of {count}</option>
            {tasks.map((task, at) => <option value={String(at)}>{at}: {inWords(task).slice(0, MOST_WORDS)}</option>)}
            {index !== null && index >= tasks.length && <option value={String(index)}>{index}</option>}
          </select>
        </div>
      )}
      {count > tasks.length && (
        <div class="field">
          <label for="task-number">Its number, up to {count - 1}</label>
          <input
            id="task-number"
            type="number"
            min={0}
            max={count - 1}
            value={index ?? ''}
            disabled={disabled}
            onChange={({ currentTarget: field }) => pick(field.value !== '' && field.checkValidity() ? field.valueAsNumber : null)}
          />
        </div>
      )}
    </div>
  );
}
