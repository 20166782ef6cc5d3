import { lasting } from '../charts/number';
import type { SessionLine } from './reading';

const MOST_TILES = 2000;
const NAMED = 40;

/** A tile for each session, coloured by what it is doing; a few of them in words. */
export function SessionMap({ sessions }: { sessions: SessionLine[] }) {
  if (sessions.length === 0) return <p class="empty">Nobody is here.</p>;
  const states = new Map<string, number>();
  for (const session of sessions) states.set(session.state, (states.get(session.state) ?? 0) + 1);
  const busiest = [...sessions].sort((one, other) => other.steps - one.steps).slice(0, NAMED);
  return (
    <>
      <p class="keys">
        {[...states].map(([state, count]) => <span class={`key ${state.toLowerCase()}`}>{count} {state.toLowerCase()}</span>)}
      </p>
      <div class="map" role="img" aria-label={[...states].map(([state, count]) => `${count} ${state}`).join(', ')}>
        {sessions.slice(0, MOST_TILES).map((session) => (
          <i class={session.state.toLowerCase()} title={`${session.id}: ${session.state}, ${session.steps} steps`} />
        ))}
      </div>
      <div class="scroll" tabIndex={0} role="group" aria-label="Sessions with the most steps">
        <table>
          <thead><tr><th>session</th><th>state</th><th class="end">steps</th><th class="end">age</th><th class="end">idle</th><th>worker</th><th>from</th></tr></thead>
          <tbody>
            {busiest.map((session) => (
              <tr>
                <td><code>{session.id.slice(0, 12)}</code></td>
                <td>{session.state.toLowerCase()}</td>
                <td class="end">{session.steps}</td>
                <td class="end">{lasting(session.age_s)}</td>
                <td class="end">{session.idle_s === null ? '' : lasting(session.idle_s)}</td>
                <td>{session.worker ?? ''}</td>
                <td>{session.peer}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {sessions.length > NAMED && <p class="hint">The {NAMED} with the most steps, of {sessions.length}.</p>}
    </>
  );
}
