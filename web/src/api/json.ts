export type Json = null | boolean | number | string | Json[] | JsonObject;
export interface JsonObject {
  [name: string]: Json;
}

export function isRecord(value: unknown): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** How much memory a value holds, roughly: the length of its text. */
export function sizeOf(value: unknown): number {
  return value === undefined ? 0 : JSON.stringify(value)?.length ?? 0;
}
