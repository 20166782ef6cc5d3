import { useLayoutEffect, useMemo, useState } from 'preact/hooks';
import type { Json, JsonObject } from '../api/json';
import { RewardCurve } from '../charts/reward_curve';
import { short } from '../charts/number';
import { CodeView } from '../code/code_view';
import { written } from '../episode/recording';
import { JsonText, ObservationView } from '../observation/observation';
import { SaveGif } from '../observation/save_gif';
import { Panel } from '../panel/panel';
import { save } from '../shell/save';
import { isTyping } from '../shell/shortcuts';
import { Tabs, type Tab } from '../shell/tabs';
import { useStore } from '../store';
import { ActionForm } from './action_form';
import { FailureBox } from './failure_box';
import { HistoryList } from './history_list';
import { Lease } from './lease';
import type { Play } from './play';
import { ResetForm } from './reset_form';
import { argumentsOf } from './reset_schema';

const NO_FAULTS: never[] = [];

/** Where an environment is played: the observation first and large, the forms beside or below it, the history last. */
export function PlayPage({ play }: { play: Play }) {
  const { metadata, busy, failure, failedCall, live, phase } = useStore(play);
  const [number, setNumber] = useState<number | null>(null);
  const [index, setIndex] = useState<number | null>(null);
  const [next, setNext] = useState<JsonObject | null>(null);
  const [below, setBelow] = useState('code');
  const { episodes, current } = play.history;
  const episode = episodes.find((each) => each.number === number) ?? current;
  const count = episode?.transitions.length ?? 0;
  const selected = index === null ? count - 1 : Math.min(index, count - 1);
  const transition = episode?.transitions[selected];

  const select = (to: number) => setIndex(to >= count - 1 && episode === current ? null : Math.max(0, to));
  const follow = () => {
    setNumber(null);
    setIndex(null);
  };
  const reset = async (given: JsonObject) => {
    if (await play.reset(argumentsOf(given) as JsonObject)) follow();
  };
  const step = async (action: Json) => {
    if (await play.step(action)) follow();
  };

  // Before the next key comes, so that none is counted from where the one before it was.
  useLayoutEffect(() => {
    const press = (event: KeyboardEvent) => {
      if (isTyping(event)) return;
      const to = { ArrowLeft: selected - 1, ArrowRight: selected + 1, Home: 0, End: count - 1 }[event.key];
      if (to === undefined || count === 0) return;
      event.preventDefault();
      select(Math.min(count - 1, Math.max(0, to)));
    };
    window.addEventListener('keydown', press);
    return () => window.removeEventListener('keydown', press);
  });

  const offers = current?.last?.shown?.actions ?? [];
  const faultsOf = (call: string) => (failure && failedCall === call ? failure.faults : NO_FAULTS);
  const resetFaults = useMemo(() => faultsOf('reset'), [failure]);
  const stepFaults = useMemo(() => faultsOf('step'), [failure]);
  if (!metadata) return null;
  const done = current?.done ?? false;
  const reason = !live ? 'Reset first: there is no episode yet.' : done ? 'This episode is done: reset for a new one.' : null;
  const blocked = busy !== null || phase !== 'ready';
  const tools = metadata.tools !== null;

  const tabs: Tab[] = [
    { id: 'code', label: 'Code', content: () => <CodeView transitions={episode?.transitions ?? []} next={next} tools={tools} /> },
    ...(metadata.show_state === false ? [] : [{ id: 'state', label: 'State', content: () => <JsonText value={transition?.shown?.state ?? null} /> }]),
  ];
  return (
    <div class="play">
      <div class="stage">
        {failure && <FailureBox failure={failure} onClose={() => play.set({ failure: null })} />}
        <Lease play={play} />
        {metadata.notes?.map((note) => <div class="box warn" role="status">{note}</div>)}
        {transition?.shown?.notes.map((note) => <div class="box warn" role="status">{note}</div>)}
        <section aria-labelledby="observation-title">
          <header>
            <h2 id="observation-title">Observation</h2>
            {transition && (
              <p class="facts" data-step={transition.step}>
                <span>step <b>{transition.step}</b></span>
                <span>reward <b>{transition.reward === null ? 'none' : short(transition.reward)}</b></span>
                <span>return <b>{short(episode?.curve.total ?? 0)}</b></span>
                {transition.done && <b class="badge">{transition.truncated ? 'truncated' : 'done'}</b>}
              </p>
            )}
          </header>
          {transition ? (
            transition.error !== null ? (
              <p class="fault">{transition.error}</p>
            ) : (
              <ObservationView name="observation" value={transition.observation} html={transition.shown?.html ?? null} schema={metadata.schemas.observation} turns={tools ? episode?.transitions.slice(0, selected + 1) : undefined} />
            )
          ) : (
            <p class="empty">Reset, and the first observation is shown here.</p>
          )}
        </section>
      </div>
      <div class={live && !done ? 'forms' : 'forms begin'}>
        <section aria-labelledby="reset-title">
          <h2 id="reset-title">Episode</h2>
          <ResetForm
            schema={metadata.reset_schema}
            seedable={metadata.seedable !== false}
            tasksOf={metadata.tasks ? metadata.server.environment : null}
            busy={busy === 'reset'}
            disabled={blocked}
            faults={resetFaults}
            again={live && !done}
            onReset={(given) => void reset(given)}
          />
        </section>
        <section aria-labelledby="action-title">
          <h2 id="action-title">Action</h2>
          <ActionForm
            schema={metadata.schemas.action}
            tools={metadata.tools}
            offers={live && !done ? offers : []}
            busy={busy === 'step'}
            disabled={blocked || !live || done}
            faults={stepFaults}
            reason={reason}
            onStep={(action) => void step(action)}
            onChange={setNext}
          />
        </section>
      </div>
      <div class="past">
        {metadata.panel && (
          <section aria-labelledby="panel-title">
            <h2 id="panel-title">Panel</h2>
            <Panel transition={transition} onStep={(action) => void step(action)} onReset={(given) => void reset(given)} />
          </section>
        )}
        {episode && count > 0 && (
          <section aria-labelledby="history-title">
            <header>
              <h2 id="history-title">History</h2>
              <div class="tools">
                {episodes.length > 1 && (
                  <select aria-label="Episode" value={String(episode.number)} onChange={(event) => { setNumber(Number(event.currentTarget.value)); setIndex(null); }}>
                    {episodes.map((each) => (
                      <option value={String(each.number)}>Episode {each.number}: {each.steps} steps, {short(each.curve.total)}</option>
                    ))}
                  </select>
                )}
                <SaveGif transitions={episode.transitions} name={`${metadata.name}-${episode.last?.episode_id ?? episode.number}`} />
                <button type="button" class="small" id="download" onClick={() => save(`${metadata.name}-${episode.last?.episode_id ?? episode.number}.jsonl`, new Blob([written(episode.transitions)]))}>
                  Download
                </button>
              </div>
            </header>
            {episode.curve.rewards.some((reward) => reward !== null) && <RewardCurve
              curve={episode.curve}
              length={episode.steps}
              selected={index === null ? null : (transition?.step ?? null)}
              onSelect={(at) => select(episode.transitions.findIndex((each) => each.step >= at))}
            />}
            {episode.forgotten > 0 && <p class="hint" id="forgotten">The first {episode.forgotten} transitions are no longer kept.</p>}
            <HistoryList transitions={episode.transitions} selected={selected} onSelect={select} />
          </section>
        )}
        <section aria-label="State and code">
          <Tabs name="below" tabs={tabs} open={below} onOpen={setBelow} />
        </section>
      </div>
    </div>
  );
}
