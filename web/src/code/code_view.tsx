import { useState } from 'preact/hooks';
import type { Json, JsonObject } from '../api/json';
import { heldKey } from '../api/key';
import { ROOT } from '../api/root';
import type { Transition } from '../episode/transition';
import { Copy } from '../shell/copy';
import { Tabs } from '../shell/tabs';
import { curlOf } from './curl';
import { pythonOf } from './python';

const MOST_CALLS = 20;

/** The calls of this episode as programs that make the same ones. The key is a variable in them, never itself. */
export function CodeView({ transitions, next, tools }: { transitions: Transition[]; next: Json | null; tools: boolean }) {
  const [open, setOpen] = useState('python');
  const url = ROOT.href.replace(/\/$/, '');
  const first = transitions.find((transition) => transition.step === 0);
  const reset: JsonObject = { ...(typeof first?.seed === 'number' ? { seed: first.seed } : {}), ...first?.arguments };
  const done = transitions.filter((transition) => transition.action !== undefined && transition.error === null);
  const actions = done.slice(0, MOST_CALLS).map((transition) => transition.action as Json);
  if (actions.length === 0 && next !== null) actions.push(next);
  const keyed = heldKey() !== null;
  const texts: Record<string, string> = { python: pythonOf(url, keyed, reset, actions, tools), curl: curlOf(url, keyed, reset, actions) };
  const content = (name: string) => () => (
    <div class="json">
      <Copy text={texts[name] ?? ''} />
      <pre tabIndex={0} data-code={name}>{texts[name]}</pre>
      {done.length > MOST_CALLS && <p class="hint">The first {MOST_CALLS} of {done.length} steps.</p>}
      {keyed && <p class="hint">Put your key into the variable OPENENV_API_KEY first.</p>}
    </div>
  );
  return (
    <Tabs
      name="code"
      open={open}
      onOpen={setOpen}
      tabs={[
        { id: 'python', label: 'Python', content: content('python') },
        { id: 'curl', label: 'curl', content: content('curl') },
      ]}
    />
  );
}
