import type { FieldProps } from '@rjsf/utils';
import { useEffect, useState } from 'preact/hooks';

/** What fields tell their form: those whose text is no JSON yet. */
export interface FormContext {
  unread: Set<string>;
}

/** Takes any JSON as it is typed; what is no JSON yet stays here, and is said. */
export function JsonField(props: FieldProps) {
  const { fieldPathId, formData, onChange, schema, disabled, readonly, name, required, registry } = props;
  const { unread } = registry.formContext as FormContext;
  const [text, setText] = useState(() => (formData === undefined ? '' : JSON.stringify(formData, null, 2)));
  const [fault, setFault] = useState<string | null>(null);
  const id = fieldPathId.$id;
  useEffect(() => () => void unread.delete(id), [id, unread]);

  const type = (next: string) => {
    setText(next);
    try {
      const value: unknown = next.trim() ? JSON.parse(next) : undefined;
      setFault(null);
      unread.delete(id);
      onChange(value, fieldPathId.path);
    } catch (error) {
      setFault(error instanceof Error ? error.message : 'no JSON');
      unread.add(id);
    }
  };

  const faults = fault === null ? (props.rawErrors ?? []) : [fault];
  const label = schema.title ?? name;
  return (
    <div class="field">
      <label for={id}>
        {label || 'Value'}
        {required && <span class="needed" aria-hidden="true"> *</span>} <span class="kind">JSON</span>
      </label>
      {schema.description && (
        <p class="hint" id={`${id}__description`}>
          {schema.description}
        </p>
      )}
      <textarea
        id={id}
        class="code"
        rows={Math.min(12, Math.max(2, text.split('\n').length))}
        spellcheck={false}
        value={text}
        placeholder={schema.type === 'object' ? '{}' : schema.type === 'array' ? '[]' : ''}
        disabled={disabled || readonly}
        aria-invalid={faults.length > 0}
        aria-describedby={`${id}__description ${id}__error`}
        onInput={(event) => type(event.currentTarget.value)}
      />
      <div id={`${id}__error`}>
        {faults.map((each) => (
          <p class="fault">{each}</p>
        ))}
      </div>
    </div>
  );
}
