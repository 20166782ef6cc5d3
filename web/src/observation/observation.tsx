import type { RJSFSchema } from '@rjsf/utils';
import { useState } from 'preact/hooks';
import { isRecord, type Json } from '../api/json';
import { Copy } from '../shell/copy';
import { Tabs, type Tab } from '../shell/tabs';
import type { Transition } from '../episode/transition';
import { Conversation } from './conversation';
import { picturesOf, type Picture } from './images';
import { Rendered } from './rendered';
import { Fields, Value } from './value';

const MOST_TEXT = 200_000;

/** JSON as text, with a bound: a browser is no editor for megabytes. */
export function JsonText({ value }: { value: Json }) {
  const text = JSON.stringify(value, null, 2) ?? 'null';
  return (
    <div class="json">
      <Copy text={text} />
      <pre tabIndex={0}>{text.length > MOST_TEXT ? `${text.slice(0, MOST_TEXT)}\n… ${text.length - MOST_TEXT} more characters: copy has all of them` : text}</pre>
    </div>
  );
}

interface Props {
  name: string;
  value: Json;
  html: string | null;
  schema?: RJSFSchema;
  /** The transitions up to this one, where the environment has tools. */
  turns?: Transition[];
}

/** An observation in each of the ways in which it can be seen; the way that was chosen stays. */
export function ObservationView({ name, value, html, schema, turns }: Props) {
  const [chosen, setChosen] = useState<string | null>(null);
  const pictures = picturesOf(value, schema);
  const tabs: Tab[] = [];
  if (html !== null) tabs.push({ id: 'rendered', label: 'Rendered', content: () => <Rendered html={html} /> });
  if (turns) tabs.push({ id: 'conversation', label: 'Conversation', content: () => <Conversation transitions={turns} /> });
  if (pictures.length && html === null && !turns) tabs.push(imagesTab(pictures));
  tabs.push({
    id: 'fields',
    label: 'Fields',
    content: () => (isRecord(value) ? <Fields fields={value} schema={schema} /> : <Value value={value} schema={schema} />),
  });
  if (pictures.length && (html !== null || turns)) tabs.push(imagesTab(pictures));
  tabs.push({ id: 'json', label: 'JSON', content: () => <JsonText value={value} /> });
  return <Tabs name={name} tabs={tabs} open={chosen ?? tabs[0]!.id} onOpen={setChosen} />;
}

function imagesTab(pictures: Picture[]): Tab {
  return {
    id: 'images',
    label: pictures.length > 1 ? `Images (${pictures.length})` : 'Image',
    content: () => (
      <div class="pictures">
        {pictures.map((picture) => (
          <figure>
            <img src={picture.url} alt={picture.path} />
            <figcaption>{picture.path}</figcaption>
          </figure>
        ))}
      </div>
    ),
  };
}
