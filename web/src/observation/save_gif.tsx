import { useState } from 'preact/hooks';
import type { Transition } from '../episode/transition';
import { save } from '../shell/save';
import { pictureOfStep } from './rendered';

/** Saves an episode as an animated GIF; shown where a step of it has a picture or a drawing. */
export function SaveGif({ transitions, name }: { transitions: Transition[]; name: string }) {
  const [state, setState] = useState<'idle' | 'busy' | string>('idle');
  if (!transitions.some((each) => each.shown?.html || pictureOfStep(each))) return null;
  const make = async () => {
    setState('busy');
    try {
      const { gifOf } = await import('./gif');
      save(`${name}.gif`, await gifOf(transitions));
      setState('idle');
    } catch (error) {
      setState(`The GIF could not be made: ${error instanceof Error ? error.message : String(error)}`);
    }
  };
  return (
    <>
      <button type="button" class="small" id="gif" disabled={state === 'busy'} aria-busy={state === 'busy'} onClick={() => void make()}>
        {state === 'busy' ? 'Making…' : 'GIF'}
      </button>
      {state !== 'idle' && state !== 'busy' && <span class="hint" role="alert">{state}</span>}
    </>
  );
}
