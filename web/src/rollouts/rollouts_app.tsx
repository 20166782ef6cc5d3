import { useEffect, useRef, useState } from 'preact/hooks';
import { OpenEnvError } from 'openenv';
import { SERVER } from '../api/server';
import { FailureBox } from '../play/failure_box';
import { Boundary } from '../shell/boundary';
import { chooseTheme, useChosenTheme } from '../shell/theme';
import { focusFirst, isTyping } from '../shell/shortcuts';
import { nextTheme, ThemeButton } from '../shell/top_bar';
import { LISTS, useAddress, type Go, type View } from './address';
import { Filters } from './filters';
import { RolloutList, RunList } from './lists';
import type { Folder } from './records';
import { RolloutPage } from './rollout_page';
import { asFailure } from './source';

const WHILE_READING_MS = 250;
const OTHERWISE_MS = 5000;

/** The rollouts of a folder: lists to choose from, or one rollout, as the address says. */
export function RolloutsApp() {
  const [view, go] = useAddress();
  const { folder, failure } = useFolder();
  const theme = useChosenTheme();

  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      if (isTyping(event)) return;
      if (event.key === 't') chooseTheme(nextTheme(theme));
      else if (event.key === 'Escape' && view.open) go({ open: null, beside: null });
      else if (event.key === '/' && !view.open) {
        event.preventDefault(); // the key would be typed into the field
        focusFirst('#text');
      }
    };
    window.addEventListener('keydown', press);
    return () => window.removeEventListener('keydown', press);
  }, [view, theme]);

  return (
    <>
      <a class="skip" href="#content" onClick={(event) => { event.preventDefault(); focusFirst('main'); }}>To the content</a>
      <header class="top">
        <h1>Rollouts</h1>
        <nav aria-label="Lists">
          {LISTS.map((list) => (
            <button type="button" class="link" aria-current={list === view.list && !view.open ? 'page' : undefined} onClick={() => go({ list, sort: 'started', descending: true, open: null, beside: null })}>
              {list[0]?.toUpperCase() + list.slice(1)}
            </button>
          ))}
        </nav>
        <p class="quiet" title={folder?.folder}>{folder?.folder}</p>
        <div class="tools"><ThemeButton /></div>
      </header>
      <main id="content" tabIndex={-1}>
        {failure && <FailureBox failure={failure} />}
        {folder && folder.faults.length > 0 && !view.open && <Faults faults={folder.faults} />}
        {!folder && !failure && <p class="loading">Loading…</p>}
        {folder && (
          <Boundary key={view.open?.file} otherwise={(error) => <FailureBox failure={new OpenEnvError(`this part could not be drawn: ${error.message}`)} />}>
            {view.open ? <RolloutPage place={view.open} start={view.turn} beside={view.beside} go={go} outcomes={folder.outcomes} /> : <Lists view={view} go={go} folder={folder} />}
          </Boundary>
        )}
      </main>
    </>
  );
}

function Lists({ view, go, folder }: { view: View; go: Go; folder: Folder }) {
  const count = folder.runs.reduce((sum, run) => sum + run.rollouts, 0);
  return (
    <>
      {folder.reading && (
        <p class="progress" role="status">
          <progress value={folder.read} aria-label="Part of the files that is read" /> {count.toLocaleString('en')} rollouts so far
        </p>
      )}
      {count === 0 && !folder.reading && (
        <section>
          <p class="empty">No rollouts in {folder.folder}. <code>openenv rollout TARGET -o DIR</code> writes them, and they appear here as they end.</p>
        </section>
      )}
      {count > 0 && view.list === 'runs' && <RunList runs={folder.runs} outcomes={folder.outcomes} go={go} />}
      {count > 0 && view.list !== 'runs' && (
        <>
          <Filters view={view} go={go} folder={folder} />
          <RolloutList view={view} go={go} outcomes={folder.outcomes} manyRuns={folder.runs.length > 1} changed={`${count} ${folder.reading}`} />
        </>
      )}
    </>
  );
}

function Faults({ faults }: { faults: string[] }) {
  return (
    <div class="box warn" role="status">
      <details class="grow">
        <summary>Some files or lines are no rollouts, and are left out ({faults.length})</summary>
        <ul>{faults.map((fault) => <li>{fault}</li>)}</ul>
      </details>
    </div>
  );
}

/** The folder's runs, asked again while files are read, and now and then while they may grow. */
function useFolder(): { folder: Folder | null; failure: OpenEnvError | null } {
  const [state, setState] = useState<{ folder: Folder | null; failure: OpenEnvError | null }>({ folder: null, failure: null });
  const before = useRef('');
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout>;
    let over = false;
    const look = async () => {
      let next = OTHERWISE_MS;
      try {
        if (document.visibilityState === 'visible' || before.current === '') {
          const folder = await SERVER.ask<Folder>('rollouts/runs');
          const text = JSON.stringify(folder);
          if (!over && text !== before.current) setState({ folder, failure: null });
          before.current = text;
          if (folder.reading) next = WHILE_READING_MS;
        }
      } catch (error) {
        before.current = 'failed';
        if (!over) setState((last) => ({ ...last, failure: asFailure(error) }));
      }
      if (!over) timer = setTimeout(() => void look(), next);
    };
    void look();
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, []);
  return state;
}
