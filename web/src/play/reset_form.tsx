import type { RJSFSchema } from '@rjsf/utils';
import { useMemo } from 'preact/hooks';
import type { Fault } from '../api/failure';
import type { JsonObject } from '../api/json';
import { SchemaForm } from '../forms/schema_form';
import { withReset } from './reset_schema';

interface Props {
  schema: RJSFSchema;
  seedable: boolean;
  busy: boolean;
  disabled: boolean;
  faults: Fault[];
  again: boolean;
  onReset: (given: JsonObject) => void;
}

/** Begins an episode. */
export function ResetForm({ schema, seedable, busy, disabled, faults, again, onReset }: Props) {
  const wanted = useMemo(() => withReset(schema, seedable), [schema, seedable]);
  return (
    <SchemaForm name="reset" schema={wanted} disabled={disabled} faults={faults} onSubmit={onReset}>
      {!seedable && <p class="hint">This environment takes no seed.</p>}
      <button type="submit" class={again ? '' : 'main'} id="reset-button" disabled={disabled} aria-busy={busy}>
        {busy ? 'Resetting…' : again ? 'Reset: a new episode' : 'Reset: begin an episode'}
      </button>
    </SchemaForm>
  );
}
