import { useEffect, useRef, useState } from 'preact/hooks';
import type { OpenEnvError } from 'openenv';
import { lasting, short } from '../charts/number';
import { FailureBox } from '../play/failure_box';
import { Bars } from './bars';
import { histogramOf, since, valueOf, type Histogram, type Sample } from './metrics';
import { read, type Reading, type SessionLine } from './reading';
import { SessionMap } from './session_map';
import { Trend } from './trend';

const EVERY_MS = 2000;
const KEPT = 150;
const PHASES = ['queue', 'construct', 'reset', 'step', 'serialize', 'send'];
const PHASE = 'openenv_phase_seconds';

/** The server as it is now: asked every two seconds while this page is seen. */
export function ServerPage() {
  const [readings, setReadings] = useState<Reading[]>([]);
  const [all, setAll] = useState(true);
  const base = useRef<Reading | null>(null);
  useEffect(() => {
    let gone = false;
    let last: Reading | null = null;
    let timer: ReturnType<typeof setTimeout>;
    const look = async () => {
      if (!document.hidden) {
        const reading = await read(last);
        last = reading;
        if (gone) return;
        base.current ??= reading;
        // Of those before, only numbers are drawn; lists of ten thousand sessions would fill the memory.
        setReadings((before) => [...before.map((old) => (old.sessions ? { ...old, sessions: null } : old)), reading].slice(-KEPT));
      }
      timer = setTimeout(() => void look(), EVERY_MS);
    };
    void look();
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, []);

  const now = readings.at(-1);
  if (!now) return <p class="loading">Asking the server…</p>;
  const samples = now.samples ?? [];
  const times = readings.map((reading) => reading.at);
  const trend = (name: string) => readings.map((reading) => valueOf(reading.samples ?? [], name));
  const begun = base.current?.samples ?? [];
  return (
    <div class="server">
      {faultsOf(now).map((fault) => <FailureBox failure={fault} />)}
      {now.samples && (
        <>
          <section aria-labelledby="load-title">
            <h2 id="load-title">Load</h2>
            <div class="trends">
              <Trend name="Sessions" times={times} values={trend('openenv_slots_held')} />
              <Trend name="Steps per second" times={times} values={rates(readings)} />
              <Trend name="Waiting for a slot" times={times} values={trend('openenv_queue_length')} />
              <Trend name="Calls executing" times={times} values={trend('openenv_calls_executing')} />
            </div>
            <Meter held={valueOf(samples, 'openenv_slots_held') ?? 0} limit={valueOf(samples, 'openenv_slots_limit') ?? 0} />
          </section>
          <section aria-labelledby="latency-title">
            <header>
              <h2 id="latency-title">Latency</h2>
              <div class="tools" role="group" aria-label="Of which time">
                <button type="button" class="small" aria-pressed={all} onClick={() => setAll(true)}>Since the start</button>
                <button type="button" class="small" aria-pressed={!all} onClick={() => setAll(false)}>Since this page was opened</button>
              </div>
            </header>
            <div class="histograms">
              {PHASES.map((phase) => <Bars name={phase} histogram={histogram(samples, phase, all ? null : begun)} />)}
            </div>
          </section>
        </>
      )}
      {now.sessions && (
        <section aria-labelledby="sessions-title">
          <h2 id="sessions-title">Sessions <span class="quiet">{now.sessions.length}</span></h2>
          <SessionMap sessions={now.sessions} />
        </section>
      )}
      {now.samples && (
        <section aria-labelledby="workers-title">
          <h2 id="workers-title">Workers</h2>
          <Workers samples={samples} sessions={now.sessions ?? []} />
        </section>
      )}
    </div>
  );
}

/** One of each kind: when the server is away, all of it is. */
function faultsOf({ faults }: Reading): OpenEnvError[] {
  const { sessions, metrics } = faults;
  return [sessions, metrics].filter((fault, index): fault is OpenEnvError => !!fault && !(index === 1 && fault.message === sessions?.message));
}

function histogram(samples: Sample[], phase: string, begun: Sample[] | null): Histogram {
  const now = histogramOf(samples, PHASE, { phase });
  return begun ? since(now, histogramOf(begun, PHASE, { phase })) : now;
}

function rates(readings: Reading[]): (number | null)[] {
  const steps = readings.map((reading) => histogramOf(reading.samples ?? [], PHASE, { phase: 'step' }).count);
  return steps.map((count, index) => {
    const before = steps[index - 1];
    if (before === undefined || count < before) return null;
    return (count - before) / ((readings[index] as Reading).at - (readings[index - 1] as Reading).at);
  });
}

function Meter({ held, limit }: { held: number; limit: number }) {
  return (
    <p class="meter">
      <span id="slots">{short(held)} of {short(limit)} slots taken</span>
      <span class="bar" role="meter" aria-labelledby="slots" aria-valuemin={0} aria-valuemax={limit} aria-valuenow={held}>
        <span style={{ width: `${(100 * held) / Math.max(limit, 1)}%` }} />
      </span>
    </p>
  );
}

function Workers({ samples, sessions }: { samples: Sample[]; sessions: SessionLine[] }) {
  const lags = samples.filter((sample) => sample.name === 'openenv_event_loop_lag_seconds');
  const restarts = valueOf(samples, 'openenv_worker_restarts_total') ?? 0;
  const most = Math.max(1, ...lags.map((lag) => sessions.filter((session) => session.worker === lag.labels.worker).length));
  return (
    <>
      <div class="workers">
        {lags.map((lag) => {
          const mine = lags.length === 1 ? sessions : sessions.filter((session) => session.worker === lag.labels.worker);
          return (
            <div class="worker">
              <b>{lag.labels.worker || 'server'}</b> <span class="quiet">pid {lag.labels.pid}</span>
              <div class="bar" role="img" aria-label={`${mine.length} sessions`}>
                <span style={{ width: `${(100 * mine.length) / Math.max(most, mine.length, 1)}%` }} />
              </div>
              <span class="quiet">{mine.length === 1 ? '1 session' : `${mine.length} sessions`}, event loop late by {lasting(lag.value)}</span>
            </div>
          );
        })}
      </div>
      {restarts > 0 && <p class="hint">{restarts} workers died and were replaced.</p>}
    </>
  );
}
