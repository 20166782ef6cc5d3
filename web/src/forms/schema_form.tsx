import Form from '@rjsf/core/lib/components/Form.js';
import getDefaultRegistry from '@rjsf/core/lib/getDefaultRegistry.js';
import type { ErrorSchema, FieldProps, RJSFSchema } from '@rjsf/utils';
import type { ComponentChildren } from 'preact';
import { useMemo, useRef, useState } from 'preact/hooks';
import type { Fault } from 'openenv';
import type { JsonObject } from '../api/json';
import { Boundary } from '../shell/boundary';
import { JsonField, type FormContext } from './json_field';
import { asked, isFree } from './normal';
import { templates } from './templates';
import { TextWidget } from './text_widget';
import { validator } from './validator';

interface Props {
  /** Names the ids of its fields. */
  name: string;
  /** null: nothing is known of them. */
  schema: RJSFSchema | null;
  disabled?: boolean;
  faults?: Fault[];
  onSubmit: (values: JsonObject) => void;
  onChange?: (values: JsonObject) => void;
  children?: ComponentChildren;
}

const Default = getDefaultRegistry().fields.SchemaField as unknown as (props: FieldProps) => ComponentChildren;

function AnyField(props: FieldProps) {
  const schema = props.registry.schemaUtils.retrieveSchema(props.schema, props.formData);
  const root = props.fieldPathId.path.length === 0;
  if (!root && isFree(schema) && !('__additional_property' in props.schema)) return <JsonField {...props} schema={schema} />;
  return <Default {...props} />;
}

const WHOLE = 'whole';
const fields = { SchemaField: AnyField } as never;
// An object that may be left out is there only once it was added.
const uiSchema = { 'ui:globalOptions': { enableOptionalDataFieldForType: ['object'] } } as never;
const widgets = { TextWidget, TextareaWidget: TextWidget } as never;

/** A form made from a JSON Schema. It is checked when it is sent, and by the server again, whose faults are shown
 * beside the fields too. */
export function SchemaForm(props: Props) {
  const name = useMemo(() => JSON.stringify(props.schema), [props.schema]);
  return (
    // A schema that no form can be made of: its values are typed as JSON.
    <Boundary key={name} otherwise={() => <FormOf {...props} schema={null} />}>
      <FormOf {...props} />
    </Boundary>
  );
}

function FormOf({ name, schema, disabled, faults, onSubmit, onChange, children }: Props) {
  const parts = useMemo(() => asked(schema ?? {}), [schema]);
  const free = isWhollyFree(parts);
  const wanted = useMemo(() => (free ? wholeOf(parts) : parts), [parts, free]);
  const given = (data: unknown): JsonObject => plain(free ? (data as JsonObject | undefined)?.[WHOLE] : data);
  const [values, setValues] = useState<JsonObject>();
  const context = useRef<FormContext>({ unread: new Set() }).current;
  const element = useRef<HTMLDivElement>(null);
  const extra = useMemo(() => (faults?.length ? errorSchema(faults) : undefined), [faults]);
  const empty = Object.keys(wanted.properties ?? {}).length === 0 && !wanted.anyOf && !wanted.oneOf && !wanted.$ref;

  return (
    <div
      ref={element}
      class="form"
      onKeyDown={(event) => {
        if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
          event.preventDefault();
          element.current?.querySelector('form')?.requestSubmit();
        }
      }}
    >
      <Form
        schema={wanted}
        validator={validator}
        idPrefix={name}
        formData={values}
        formContext={context}
        uiSchema={uiSchema}
        fields={fields}
        widgets={widgets}
        templates={templates as never}
        extraErrors={extra}
        extraErrorsBlockSubmit={false}
        disabled={disabled}
        showErrorList={false}
        noHtml5Validate
        focusOnFirstError
        experimental_defaultFormStateBehavior={{ emptyObjectFields: 'skipEmptyDefaults', allOf: 'skipDefaults' }}
        onChange={({ formData }) => {
          setValues(formData as JsonObject);
          onChange?.(given(formData));
        }}
        onError={() => undefined} // said beside the fields; without this, on the console too
        onSubmit={({ formData }) => {
          const first = [...context.unread][0];
          if (first === undefined) onSubmit(given(formData));
          else document.getElementById(first)?.focus();
        }}
      >
        {empty && <p class="hint">Nothing to fill in.</p>}
        {children}
      </Form>
    </div>
  );
}

/** An object of which nothing is known is typed as a whole. */
function wholeOf(schema: RJSFSchema): RJSFSchema {
  const whole = { type: 'object', title: schema.title ?? 'Fields', properties: {}, additionalProperties: true } as const;
  return { type: 'object', properties: { [WHOLE]: whole }, additionalProperties: false };
}

function isWhollyFree(schema: RJSFSchema): boolean {
  if (!isFree(schema) || schema.additionalProperties === false) return false;
  return schema.additionalProperties === true || schema.properties === undefined;
}

/** The values without those that were left empty. */
function plain(data: unknown): JsonObject {
  return (data === undefined ? {} : JSON.parse(JSON.stringify(data))) as JsonObject;
}

function errorSchema(faults: Fault[]): ErrorSchema {
  const whole: ErrorSchema = {};
  for (const { loc, msg } of faults) {
    let place = whole as Record<string, ErrorSchema>;
    const path = loc[0] === 'body' ? loc.slice(1) : loc;
    for (const part of path[0] === 'action' ? path.slice(1) : path) {
      if (part === '__proto__') break; // of every object
      place[String(part)] ??= {};
      place = place[String(part)] as Record<string, ErrorSchema>;
    }
    const errors = place as ErrorSchema;
    errors.__errors = [...(errors.__errors ?? []), msg];
  }
  return whole;
}
