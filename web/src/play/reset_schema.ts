import type { RJSFSchema } from '@rjsf/utils';

const FREE = 'kwargs';

/** What `reset` takes, seed first; further arguments that it takes by any name are an object of their own. */
export function withReset(schema: RJSFSchema, seedable: boolean): RJSFSchema {
  const { seed, episode_id, ...rest } = (schema.properties ?? {}) as Record<string, RJSFSchema>;
  const properties: Record<string, RJSFSchema> = {};
  if (seedable && seed) properties.seed = { ...seed, title: 'Seed', description: undefined };
  for (const [name, part] of Object.entries(rest)) if (part) properties[name] = part;
  if (episode_id) properties.episode_id = { ...episode_id, title: 'Episode id' };
  if (schema.additionalProperties !== false) {
    properties[FREE] = { type: 'object', title: 'Further arguments', properties: {}, additionalProperties: true };
  }
  return { ...schema, title: undefined, description: undefined, type: 'object', properties, additionalProperties: false };
}

/** The arguments of a reset, as its form gave them. */
export function argumentsOf<T extends object>(values: T): Record<string, T[keyof T]> {
  const { [FREE]: free, ...rest } = values as Record<string, T[keyof T]>;
  return { ...rest, ...(typeof free === 'object' && free !== null ? (free as object) : {}) };
}

/** Whether a reset can be given a task by its split and index. */
export function takesTasks(schema: RJSFSchema): boolean {
  const { split, index } = (schema.properties ?? {}) as Record<string, RJSFSchema>;
  return schema.additionalProperties !== false || (split !== undefined && index !== undefined);
}

/** The same arguments without those that a list of tasks gives. */
export function withoutTask(schema: RJSFSchema): RJSFSchema {
  const { split: _, index: __, ...rest } = (schema.properties ?? {}) as Record<string, RJSFSchema>;
  const required = schema.required?.filter((name) => name in rest);
  return { ...schema, properties: rest, required };
}
