import { ariaDescribedByIds, getInputProps, type BaseInputTemplateProps } from '@rjsf/utils';

/** Every input that is not text of its own kind: numbers with their bounds, dates, colours. */
export function PlainInput(props: BaseInputTemplateProps) {
  const { id, value, required, disabled, readonly, autofocus, schema, type, options, rawErrors, onChange, placeholder } = props;
  const input = getInputProps(schema, type, options);
  const numeric = schema.type === 'number' || schema.type === 'integer';
  return (
    <input
      id={id}
      name={id}
      {...(input as object)}
      // Bounds are told in words below, and checked with everything else.
      inputMode={schema.type === 'integer' ? 'numeric' : numeric ? 'decimal' : undefined}
      value={value ?? ''}
      disabled={disabled}
      readOnly={readonly}
      autofocus={autofocus}
      placeholder={placeholder || (schema.default === undefined && !required ? 'none' : undefined)}
      aria-required={required}
      aria-invalid={(rawErrors?.length ?? 0) > 0}
      aria-describedby={ariaDescribedByIds(id)}
      onInput={(event) => onChange(event.currentTarget.value === '' ? options.emptyValue : event.currentTarget.value)}
    />
  );
}

/** The limits of a value in words: `0 to 10`. */
export function boundsOf(schema: { [name: string]: unknown }): string | null {
  const low = schema.minimum ?? schema.exclusiveMinimum;
  const high = schema.maximum ?? schema.exclusiveMaximum;
  const over = schema.exclusiveMinimum !== undefined ? 'over ' : '';
  const under = schema.exclusiveMaximum !== undefined ? 'under ' : '';
  const parts: string[] = [];
  if (low !== undefined && high !== undefined) parts.push(over || under ? `${over || 'from '}${low}, ${under || 'up to '}${high}` : `${low} to ${high}`);
  else if (low !== undefined) parts.push(over ? `over ${low}` : `${low} or more`);
  else if (high !== undefined) parts.push(under ? `under ${high}` : `${high} or less`);
  if (schema.multipleOf !== undefined) parts.push(`multiple of ${schema.multipleOf}`);
  // A limit that nobody reaches by typing is told when it is passed.
  const wide = !schema.minLength && Number(schema.maxLength ?? 0) > 200;
  if ((schema.minLength !== undefined || schema.maxLength !== undefined) && !wide) {
    parts.push(countOf(schema.minLength, schema.maxLength, 'characters'));
  }
  if (schema.minItems !== undefined || schema.maxItems !== undefined) {
    parts.push(countOf(schema.minItems, schema.maxItems, 'items'));
  }
  if (typeof schema.pattern === 'string') parts.push(`like ${schema.pattern}`);
  return parts.join(', ') || null;
}

function countOf(least: unknown, most: unknown, what: string): string {
  if (most === undefined) return `at least ${least} ${what}`;
  if (!least) return `up to ${most} ${what}`;
  return least === most ? `${most} ${what}` : `${least} to ${most} ${what}`;
}
