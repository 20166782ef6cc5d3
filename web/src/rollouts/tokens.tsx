import { useEffect, useState } from 'preact/hooks';
import type { OpenEnvError } from 'openenv';
import { SERVER } from '../api/server';
import { FailureBox } from '../play/failure_box';
import type { Place } from './address';
import { LEVELS, levelOf } from './records';
import { placeQuery } from './rollout_page';
import { asFailure } from './source';

interface Tokens {
  source: string;
  ids: number[];
  logprobs: number[] | null;
  texts: string[] | null;
}

const FIRST_TOKENS = 2000;
const SOURCES: Record<string, string> = { sampled: 'as the model sampled them', retokenized: 'made from the text again: the model may have sampled others' };

/** The tokens of a completion, coloured by how unlikely each was. Arrow keys go from one to the next. */
export function TokensView({ place, turn }: { place: Place; turn: number }) {
  const [tokens, setTokens] = useState<Tokens | null>(null);
  const [failure, setFailure] = useState<OpenEnvError | null>(null);
  const [chosen, setChosen] = useState<number | null>(null);
  const [count, setCount] = useState(FIRST_TOKENS);
  useEffect(() => {
    SERVER.ask<Tokens>(`rollouts/tokens?${placeQuery(place)}&turn=${turn}`).then(setTokens, (error) => setFailure(asFailure(error)));
  }, []);
  if (failure) return <FailureBox failure={failure} />;
  if (!tokens) return <p class="loading">Loading…</p>;
  const { ids, logprobs, texts, source } = tokens;
  const shown = Math.min(ids.length, count);
  const press = (event: KeyboardEvent) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    setChosen(Math.min(shown - 1, Math.max(0, (chosen ?? -1) + step)));
  };
  const point = (event: Event) => {
    const index = (event.target as HTMLElement).dataset.index;
    if (index !== undefined) setChosen(Number(index));
  };
  const logprob = chosen === null ? undefined : logprobs?.[chosen];
  return (
    <div class="tokens">
      <div class={texts ? 'text' : 'ids'} role="group" tabIndex={0} aria-label="Tokens: arrow keys go from one to the next" onKeyDown={press} onClick={point} onMouseOver={point}>
        {ids.slice(0, shown).map((id, index) => (
          <span class={`token p${logprobs?.[index] === undefined ? 0 : levelOf(logprobs[index])}${index === chosen ? ' chosen' : ''}`} data-index={index}>
            {texts ? visible(texts[index] ?? '') : id}
          </span>
        ))}
      </div>
      {shown < ids.length && <button type="button" class="small" onClick={() => setCount(count + FIRST_TOKENS)}>{(ids.length - shown).toLocaleString('en')} more tokens</button>}
      <p class="chosen" aria-live="polite">
        {chosen === null ? <span class="quiet">{ids.length.toLocaleString('en')} tokens, {SOURCES[source] ?? source}{!texts && '; give --tokenizer to see them as text'}</span> : (
          <>
            token {chosen + 1}, id <b>{ids[chosen]}</b>{texts && <> <code>{JSON.stringify(texts[chosen])}</code></>}
            {logprob !== undefined && <>, logprob <b>{logprob.toFixed(3)}</b>, probability <b>{probability(logprob)}</b></>}
          </>
        )}
      </p>
      {logprobs && (
        <p class="keys">
          probability
          {[...LEVELS, 0].map((least, level) => <span><span class={`token p${level}`}>{level === LEVELS.length ? `below ${LEVELS.at(-1)}` : `from ${least}`}</span></span>)}
        </p>
      )}
    </div>
  );
}

function visible(text: string): string {
  return text.replaceAll('\n', '⏎\n') || '·';
}

function probability(logprob: number): string {
  const value = Math.exp(logprob);
  return value >= 0.001 ? value.toFixed(3) : value.toExponential(1);
}
