import { useEffect, useState } from 'preact/hooks';
import type { OpenEnvError } from 'openenv';
import { SERVER } from '../api/server';
import { lasting, short } from '../charts/number';
import { FailureBox } from '../play/failure_box';
import { nameOf, queryOf, type Go, type Place } from './address';
import { moment, numberOr, Outcome } from './lists';
import { rewardOf, taskOf, type Outcomes, type Shown, type Summary } from './records';
import { asFailure } from './source';
import { Folded, Rubric, TurnView } from './turn';

const MOST_MEMBERS = 100;

/** One rollout as a conversation, or two of a group side by side. */
export function RolloutPage({ place, start, beside, go, outcomes }: { place: Place; start: number; beside: Place | null; go: Go; outcomes: Outcomes }) {
  const one = useRollout(place);
  const other = useRollout(beside);
  const members = useMembers(place, one.shown);
  const failure = one.failure ?? other.failure;
  const sides = [{ place, shown: one.shown }, ...(beside ? [{ place: beside, shown: other.shown }] : [])];
  const count = Math.max(...sides.map(({ shown }) => shown?.rollout.turns?.length ?? 0));
  useEffect(() => {
    if (start > 1) toTurn(start);
    else window.scrollTo(0, 0);
  }, [one.shown]);
  return (
    <article class={beside ? 'rollout two' : 'rollout'}>
      <nav class="group" aria-label="Rollouts of the group">
        <button type="button" class="small" onClick={() => go({ open: null, beside: null })}>‹ List</button>
        {members.length > 1 && (
          <>
            <span class="quiet">Group {one.shown?.rollout.group}:</span>
            <Members members={members} current={place} outcomes={outcomes} onChoose={(open) => go({ open, turn: 1, beside: beside && nameOf(beside) === nameOf(open) ? null : beside }, true)} />
            <label class="beside">
              Beside it{' '}
              <select id="beside" value={beside ? nameOf(beside) : ''} onChange={(event) => go({ beside: members.find((each) => nameOf(each) === event.currentTarget.value) ?? null }, true)}>
                <option value="">none</option>
                {members.filter((each) => nameOf(each) !== nameOf(place)).map((each) => (
                  <option value={nameOf(each)}>{each.member}: {each.reward === undefined ? each.outcome.replaceAll('_', ' ') : numberOr(each.reward)}</option>
                ))}
              </select>
            </label>
          </>
        )}
      </nav>
      {failure && <FailureBox failure={failure} />}
      <div class="sides">
        {sides.map(({ place: at, shown }) => (shown ? <Head key={nameOf(at)} shown={shown} outcomes={outcomes} /> : !failure && <p class="loading">Loading…</p>))}
      </div>
      {Array.from({ length: count }, (_, index) => (
        <div class="sides" key={index}>
          {sides.map(({ place: at, shown }) => {
            const turns = shown?.rollout.turns ?? [];
            const turn = turns[index];
            return turn ? (
              <TurnView key={nameOf(at)} number={index} name={beside && shown ? shown.rollout.rollout_id : ''} last={index === turns.length - 1} changed={index > 0 && turn.version !== turns[index - 1]?.version} turn={turn} tokens={shown?.tokens[index]} place={at} id={at === place ? `turn-${index + 1}` : undefined} />
            ) : <div />;
          })}
        </div>
      ))}
    </article>
  );
}

function Members({ members, current, outcomes, onChoose }: { members: Summary[]; current: Place; outcomes: Outcomes; onChoose: (place: Place) => void }) {
  return (
    <span class="members">
      {members.map((each) => (
        <button
          type="button"
          class="small"
          aria-current={nameOf(each) === nameOf(current) ? 'true' : undefined}
          title={each.outcome.replaceAll('_', ' ')}
          onClick={() => onChoose({ file: each.file, offset: each.offset })}
        >
          {each.member}: <b class="number">{outcomes[each.outcome] ? numberOr(each.reward) : 'failed'}</b>
        </button>
      ))}
    </span>
  );
}

