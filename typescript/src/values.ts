import { UsageError } from './errors.ts';

type TypedArray =
  | Int8Array
  | Uint8Array
  | Int16Array
  | Uint16Array
  | Int32Array
  | Uint32Array
  | BigInt64Array
  | BigUint64Array
  | Float32Array
  | Float64Array;

/** An array of numbers, as environments send it in a field without a declared array. */
export class NdArray {
  /**
   * @param dtype Element type: `<f4`, `|u1`, ... as in the protocol.
   * @param shape Length of each axis.
   * @param data The elements in C order; the bytes of types that JavaScript does not have.
   */
  constructor(
    readonly dtype: string,
    readonly shape: number[],
    readonly data: TypedArray,
  ) {}
}

/** A value that was written before. */
export class Written {
  constructor(readonly text: string) {}
}

const KINDS = {
  '|i1': Int8Array,
  '|u1': Uint8Array,
  '<i2': Int16Array,
  '<u2': Uint16Array,
  '<i4': Int32Array,
  '<u4': Uint32Array,
  '<i8': BigInt64Array,
  '<u8': BigUint64Array,
  '<f4': Float32Array,
  '<f8': Float64Array,
};
const ESCAPED = new Set(['$bytes', '$array', '$object']);
const WORDS = /"(?:[^"\\]|\\.)*"|-?Infinity|NaN/g;

/** Writes a message as the JSON of protocol v2.
 * @throws UsageError It contains a value that JSON has no form for.
 */
export function write(value: unknown): string {
  switch (typeof value) {
    case 'string':
      return JSON.stringify(value);
    case 'number':
    case 'boolean':
    case 'bigint':
      return String(value);
    case 'object':
      return value === null ? 'null' : writeObject(value);
    default:
      throw new UsageError(`a ${typeof value} cannot be sent: it must be a value of JSON, bytes or an array`);
  }
}

function writeObject(value: object): string {
  if (value instanceof Written) return value.text;
  if (Array.isArray(value)) return `[${value.map((each) => (each === undefined ? 'null' : write(each))).join(',')}]`;
  if (value instanceof Uint8Array) return `{"$bytes":"${toBase64(value)}"}`;
  if (value instanceof NdArray) return writeArray(value.dtype, value.shape, value.data);
  const dtype = Object.entries(KINDS).find(([, kind]) => value instanceof kind)?.[0];
  if (dtype !== undefined) return writeArray(dtype, [(value as TypedArray).length], value as TypedArray);
  if (value instanceof Date) return JSON.stringify(value);
  const fields = Object.entries(value).filter(([, each]) => each !== undefined);
  const text = `{${fields.map(([name, each]) => `${JSON.stringify(name)}:${write(each)}`).join(',')}}`;
  return fields.length === 1 && ESCAPED.has(fields[0]![0]) ? `{"$object":${text}}` : text;
}

function writeArray(dtype: string, shape: number[], data: TypedArray): string {
  const bytes = toBase64(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
  return JSON.stringify({ $array: { dtype, shape, data: bytes } });
}

/** Reads a message in the JSON of protocol v2.
 * @throws SyntaxError It is not JSON.
 */
export function read(text: string): unknown {
  let plain: unknown;
  let special = text.includes('"$');
  try {
    plain = JSON.parse(text);
  } catch {
    // NaN and infinity are bare words. No array on the wire is a word, so these two forms differ.
    plain = JSON.parse(text.replace(WORDS, (found) => (found.startsWith('"') ? found : `{"$array":"${found}"}`)));
    special = true;
  }
  return special ? restore(plain) : plain;
}

function restore(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(restore);
  if (typeof value !== 'object' || value === null) return value;
  const fields = Object.entries(value);
  if (fields.length === 1) {
    const [name, content] = fields[0]!;
    if (name === '$bytes') return fromBase64(content as string);
    if (name === '$array') return typeof content === 'string' ? Number(content) : arrayOf(content as ArrayFields);
    if (name === '$object' && typeof content === 'object' && content !== null && !Array.isArray(content)) return restoreFields(content);
  }
  return restoreFields(value);
}

function restoreFields(value: object): object {
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, restore(each)]));
}

interface ArrayFields {
  dtype: string;
  shape: number[];
  data: string;
}

function arrayOf({ dtype, shape, data }: ArrayFields): NdArray {
  const bytes = fromBase64(data);
  const kind = KINDS[dtype as keyof typeof KINDS];
  return new NdArray(dtype, shape, kind === undefined ? bytes : new kind(bytes.buffer));
}

function toBase64(bytes: Uint8Array): string {
  let text = '';
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}

function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}
