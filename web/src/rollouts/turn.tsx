import { useState } from 'preact/hooks';
import type { Json, JsonObject } from '../api/json';
import { lasting } from '../charts/number';
import { picturesOf } from '../observation/images';
import type { Place } from './address';
import { contentOf, jsonText, pictureUrl, type Content } from './content';
import { numberOr } from './lists';
import { rewardOf, type Step, type TokenFacts, type Turn } from './records';
import { TokensView } from './tokens';

const FIRST_CHARACTERS = 4000;
const MORE_CHARACTERS = 100_000;

interface Props {
  number: number;
  /** The name of the rollout where there are two. */
  name: string;
  last: boolean;
  /** Whether another version of the policy answered than in the turn before. */
  changed: boolean;
  turn: Turn;
  tokens?: TokenFacts;
  place: Place;
  id?: string;
}

/** A turn: what was new in the prompt, what the model said, and what the environment made of it. */
export function TurnView({ number, name, last, changed, turn, tokens, place, id }: Props) {
  const [coloured, setColoured] = useState(false);
  const { prefix_break: broken, steps = [], usage = {}, finish_reason: finish } = turn;
  const messages = turn.prompt.map((message, index) => <Message key={index} message={message} />);
  const facts = [
    usage.completion_tokens && `${usage.completion_tokens.toLocaleString('en')} tokens`,
    turn.model_s && lasting(turn.model_s),
    finish && finish !== 'stop' && finish !== 'tool_calls' && `finish: ${finish}`,
    changed && `version ${String(turn.version)}`,
  ].filter(Boolean);
  return (
    <section class="turn" id={id} aria-label={`Turn ${number + 1}${name && ` of ${name}`}`}>
      <header>
        <h3>Turn {number + 1} {name && <span class="quiet">of {name}</span>}</h3>
        <span>reward <b class="number">{numberOr(rewardOf(turn))}</b></span>
        <span class="quiet grow">{facts.join(' · ')}</span>
        {tokens && tokens.completion > 0 && (
          <button type="button" class="small" aria-pressed={coloured} onClick={() => setColoured(!coloured)}>
            Tokens{tokens.logprob !== null && <span class="quiet" title="mean logprob"> {tokens.logprob.toFixed(2)}</span>}
          </button>
        )}
      </header>
      {broken && (
        <p class="break">
          <strong>Prefix break: {broken.kind.replaceAll('_', ' ')}.</strong> The prompt has {broken.found.toLocaleString('en')} tokens and differs at {broken.position.toLocaleString('en')} from
          the {broken.expected.toLocaleString('en')} before it. Training starts a new segment here.
        </p>
      )}
      {broken ? (
        <details class="fold">
          <summary>The whole new prompt: {turn.prompt.length} messages</summary>
          {messages}
        </details>
      ) : messages}
      <Message message={turn.completion} />
      {coloured && <TokensView place={place} turn={number} />}
      {steps.map((step, index) => <StepView key={index} step={step} open={last} alone={steps.length === 1} />)}
    </section>
  );
}

function Message({ message }: { message: JsonObject }) {
  const content = contentOf(message);
  const { role, reasoning, texts, pictures, calls, answers } = content;
  return (
    <div class={`message ${['system', 'user', 'assistant', 'tool'].includes(role) ? role : 'other'}`}>
      <p class="role">{role.slice(0, 40)}{answers && <span class="quiet"> {answers.slice(0, 60)}</span>}</p>
      {reasoning && <details class="fold"><summary>Reasoning <span class="quiet">{reasoning.length.toLocaleString('en')} characters</span></summary><LongText text={reasoning} /></details>}
      {texts.map((text, index) => <LongText key={index} text={text} />)}
      {pictures.map((url) => <img class="picture" src={url} alt={`Picture in a message of ${role}`} />)}
      {calls.map((call) => (
        <div class="call">
          <code class="name">{call.name.slice(0, 200)}</code> {call.id && <span class="quiet">{call.id.slice(0, 60)}</span>}
          <LongText text={call.text} />
        </div>
      ))}
      {isEmpty(content) && <p class="none">nothing</p>}
    </div>
  );
}

function isEmpty({ reasoning, texts, pictures, calls }: Content): boolean {
  return !reasoning && texts.length + pictures.length + calls.length === 0;
}

function StepView({ step, open, alone }: { step: Step; open: boolean; alone: boolean }) {
  const { tool, reward, rubric, done, truncated, error, observation = null } = step;
  const pictures = picturesOf(observation).flatMap(({ url }) => pictureUrl(url) ?? []);
  return (
    <div class={error === undefined ? 'step' : 'step bad'}>
      <p class="result">
        {tool && <code>{tool.slice(0, 200)}</code>}
        {error !== undefined ? <strong>invalid action</strong> : !alone && <span>reward <b class="number">{numberOr(reward)}</b></span>}
        <Rubric scores={rubric} />
        {done && <span class="badge">{truncated ? 'truncated' : 'done'}</span>}
      </p>
      {error !== undefined && <LongText text={error} />}
      {pictures.map((url) => <img class="picture" src={url} alt="Picture in the observation" />)}
      {observation !== null && <Folded label="Observation" value={observation} open={open} />}
    </div>
  );
}

/** The scores of a rubric's parts. */
export function Rubric({ scores }: { scores?: Record<string, number> }) {
  return <>{Object.entries(scores ?? {}).map(([name, score]) => <span class="part">{name} <b class="number">{numberOr(score)}</b></span>)}</>;
}

/** A value as JSON, drawn when it is unfolded. */
export function Folded({ label, value, open: first = false }: { label: string; value: Json; open?: boolean }) {
  const [open, setOpen] = useState(first);
  return (
    <details class="fold" open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{label}</summary>
      {open && <LongText text={jsonText(value)} />}
    </details>
  );
}

/** A text of any length: its beginning, and more of it on demand. */
export function LongText({ text }: { text: string }) {
  const [length, setLength] = useState(FIRST_CHARACTERS);
  const rest = text.length - length;
  return (
    <>
      <pre class="said">{text.slice(0, length)}</pre>
      {rest > 0 && (
        <button type="button" class="small" onClick={() => setLength(length + MORE_CHARACTERS)}>
          {rest > MORE_CHARACTERS ? `${MORE_CHARACTERS.toLocaleString('en')} of ${rest.toLocaleString('en')}` : rest.toLocaleString('en')} more characters
        </button>
      )}
    </>
  );
}
