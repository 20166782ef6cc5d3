import { useEffect, useMemo, useRef } from 'preact/hooks';
import { lasting, short } from '../charts/number';
import { FailureBox } from '../play/failure_box';
import { useStore } from '../store';
import { queryOf, type Go, type View } from './address';
import { kindOf, wordsFor } from './filters';
import type { Group, Match, Outcomes, Run } from './records';
import { rowsOf, type Found, type Rows } from './source';
import { Table, type Column } from './table';

const ROW = 34;
const ROW_WITH_MATCH = 58;

/** The rollouts or groups that the filter leaves. */
export function RolloutList({ view, go, outcomes, manyRuns, changed }: { view: View; go: Go; outcomes: Outcomes; manyRuns: boolean; changed: string }) {
  const { list, filter, sort, descending, text } = view;
  const rows = useMemo(() => rowsOf(view), [list, queryOf(filter).toString(), sort, descending, text]);
  const { total, failure, progress } = useStore(rows as Rows<Found>);
  useEffect(() => () => rows.close(), [rows]);
  const before = useRef(changed);
  useEffect(() => {
    if (changed !== before.current) rows.refresh();
    before.current = changed;
  }, [changed]);
  const order = { sort, descending, onSort: (by: string, down: boolean) => go({ sort: by, descending: down }, true) };
  const noun = list === 'groups' ? 'group' : 'rollout';
  return (
    <section class="list">
      <h2 aria-live="polite">{progress || (total === null ? 'Loading…' : `${total.toLocaleString('en')} ${noun}${total === 1 ? '' : 's'}`)}</h2>
      {failure && <FailureBox failure={failure} />}
      {list === 'groups' ? (
        <Table
          label="Groups"
          rows={rows as Rows<Group>}
          columns={groupColumns(manyRuns)}
          rowHeight={ROW}
          onOpen={(row) => go({ list: 'rollouts', filter: { run: [row.run], group: [row.group] }, sort: 'reward', descending: true, text: '' })}
          {...order}
        />
      ) : (
        <Table
          label="Rollouts"
          rows={rows as Rows<Found>}
          columns={rolloutColumns(outcomes, manyRuns)}
          below={text ? (row) => row.match && <Snippet match={row.match} /> : undefined}
          rowHeight={text ? ROW_WITH_MATCH : ROW}
          onOpen={({ file, offset, match }) => go({ open: { file, offset }, turn: (match?.turn ?? 0) + 1, beside: null })}
          {...order}
        />
      )}
    </section>
  );
}

function rolloutColumns(outcomes: Outcomes, manyRuns: boolean): Column<Found>[] {
  const run: Column<Found> = { label: 'Run', width: 'minmax(60px, 1fr)', wide: true, cell: (row) => row.run };
  return [
    { sort: 'outcome', label: 'Outcome', width: 'minmax(104px, 1.1fr)', cell: (row) => <Outcome outcome={row.outcome} outcomes={outcomes} /> },
    ...(manyRuns ? [run] : []),
    { sort: 'task', label: 'Task', width: 'minmax(60px, 1.2fr)', cell: (row) => row.task },
    { label: 'Rollout', width: 'minmax(56px, 1fr)', wide: true, cell: (row) => row.rollout_id },
    { sort: 'reward', label: 'Return', width: 'minmax(58px, .7fr)', end: true, cell: (row) => numberOr(row.reward) },
    { sort: 'turns', label: 'Turns', width: 'minmax(52px, .5fr)', end: true, cell: (row) => row.turns ?? 0 },
    { sort: 'tokens', label: 'Tokens', width: 'minmax(58px, .7fr)', wide: true, end: true, cell: (row) => (row.tokens ?? 0).toLocaleString('en') },
    { sort: 'seconds', label: 'Time', width: 'minmax(58px, .7fr)', wide: true, end: true, cell: (row) => lasting(row.seconds ?? 0) },
    { sort: 'breaks', label: 'Breaks', width: 'minmax(62px, .6fr)', wide: true, end: true, cell: (row) => row.breaks || <span class="quiet">0</span> },
    { sort: 'invalid_actions', label: 'Invalid', width: 'minmax(62px, .6fr)', wide: true, end: true, cell: (row) => row.invalid_actions || <span class="quiet">0</span> },
    { sort: 'started', label: 'Started', width: 'minmax(146px, 1.2fr)', wide: true, end: true, cell: (row) => moment(row.started ?? 0) },
  ];
}

