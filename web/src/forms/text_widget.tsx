import { ariaDescribedByIds, type BaseInputTemplateProps, type WidgetProps } from '@rjsf/utils';
import { PlainInput } from './number_input';

const LONG = /\b(message|text|code|content|prompt|body|script|source|answer|markdown|query|command|sql|patch|diff|json)\b/i;
const LONG_FROM = 300;
const MOST_ROWS = 16;

/** A line of text, or an area that grows with it where a field looks like one for long text. */
export function TextWidget(props: WidgetProps) {
  const { id, value, required, disabled, readonly, autofocus, schema, rawErrors, onChange, label, placeholder } = props;
  if (schema.type !== 'string') return <PlainInput {...(props as unknown as BaseInputTemplateProps)} />;
  const shared = {
    id,
    name: id,
    value: value ?? '',
    required: false,
    disabled,
    readOnly: readonly,
    autofocus,
    placeholder: placeholder || exampleOf(schema),
    'aria-required': required,
    'aria-invalid': (rawErrors?.length ?? 0) > 0,
    'aria-describedby': ariaDescribedByIds(id),
    onInput: (event: { currentTarget: { value: string } }) => onChange(event.currentTarget.value || (required ? '' : undefined)),
  };
  if (!isLong(schema, label, value)) return <input type="text" autocomplete="off" {...shared} />;
  const rows = Math.min(MOST_ROWS, Math.max(2, String(value ?? '').split('\n').length));
  return <textarea rows={rows} class={/code|script|sql|json|patch/i.test(label) ? 'code' : undefined} {...shared} />;
}

function isLong(schema: WidgetProps['schema'], label: string, value: unknown): boolean {
  if (schema.format && schema.format !== 'textarea') return false;
  if (schema.format === 'textarea' || schema.contentMediaType?.startsWith('text/')) return true;
  if (schema.maxLength !== undefined) return schema.maxLength > LONG_FROM;
  if (schema.pattern) return false;
  return LONG.test(label) || (typeof value === 'string' && (value.includes('\n') || value.length > LONG_FROM));
}

function exampleOf(schema: WidgetProps['schema']): string | undefined {
  const example = Array.isArray(schema.examples) ? schema.examples[0] : undefined;
  return typeof example === 'string' ? example : undefined;
}
