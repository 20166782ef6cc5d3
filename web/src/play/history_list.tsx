import { useEffect, useRef, useState } from 'preact/hooks';
import type { Transition } from '../episode/transition';
import { short } from '../charts/number';
import { pictureOfStep } from '../observation/rendered';
import { inWords } from './action_form';

interface Props {
  transitions: Transition[];
  selected: number;
  onSelect: (index: number) => void;
}

const PLAIN_ROW = 28;
const PICTURE_ROW = 48;
const ROWS = 9;
const MARGIN = 6;
const MOST_WORDS = 160;

/** Every transition that is kept; only the rows in sight are drawn. Arrow keys go from one to the next. */
export function HistoryList({ transitions, selected, onSelect }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const count = transitions.length;
  // An episode has pictures in all of its steps, or in none: only the ends are looked at.
  const pictured = [transitions[0], transitions.at(-1)].some((each) => each && pictureOfStep(each) !== null);
  const row = pictured ? PICTURE_ROW : PLAIN_ROW;
  const height = Math.min(Math.max(count, 1) * row, ROWS * PLAIN_ROW);

  useEffect(() => {
    const element = place.current;
    if (!element) return;
    const from = selected * row;
    if (from < element.scrollTop) element.scrollTop = from;
    else if (from + row > element.scrollTop + height) element.scrollTop = from + row - height;
  }, [selected, count, row]);

  const move = (event: KeyboardEvent) => {
    const to = { ArrowUp: selected - 1, ArrowDown: selected + 1, ArrowLeft: selected - 1, ArrowRight: selected + 1, Home: 0, End: count - 1, PageUp: selected - ROWS, PageDown: selected + ROWS }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    onSelect(Math.min(count - 1, Math.max(0, to)));
  };
  const first = Math.max(0, Math.floor(top / row) - MARGIN);
  const last = Math.min(count, first + ROWS + 2 * MARGIN);
  const current = transitions[selected];
  return (
    <div
      class="history"
      ref={place}
      role="listbox"
      aria-label="Transitions of the episode"
      tabIndex={0}
      aria-activedescendant={current ? `transition-${current.step}-${selected}` : undefined}
      style={{ height: `${height}px` }}
      onScroll={(event) => setTop(event.currentTarget.scrollTop)}
      onKeyDown={move}
    >
      <div role="presentation" style={{ height: `${first * row}px` }} />
      {transitions.slice(first, last).map((transition, offset) => {
        const index = first + offset;
        return (
          <div
            role="option"
            key={index}
            id={`transition-${transition.step}-${index}`}
            aria-selected={index === selected}
            aria-setsize={count}
            aria-posinset={index + 1}
            class={`transition${transition.error === null ? '' : ' bad'}${pictured ? ' pictured' : ''}`}
            onClick={() => onSelect(index)}
          >
            <span class="step">{transition.step}</span>
            {pictured && <Thumbnail url={pictureOfStep(transition)} />}
            <span class="words">{transition.step === 0 ? resetWords(transition) : inWords(transition.action).slice(0, MOST_WORDS)}</span>
            <span class="number">{transition.error !== null ? 'failed' : transition.reward === null ? '' : short(transition.reward)}</span>
            <span class="mark">{transition.done ? (transition.truncated ? 'cut' : 'done') : ''}</span>
          </div>
        );
      })}
      <div role="presentation" style={{ height: `${(count - last) * row}px` }} />
    </div>
  );
}

function Thumbnail({ url }: { url: string | null }) {
  return url === null ? <span /> : <img src={url} alt="" loading="lazy" />;
}

function resetWords(transition: Transition): string {
  const seed = typeof transition.seed === 'number' ? ` seed ${transition.seed}` : '';
  const given = transition.arguments && Object.keys(transition.arguments).length ? ` ${inWords(transition.arguments)}` : '';
  return `reset${seed}${given}`;
}