function groupColumns(manyRuns: boolean): Column<Group>[] {
  const run: Column<Group> = { label: 'Run', width: 'minmax(60px, 1fr)', wide: true, cell: (row) => row.run };
  return [
    ...(manyRuns ? [run] : []),
    { label: 'Group', width: 'minmax(56px, 1fr)', cell: (row) => row.group },
    { sort: 'task', label: 'Task', width: 'minmax(60px, 1.2fr)', cell: (row) => row.task },
    { sort: 'rollouts', label: 'Rollouts', width: 'minmax(66px, .7fr)', end: true, cell: (row) => row.rollouts },
    { sort: 'failed', label: 'Failed', width: 'minmax(58px, .6fr)', wide: true, end: true, cell: (row) => row.failed || <span class="quiet">0</span> },
    { sort: 'reward', label: 'Mean', width: 'minmax(54px, .7fr)', end: true, cell: (row) => numberOr(row.reward) },
    { sort: 'spread', label: 'Spread', width: 'minmax(60px, .7fr)', end: true, cell: (row) => numberOr(row.spread) },
    { label: 'Range', width: 'minmax(100px, 1fr)', wide: true, end: true, cell: (row) => (row.low === null ? '–' : `${numberOr(row.low)} to ${numberOr(row.high)}`) },
    { sort: 'turns', label: 'Turns', width: 'minmax(58px, .6fr)', wide: true, end: true, cell: (row) => numberOr(row.turns) },
    { sort: 'tokens', label: 'Tokens', width: 'minmax(62px, .7fr)', wide: true, end: true, cell: (row) => Math.round(row.tokens).toLocaleString('en') },
    { sort: 'started', label: 'Started', width: 'minmax(146px, 1.2fr)', wide: true, end: true, cell: (row) => moment(row.started) },
  ];
}

function Snippet({ match }: { match: Match }) {
  const { turn, part, before, found, after, count } = match;
  return (
    <div role="gridcell" class="snippet">
      <span class="quiet">turn {turn + 1}, {part}: </span>{before}<mark>{found}</mark>{after}{count > 1 && <span class="quiet"> · {count} texts</span>}
    </div>
  );
}

/** The runs of the folder, with how their rollouts ended. */
export function RunList({ runs, outcomes, go }: { runs: Run[]; outcomes: Outcomes; go: Go }) {
  return (
    <section class="list">
      <h2>{runs.length.toLocaleString('en')} run{runs.length === 1 ? '' : 's'}</h2>
      <ul class="runs">
        {runs.map((run) => (
          <li>
            <button type="button" class="link name" onClick={() => go({ list: 'groups', filter: { run: [run.run] }, sort: 'started', descending: true })}>{run.run}</button>
            <p class="facts">
              <span><b>{run.rollouts.toLocaleString('en')}</b> rollouts</span>
              <span><b>{run.groups.toLocaleString('en')}</b> groups</span>
              <span>mean return <b>{numberOr(run.reward)}</b></span>
              <span><b>{(run.usage.completion_tokens ?? 0).toLocaleString('en')}</b> tokens</span>
              {run.usage.cost !== undefined && <span>cost <b>{short(run.usage.cost)}</b></span>}
              <span>{moment(run.started)}, <b>{lasting(run.ended - run.started)}</b></span>
              {[...run.environments, ...run.models].map((name) => <span>{name}</span>)}
            </p>
            <div class="share" role="img" aria-label={Object.entries(run.outcomes).map(([outcome, count]) => `${wordsFor(outcome)} ${count}`).join(', ')}>
              {Object.keys(outcomes).filter((outcome) => run.outcomes[outcome]).map((outcome) => (
                <span class={kindOf(outcome, outcomes)} style={{ flexGrow: run.outcomes[outcome] }} title={`${wordsFor(outcome)}: ${run.outcomes[outcome]}`} />
              ))}
            </div>
            <p class="keys">
              {Object.keys(outcomes).filter((outcome) => run.outcomes[outcome]).map((outcome) => (
                <span><i class={`dot ${kindOf(outcome, outcomes)}`} /> {wordsFor(outcome)} {run.outcomes[outcome]?.toLocaleString('en')}</span>
              ))}
            </p>
          </li>
        ))}
      </ul>
    </section>
  );
}

export function Outcome({ outcome, outcomes }: { outcome: string; outcomes: Outcomes }) {
  return <span class="outcome"><i class={`dot ${kindOf(outcome, outcomes)}`} /> {wordsFor(outcome)}</span>;
}

export function numberOr(value: number | null | undefined): string {
  return value === null || value === undefined ? '–' : short(Number(value.toPrecision(4)));
}

/** A Unix time in seconds, in the time zone of the browser. */
export function moment(seconds: number): string {
  const at = new Date(seconds * 1000);
  const two = (value: number) => String(value).padStart(2, '0');
  return seconds > 0 ? `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}` : '–';
}
