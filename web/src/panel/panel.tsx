import { useEffect, useRef, useState } from 'preact/hooks';
import { OpenEnvError } from 'openenv';
import { isRecord, type Json, type JsonObject } from '../api/json';
import { SERVER } from '../api/server';
import { at } from '../api/root';
import type { Transition } from '../episode/transition';
import { FailureBox } from '../play/failure_box';

interface Props {
  transition: Transition | undefined;
  onStep: (action: Json) => void;
  onReset: (given: JsonObject) => void;
}

/** The author's own panel: one file, in a frame without an origin. It is told of what happens, and may ask for calls. */
export function Panel({ transition, onStep, onReset }: Props) {
  const frame = useRef<HTMLIFrameElement>(null);
  const [failure, setFailure] = useState<OpenEnvError | null>(null);
  const html = useRef<string | null>(null);
  const latest = useRef({ transition, onStep, onReset });
  latest.current = { transition, onStep, onReset };

  useEffect(() => {
    let waiting = false;
    const send = (message: object) => frame.current?.contentWindow?.postMessage(message, '*');
    const show = () => {
      if (!waiting || html.current === null) return;
      waiting = false;
      send({ type: 'openenv:document', html: html.current });
    };
    const hear = (event: MessageEvent) => {
      if (event.source !== frame.current?.contentWindow || !isRecord(event.data)) return;
      const { type } = event.data;
      if (type === 'openenv:frame') {
        waiting = true;
        show();
      } else if (type === 'openenv:ready') send(payloadOf(latest.current.transition));
      else if (type === 'openenv:step' && event.data.action !== undefined) latest.current.onStep(event.data.action);
      else if (type === 'openenv:reset') latest.current.onReset(isRecord(event.data.arguments) ? event.data.arguments : {});
    };
    window.addEventListener('message', hear);
    SERVER.request('web/panel')
      .then((answer) => answer.text())
      .then((text) => {
        html.current = text;
        show();
      })
      .catch((error: unknown) => setFailure(error instanceof OpenEnvError ? error : new OpenEnvError(String(error))));
    if (frame.current) frame.current.src = at('web/frame'); // only now is somebody listening
    return () => window.removeEventListener('message', hear);
  }, []);

  useEffect(() => {
    frame.current?.contentWindow?.postMessage(payloadOf(transition), '*');
  }, [transition]);

  if (failure) return <FailureBox failure={failure} />;
  return <iframe ref={frame} class="rendered panel" title="Panel of the environment" sandbox="allow-scripts" referrerpolicy="no-referrer" />;
}

function payloadOf(transition: Transition | undefined): object {
  if (!transition) return { type: 'openenv:observation', payload: null };
  const { shown, ...rest } = transition;
  return { type: 'openenv:observation', payload: { ...rest, state: shown?.state ?? null } };
}
