import type { RJSFSchema } from '@rjsf/utils';
import { isRecord, type Json } from '../api/json';

export interface Picture {
  path: string;
  url: string;
}

const MOST = 16;
const DEEPEST = 6;
// How base64 of these files begins.
const BEGINNINGS: [string, string][] = [
  ['iVBORw0KGgo', 'image/png'],
  ['/9j/', 'image/jpeg'],
  ['R0lGOD', 'image/gif'],
  ['UklGR', 'image/webp'],
];
const SHORTEST = 60;
const BASE64 = /^[A-Za-z0-9+/\s]+={0,2}\s*$/;

/** The address of a text that is an image: a data: URL, base64 of a known kind, or what its schema says it is. */
export function pictureOf(value: Json, schema?: RJSFSchema): string | null {
  if (typeof value !== 'string') return null;
  if (/^data:image\/[a-z0-9.+-]+[;,]/i.test(value)) return value;
  const said = schema?.contentMediaType;
  if (said?.startsWith('image/') && value && BASE64.test(value.slice(0, 200))) return `data:${said};base64,${value}`;
  if (value.length < SHORTEST) return null;
  const known = BEGINNINGS.find(([start]) => value.startsWith(start));
  return known && BASE64.test(value) ? `data:${known[1]};base64,${value}` : null;
}

/** Every image of an observation, with where it was found. */
export function picturesOf(value: Json, schema?: RJSFSchema): Picture[] {
  const found: Picture[] = [];
  const look = (part: Json, path: string, kind: RJSFSchema | undefined, depth: number) => {
    if (found.length >= MOST || depth > DEEPEST) return;
    const url = pictureOf(part, kind);
    if (url !== null) found.push({ path, url });
    else if (Array.isArray(part)) part.slice(0, MOST).forEach((item, index) => look(item, `${path}[${index}]`, kind?.items as RJSFSchema, depth + 1));
    else if (isRecord(part)) {
      for (const [name, item] of Object.entries(part)) {
        look(item, path ? `${path}.${name}` : name, kind?.properties?.[name] as RJSFSchema | undefined, depth + 1);
      }
    }
  };
  look(value, '', schema, 0);
  return found;
}