function Head({ shown: { rollout }, outcomes }: { shown: Shown; outcomes: Outcomes }) {
  const { usage = {}, failure, turns = [], metadata, tools } = rollout;
  const facts: [string, string | number | undefined][] = [
    ['turns', turns.length],
    ['tokens', (usage.completion_tokens ?? 0).toLocaleString('en')],
    ['cost', usage.cost === undefined ? undefined : short(usage.cost)],
    ['took', lasting(rollout.seconds ?? 0)],
    ['invalid', rollout.invalid_actions],
    ['attempts', (rollout.attempts ?? 1) > 1 ? rollout.attempts : undefined],
    ['seed', rollout.task.index === undefined ? undefined : rollout.task.seed],
    ['environment', rollout.environment],
    ['model', rollout.model],
    ['version', turns.at(-1)?.version],
    ['started', moment(rollout.started ?? 0)],
    ['episode', rollout.episode_id],
    ['fork of', rollout.forked_from && `${rollout.forked_from} after ${rollout.forked_at ?? 0} turns`],
  ];
  return (
    <section class="head" aria-label={`Rollout ${rollout.rollout_id}`}>
      <h2>{taskOf(rollout)} <span class="quiet">rollout {rollout.rollout_id}</span></h2>
      <p class="result">
        <Outcome outcome={rollout.outcome} outcomes={outcomes} />
        <span>return <b class="number">{numberOr(rollout.reward)}</b></span>
        <Rubric scores={rollout.rubric} />
      </p>
      <p class="facts">{facts.filter(([, value]) => value).map(([name, value]) => <span>{name} <b>{value}</b></span>)}</p>
      {failure && <div class="box bad"><div class="grow"><strong>{failure.error}</strong> {failure.message} {failure.blame && <span class="quiet">(blame: {failure.blame})</span>}</div></div>}
      <Strip turns={turns} />
      {tools && <Folded label={`${tools.length} tool${tools.length === 1 ? '' : 's'}`} value={tools} />}
      {metadata && <Folded label="Metadata" value={metadata} />}
    </section>
  );
}

/** One mark for each turn: its reward as height, with breaks and invalid answers. */
function Strip({ turns }: { turns: NonNullable<Shown['rollout']['turns']> }) {
  const rewards = turns.map(rewardOf);
  const most = Math.max(...rewards.map((reward) => Math.abs(reward ?? 0)));
  if (turns.length < 2) return null;
  return (
    <nav class="strip" aria-label="Turns">
      {turns.map((turn, index) => {
        const reward = rewards[index] ?? null;
        const marks = [turn.prefix_break && 'prefix break', turn.steps?.some((step) => step.error) && 'invalid'].filter(Boolean);
        return (
          <button
            type="button"
            class={`${(reward ?? 0) < 0 ? 'below' : ''} ${marks.length ? 'marked' : ''}`}
            aria-label={`Turn ${index + 1}, reward ${numberOr(reward)}${marks.map((mark) => `, ${String(mark)}`).join('')}`}
            title={`turn ${index + 1}: ${numberOr(reward)}${marks.map((mark) => `, ${String(mark)}`).join('')}`}
            onClick={() => toTurn(index + 1)}
          >
            <i style={{ height: `${most ? Math.max(6, (100 * Math.abs(reward ?? 0)) / most) : 6}%` }} />
          </button>
        );
      })}
    </nav>
  );
}

function toTurn(number: number): void {
  document.getElementById(`turn-${number}`)?.scrollIntoView();
}

interface Loaded {
  shown: Shown | null;
  failure: OpenEnvError | null;
}

const NOTHING: Loaded = { shown: null, failure: null };

function useRollout(place: Place | null): Loaded {
  const [loaded, setLoaded] = useState<Loaded & { name: string }>({ ...NOTHING, name: '' });
  const name = place ? nameOf(place) : '';
  useEffect(() => {
    if (!place) return;
    let over = false;
    SERVER.ask<Shown>(`rollouts/rollout?${placeQuery(place)}`).then(
      (shown) => over || setLoaded({ shown, failure: null, name }),
      (error) => over || setLoaded({ shown: null, failure: asFailure(error), name }),
    );
    return () => {
      over = true;
    };
  }, [name]);
  return loaded.name === name ? loaded : NOTHING;
}

/** The rollouts of the same group and run, by their number. */
function useMembers(place: Place, shown: Shown | null): Summary[] {
  const [members, setMembers] = useState<{ group: string; rows: Summary[] }>({ group: '', rows: [] });
  const group = shown ? `${place.file} ${shown.rollout.group}` : '';
  useEffect(() => {
    if (!shown) return;
    let over = false;
    const query = queryOf({ group: [shown.rollout.group], run: [shown.run] });
    SERVER.ask<{ rows: Summary[] }>(`rollouts/rows?${query.toString()}&sort=started&descending=false&count=${MOST_MEMBERS}`).then(
      ({ rows }) => {
        if (!over) setMembers({ group, rows: rows.sort((one, other) => one.member - other.member) });
      },
      () => undefined, // the rollout itself says why
    );
    return () => {
      over = true;
    };
  }, [group]);
  return members.group === group || !group ? members.rows : [];
}

export function placeQuery({ file, offset }: Place): string {
  return new URLSearchParams({ file, offset: String(offset) }).toString();
}
