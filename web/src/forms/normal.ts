import type { RJSFSchema } from '@rjsf/utils';

type Schema = RJSFSchema;

/** Fields of every action that no form needs: facts beside it. */
const BESIDE = 'metadata';

/**
 * A schema as a form can ask for it: what may be null may be left empty, what can have one value only is not asked
 * for, and titles that only repeat a name stay away.
 */
export function asked(schema: Schema): Schema {
  const whole = structuredClone(schema);
  const free = whole.properties?.[BESIDE];
  if (whole.properties && typeof free === 'object' && !(whole.required ?? []).includes(BESIDE) && !free.properties) {
    delete whole.properties[BESIDE];
  }
  return walk(withoutStrays(whole, whole));
}

/** A reference to nothing, or `true`, is anything; `false` is nothing. */
function withoutStrays<T>(part: T, root: Schema): T {
  if (Array.isArray(part)) return part.map((each) => withoutStrays(each, root)) as T;
  if (typeof part !== 'object' || part === null) return part;
  const found: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(part)) {
    if (name === '$ref' && typeof value === 'string' && !leads(value, root)) continue;
    if (name === 'default' || name === 'const' || name === 'enum' || name === 'examples') found[name] = value;
    else if (name === 'properties' && typeof value === 'object' && value !== null) {
      const fields = Object.entries(value).filter(([, field]) => field !== false);
      found[name] = Object.fromEntries(fields.map(([key, field]) => [key, field === true ? {} : withoutStrays(field, root)]));
    } else if (name === 'items' && value === true) found[name] = {};
    else if (['anyOf', 'oneOf', 'allOf', 'prefixItems'].includes(name) && Array.isArray(value)) {
      found[name] = value.map((each) => (each === true ? {} : withoutStrays(each, root)));
    } else found[name] = withoutStrays(value, root);
  }
  return found as T;
}

function leads(reference: string, root: Schema): boolean {
  if (!reference.startsWith('#')) return false;
  let place: unknown = root;
  for (const part of reference.slice(1).split('/').filter(Boolean)) {
    const name = decodeURIComponent(part).replaceAll('~1', '/').replaceAll('~0', '~');
    place = typeof place === 'object' && place !== null ? (place as Record<string, unknown>)[name] : undefined;
  }
  return place !== undefined;
}

function walk(schema: Schema): Schema {
  let found = withoutNull(schema);
  if (found.properties) {
    const fields = each(found.properties as Record<string, Schema>);
    for (const [name, field] of Object.entries(fields)) {
      // The title of what it refers to is that of a type.
      if (field.$ref && !field.title) fields[name] = { ...field, title: titled(name) };
    }
    found = { ...found, properties: fields };
  }
  for (const name of ['$defs', 'definitions'] as const) {
    if (found[name]) found = { ...found, [name]: each(found[name] as Record<string, Schema>) };
  }
  for (const name of ['anyOf', 'oneOf', 'allOf', 'prefixItems'] as const) {
    const parts = found[name];
    if (Array.isArray(parts)) found = { ...found, [name]: parts.map((part) => one(part as Schema)) };
  }
  if (found.items) found = { ...found, items: Array.isArray(found.items) ? found.items.map((part) => one(part as Schema)) : one(found.items as Schema) };
  if (typeof found.additionalProperties === 'object') found = { ...found, additionalProperties: one(found.additionalProperties as Schema) };
  return found;
}

const one = (schema: Schema): Schema => (typeof schema === 'object' && schema !== null ? walk(schema) : schema);

function each(schemas: Record<string, Schema>): Record<string, Schema> {
  return Object.fromEntries(Object.entries(schemas).map(([name, schema]) => [name, one(schema)]));
}

function titled(name: string): string {
  const words = name.replaceAll('_', ' ');
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** `X | None` is X that may be left out. */
function withoutNull(schema: Schema): Schema {
  const union = schema.anyOf ?? schema.oneOf;
  if (!Array.isArray(union)) return schema;
  const rest = union.filter((part) => !(typeof part === 'object' && part.type === 'null'));
  if (rest.length === union.length) return schema;
  const { anyOf: _, oneOf: __, default: given, ...outer } = schema;
  const kept = given === null || given === undefined ? outer : { ...outer, default: given };
  const only = rest[0];
  if (rest.length === 1 && typeof only === 'object') return { ...only, ...kept };
  return { ...kept, anyOf: rest };
}

/** Whether only an editor for JSON can ask for it: anything at all, or an object of any fields. */
export function isFree(schema: Schema): boolean {
  if (schema.enum || schema.const !== undefined || schema.$ref || schema.anyOf || schema.oneOf || schema.allOf) return false;
  if (schema.type === undefined) return !schema.properties && !schema.items;
  if (Array.isArray(schema.type)) return true;
  if (schema.type === 'object') return !schema.properties || Object.keys(schema.properties).length === 0;
  if (schema.type === 'array') {
    const { items } = schema;
    return schema.prefixItems !== undefined || items === undefined || items === true || (typeof items === 'object' && !Array.isArray(items) && Object.keys(items).length === 0);
  }
  return false;
}
