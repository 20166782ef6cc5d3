import { useEffect, useLayoutEffect, useMemo, useState } from 'preact/hooks';
import type { Metadata } from '../api/metadata';
import { RewardCurve } from '../charts/reward_curve';
import { lasting, short } from '../charts/number';
import { Curve } from '../episode/curve';
import { byEpisode, readRecording, type Recording } from '../episode/recording';
import type { Transition } from '../episode/transition';
import { SaveGif } from '../observation/save_gif';
import { HistoryList } from '../play/history_list';
import { JsonText, ObservationView } from '../observation/observation';
import { isTyping } from '../shell/shortcuts';

const MOST_BYTES = 256 * 1024 * 1024;
const PLAY_MS = 400;

/** Opens a recorded episode and goes through it. The file stays in the browser. */
export function ReplayPage({ metadata }: { metadata: Metadata | null }) {
  const [name, setName] = useState('');
  const [recording, setRecording] = useState<Recording | null>(null);
  const [refused, setRefused] = useState<string | null>(null);
  const [over, setOver] = useState(false);

  const open = async (file: File | undefined) => {
    if (!file) return;
    setRecording(null);
    setRefused(null);
    setName(file.name);
    if (file.size > MOST_BYTES) {
      setRefused(`${file.name} has ${Math.round(file.size / 2 ** 20)} MB; this page opens up to ${MOST_BYTES / 2 ** 20} MB.`);
      return;
    }
    const read = readRecording(await file.text());
    if (read.transitions.length === 0) {
      setRefused(`${file.name} has no transition that this page can read. ${read.faults.slice(0, 3).join('; ')}`);
    } else setRecording(read);
  };
  return (
    <div class="replay">
      <section aria-labelledby="open-title">
        <h2 id="open-title">Replay a recorded episode</h2>
        <p class="hint">For the rollouts of a model, <code>openenv episodes view DIR</code> serves a page of its own.</p>
        <div
          class={over ? 'drop over' : 'drop'}
          onDragOver={(event) => { event.preventDefault(); setOver(true); }}
          onDragLeave={() => setOver(false)}
          onDrop={(event) => { event.preventDefault(); setOver(false); void open(event.dataTransfer?.files[0]); }}
        >
          <label for="file">Drop a file here (JSON lines), or choose one:</label>
          <input id="file" type="file" accept=".jsonl,.json,.ndjson" onChange={(event) => void open(event.currentTarget.files?.[0])} />
        </div>
        {refused && <div class="box bad" role="alert">{refused}</div>}
        {recording && recording.faults.length > 0 && (
          <div class="box warn" role="alert">
            <div class="grow">
              {name} could be read only in part:
              <ul>{recording.faults.map((fault) => <li>{fault}</li>)}</ul>
            </div>
          </div>
        )}
      </section>
      {recording && <Episodes key={name} recording={recording} metadata={metadata} />}
    </div>
  );
}

function Episodes({ recording, metadata }: { recording: Recording; metadata: Metadata | null }) {
  const episodes = useMemo(() => byEpisode(recording.transitions), [recording]);
  const [number, setNumber] = useState(0);
  const transitions = episodes[number] ?? [];
  return (
    <>
      {episodes.length > 1 && (
        <div class="field">
          <label for="episode">Episode</label>
          <select id="episode" value={String(number)} onChange={(event) => setNumber(Number(event.currentTarget.value))}>
            {episodes.map((each, index) => <option value={String(index)}>{each[0]?.episode_id ?? index + 1}: {each.length - 1} steps</option>)}
          </select>
        </div>
      )}
      <Scrubber key={number} transitions={transitions} metadata={metadata} />
    </>
  );
}

function Scrubber({ transitions, metadata }: { transitions: Transition[]; metadata: Metadata | null }) {
  const [index, setIndex] = useState(0);
  const [running, setRunning] = useState(false);
  const recorded = transitions[0]?.schema;
  const strange = !!recorded && !!metadata?.schema_hash && recorded !== metadata.schema_hash;
  const count = transitions.length;
  const transition = transitions[Math.min(index, count - 1)];
  const curve = useMemo(() => {
    const drawn = new Curve();
    for (const each of transitions) if (each.step > 0 && each.error === null) drawn.add(each.step, each.reward);
    return drawn;
  }, [transitions]);
  const to = (next: number) => setIndex(Math.min(count - 1, Math.max(0, next)));

  useEffect(() => {
    if (!running) return;
    if (index >= count - 1) return setRunning(false);
    const timer = setTimeout(() => setIndex(index + 1), PLAY_MS);
    return () => clearTimeout(timer);
  }, [running, index, count]);
  // Before the next key comes, so that none is counted from where the one before it was.
  useLayoutEffect(() => {
    const press = (event: KeyboardEvent) => {
      if (isTyping(event)) return;
      const next = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: count - 1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      to(next);
    };
    window.addEventListener('keydown', press);
    return () => window.removeEventListener('keydown', press);
  });
  if (!transition) return null;
  return (
    <>
      {(strange || (metadata && transition.environment && ![metadata.server.environment, metadata.name].includes(transition.environment))) && (
        <div class="box warn" role="status">
          Recorded from {transition.environment || 'another environment'}
          {transition.versions.environment ? ` ${transition.versions.environment}` : ''} with other schemas than those of this server: fields are shown as they were recorded.
        </div>
      )}
      <section aria-labelledby="scrub-title">
        <header>
          <h2 id="scrub-title">Episode {transition.episode_id ?? ''}</h2>
          <SaveGif transitions={transitions} name={transition.episode_id ?? 'episode'} />
          <p class="facts" data-step={transition.step}>
            <span>step <b>{transition.step}</b></span>
            <span>reward <b>{transition.reward === null ? 'none' : short(transition.reward)}</b></span>
            <span>took <b>{lasting(transition.duration_s)}</b></span>
            {transition.done && <b class="badge">{transition.truncated ? 'truncated' : 'done'}</b>}
          </p>
        </header>
        <div class="scrub">
          <button type="button" class="small" onClick={() => { if (!running && index >= count - 1) setIndex(0); setRunning(!running); }}>{running ? 'Pause' : 'Play'}</button>
          <input
            type="range"
            min={0}
            max={count - 1}
            value={index}
            aria-label="Transition"
            aria-valuetext={`step ${transition.step} of ${transitions.at(-1)?.step ?? 0}`}
            onInput={(event) => to(Number(event.currentTarget.value))}
          />
        </div>
        <RewardCurve curve={curve} length={count} selected={transition.step} onSelect={(step) => to(transitions.findIndex((each) => each.step >= step))} />
        <HistoryList transitions={transitions} selected={index} onSelect={to} />
      </section>
      <section aria-labelledby="was-title">
        <h2 id="was-title">Observation</h2>
        {transition.error !== null && <p class="fault">{transition.error}</p>}
        <ObservationView name="recorded" value={transition.observation} html={transition.shown?.html ?? null} schema={strange ? undefined : metadata?.schemas.observation} />
      </section>
      <section aria-labelledby="did-title">
        <h2 id="did-title">{transition.step === 0 ? 'Arguments of the reset' : 'Action'}</h2>
        <JsonText value={transition.step === 0 ? { seed: transition.seed ?? null, ...transition.arguments } : (transition.action ?? null)} />
      </section>
    </>
  );
}
