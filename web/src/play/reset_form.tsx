import type { RJSFSchema } from '@rjsf/utils';
import { useMemo, useState } from 'preact/hooks';
import type { Fault } from 'openenv';
import type { JsonObject } from '../api/json';
import { SchemaForm } from '../forms/schema_form';
import { takesTasks, withReset, withoutTask } from './reset_schema';
import { TaskPicker, type Task } from './task_picker';

interface Props {
  schema: RJSFSchema;
  seedable: boolean;
  /** The environment whose tasks are listed; null if it has none. */
  tasksOf: string | null;
  busy: boolean;
  disabled: boolean;
  faults: Fault[];
  again: boolean;
  onReset: (given: JsonObject) => void;
}

/** Begins an episode. */
export function ResetForm({ schema, seedable, tasksOf, busy, disabled, faults, again, onReset }: Props) {
  const [task, setTask] = useState<Task | null>(null);
  const [unlisted, setUnlisted] = useState<string | null>(null);
  // Where the lists cannot be had, the fields are there as for every other argument.
  const listed = tasksOf !== null && unlisted === null && takesTasks(schema);
  const wanted = useMemo(() => withReset(listed ? withoutTask(schema) : schema, seedable), [schema, seedable, listed]);
  return (
    <>
      {listed && (
        <TaskPicker environment={tasksOf} disabled={disabled} onPick={setTask} onFailed={(reason) => { setTask(null); setUnlisted(reason); }} />
      )}
      {unlisted !== null && <p class="hint" role="alert">The tasks could not be listed: {unlisted}</p>}
      <SchemaForm name="reset" schema={wanted} disabled={disabled} faults={faults} onSubmit={(given) => onReset({ ...given, ...task })}>
        {!seedable && <p class="hint">This environment does not take a seed.</p>}
        <button type="submit" class={again ? '' : 'main'} id="reset-button" disabled={disabled} aria-busy={busy}>
          {busy ? 'Resetting…' : again ? 'Reset: a new episode' : 'Reset: begin an episode'}
        </button>
      </SchemaForm>
    </>
  );
}
