import type { RJSFSchema } from '@rjsf/utils';
import { useState } from 'preact/hooks';
import { isRecord, sizeOf, type Json, type JsonObject } from '../api/json';
import { pictureOf } from './images';

const LONG_TEXT = 2000;
const MOST_ITEMS = 100;
const DEEPEST = 8;

/** A value as people read it: fields by name, tables for rows of the same fields, text as it is. */
export function Value({ value, schema, depth = 0 }: { value: Json; schema?: RJSFSchema; depth?: number }) {
  if (value === null) return <span class="none">none</span>;
  if (typeof value === 'boolean') return <span class="flag">{value ? 'yes' : 'no'}</span>;
  if (typeof value === 'number') return <span class="number">{String(value)}</span>;
  if (typeof value === 'string') {
    const picture = pictureOf(value, schema);
    return picture ? <img class="picture" src={picture} alt="observation" /> : <Text text={value} />;
  }
  if (depth > DEEPEST) return <code>{JSON.stringify(value).slice(0, LONG_TEXT)}</code>;
  return Array.isArray(value) ? <List items={value} schema={schema} depth={depth} /> : <Fields fields={value} schema={schema} depth={depth} />;
}

export function Fields({ fields, schema, depth = 0 }: { fields: JsonObject; schema?: RJSFSchema; depth?: number }) {
  // Every observation has a place for facts beside it; most have none.
  const names = Object.keys(fields).filter((name) => depth > 0 || name !== 'metadata' || sizeOf(fields[name]) > 2);
  if (names.length === 0) return <span class="none">empty</span>;
  return (
    <dl class="fields">
      {names.map((name) => (
        <div>
          <dt>{name}</dt>
          <dd>
            <Value value={fields[name] ?? null} schema={schema?.properties?.[name] as RJSFSchema | undefined} depth={depth + 1} />
          </dd>
        </div>
      ))}
    </dl>
  );
}

function Text({ text }: { text: string }) {
  const [whole, setWhole] = useState(false);
  if (text === '') return <span class="none">empty text</span>;
  const short = whole ? text : text.slice(0, LONG_TEXT);
  const block = text.includes('\n');
  return (
    <>
      {block ? <pre>{short}</pre> : <span class="text">{short}</span>}
      {short.length < text.length && (
        <button type="button" class="small" onClick={() => setWhole(true)}>
          {text.length - short.length} more characters
        </button>
      )}
    </>
  );
}

function List({ items, schema, depth }: { items: Json[]; schema?: RJSFSchema; depth: number }) {
  if (items.length === 0) return <span class="none">empty</span>;
  const kept = items.slice(0, MOST_ITEMS);
  const more = items.length > kept.length && <p class="hint">{items.length - kept.length} more: see JSON</p>;
  const kind = schema?.items as RJSFSchema | undefined;
  const simple = kept.every((item) => typeof item !== 'object' || item === null);
  if (simple && kept.some((item) => typeof item === 'string' && item.length > 40)) {
    return (
      <>
        <ol class="items">{kept.map((item) => <li><Value value={item} schema={kind} depth={depth + 1} /></li>)}</ol>
        {more}
      </>
    );
  }
  if (simple) {
    return (
      <>
        <span class="row">{kept.map((item) => <span class="cell"><Value value={item} schema={kind} depth={depth + 1} /></span>)}</span>
        {more}
      </>
    );
  }
  if (kept.every((item) => Array.isArray(item))) {
    return (
      <>
        <div class="scroll" tabIndex={0} role="group" aria-label="rows">
          <table class="grid"><tbody>
            {(kept as Json[][]).map((row) => (
              <tr>{row.slice(0, MOST_ITEMS).map((item) => <td><Value value={item} depth={depth + 2} /></td>)}</tr>
            ))}
          </tbody></table>
        </div>
        {more}
      </>
    );
  }
  return (
    <>
      <ol class="items">
        {kept.map((item) => <li>{isRecord(item) ? <Fields fields={item} schema={kind} depth={depth + 1} /> : <Value value={item} schema={kind} depth={depth + 1} />}</li>)}
      </ol>
      {more}
    </>
  );
}
