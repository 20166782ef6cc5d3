import type { RJSFSchema } from '@rjsf/utils';
import type { ComponentChildren } from 'preact';
import { useMemo, useState } from 'preact/hooks';
import type { Fault } from 'openenv';
import { isRecord, type Json, type JsonObject } from '../api/json';
import type { Tool } from '../api/metadata';
import type { Offer } from '../episode/transition';
import { SchemaForm } from '../forms/schema_form';

interface Props {
  schema: RJSFSchema;
  tools: Tool[] | null;
  offers: Offer[];
  busy: boolean;
  disabled: boolean;
  faults: Fault[];
  /** Why no step can be made now. */
  reason: string | null;
  onStep: (action: JsonObject) => void;
  onChange: (action: JsonObject) => void;
}

/** The next action: one that the environment offers, a tool with its arguments, or the fields of an action. */
export function ActionForm({ schema, tools, offers, busy, disabled, faults, reason, onStep, onChange }: Props) {
  const button = (
    <>
      <button type="submit" class="main" id="step-button" disabled={disabled} aria-busy={busy} aria-describedby={reason ? 'step-reason' : undefined}>
        {busy ? 'Stepping…' : 'Step'}
      </button>
      {reason && <p class="hint" id="step-reason">{reason}</p>}
    </>
  );
  return (
    <>
      {offers.length > 0 && (
        <div class="offers" role="group" aria-label="Actions on offer">
          {offers.map((offer) => (
            <button type="button" disabled={disabled || offer.error !== undefined} title={offer.error ?? JSON.stringify(offer.action)} onClick={() => onStep(offer.action)}>
              {String(offer.label)}
            </button>
          ))}
        </div>
      )}
      {tools?.length ? (
        <ToolForm tools={tools} disabled={disabled} faults={faults} onStep={onStep} onChange={onChange}>{button}</ToolForm>
      ) : (
        <SchemaForm name="action" schema={schema} disabled={disabled} faults={faults} onSubmit={onStep} onChange={onChange}>{button}</SchemaForm>
      )}
    </>
  );
}

interface ToolProps {
  tools: Tool[];
  disabled: boolean;
  faults: Fault[];
  onStep: (action: JsonObject) => void;
  onChange: (action: JsonObject) => void;
  children: ComponentChildren;
}

function ToolForm({ tools, disabled, faults, onStep, onChange, children }: ToolProps) {
  const [name, setName] = useState(tools[0]?.name ?? '');
  const tool = tools.find((each) => each.name === name) ?? tools[0];
  const schema = useMemo(() => ({ type: 'object' as const, ...tool?.input_schema, title: undefined, description: undefined }), [tool]);
  if (!tool) return null;
  const call = (given: JsonObject): JsonObject => ({ type: 'call_tool', tool_name: tool.name, arguments: given });
  return (
    <>
      <div class="field">
        <label for="tool">Tool</label>
        <select id="tool" value={tool.name} disabled={disabled} onChange={(event) => setName(event.currentTarget.value)}>
          {tools.map((each) => <option value={each.name}>{each.name}</option>)}
        </select>
        {tool.description && <p class="hint">{tool.description}</p>}
      </div>
      <SchemaForm
        key={tool.name}
        name={`tool-${tool.name}`}
        schema={schema}
        disabled={disabled}
        faults={faults.map((fault) => ({ ...fault, loc: fault.loc.filter((part) => part !== 'arguments') }))}
        onSubmit={(given) => onStep(call(given))}
        onChange={(given) => onChange(call(given))}
      >
        {children}
      </SchemaForm>
    </>
  );
}

/** An action in one line. */
export function inWords(action: Json | undefined): string {
  if (action === undefined) return '';
  if (!isRecord(action)) return JSON.stringify(action);
  if (Object.keys(action).length === 0) return 'nothing given';
  if (typeof action.tool_name === 'string') {
    const given = isRecord(action.arguments) && Object.keys(action.arguments).length ? inWords(action.arguments) : '';
    return `${action.tool_name}(${given})`;
  }
  return Object.entries(action).map(([name, value]) => `${name}=${typeof value === 'string' && value !== '' ? value : JSON.stringify(value)}`).join(', ');
}
