import { useEffect, useRef } from 'preact/hooks';
import type { Transition } from '../episode/transition';
import { inWords } from '../play/action_form';
import { answerOf } from './answer';

const MOST_TURNS = 100;
const MOST_TEXT = 4000;

/** The calls of tools in an episode with their results. */
export function Conversation({ transitions }: { transitions: Transition[] }) {
  const place = useRef<HTMLOListElement>(null);
  const count = transitions.length;
  useEffect(() => {
    if (place.current) place.current.scrollTop = place.current.scrollHeight;
  }, [count, transitions.at(-1)]);
  return (
    <ol class="conversation" ref={place} tabIndex={0} aria-label="Calls and results">
      {transitions.slice(-MOST_TURNS).map((transition) => <Turn key={transition.step} transition={transition} />)}
    </ol>
  );
}

function Turn({ transition }: { transition: Transition }) {
  const { action, step, error, observation } = transition;
  const { texts, pictures, failed } = error === null ? answerOf(observation) : { texts: [error], pictures: [], failed: true };
  return (
    <li>
      {step > 0 && <p class="call"><code>{inWords(action)}</code></p>}
      <div class={failed ? 'answer bad' : 'answer'}>
        {texts.map((text) => <pre>{text.slice(0, MOST_TEXT)}{text.length > MOST_TEXT && '…'}</pre>)}
        {pictures.map((url) => <img class="picture" src={url} alt="Picture in the result" />)}
      </div>
    </li>
  );
}
