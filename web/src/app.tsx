import { useEffect, useRef, useState } from 'preact/hooks';
import { OpenEnvError } from 'openenv';
import { FailureBox } from './play/failure_box';
import type { Play } from './play/play';
import { PlayPage } from './play/play_page';
import { Away } from './shell/away';
import { Boundary } from './shell/boundary';
import { Help } from './shell/help';
import { KeyPrompt } from './shell/key_prompt';
import { later } from './shell/later';
import { goTo, usePage, type Page } from './shell/route';
import { focusFirst, isTyping } from './shell/shortcuts';
import { chooseTheme, useChosenTheme } from './shell/theme';
import { nextTheme, TopBar } from './shell/top_bar';
import { useStore } from './store';

const ServerPage = later(() => import('./server/server_page').then((page) => page.ServerPage));
const ReplayPage = later(() => import('./replay/replay_page').then((page) => page.ReplayPage));
const AboutPage = later(() => import('./about/about_page').then((page) => page.AboutPage));

const PAGE_KEYS: Record<string, Page> = { p: 'play', s: 'server', r: 'replay', a: 'about' };
const PLACES: Record<string, string> = {
  r: '#reset-title ~ * :is(input, textarea, select, button)',
  a: '#action-title ~ * :is(input, textarea, select, button), .offers button',
  o: '#observation-tab-rendered, #observation-tab-fields',
  h: '.history',
};
const TOGETHER_MS = 1000;

export function App({ play }: { play: Play }) {
  const { phase, metadata, failure, notice, keyRefused } = useStore(play);
  const page = usePage();
  const theme = useChosenTheme();
  const [help, setHelp] = useState(false);
  const went = useRef(-Infinity);

  useEffect(() => {
    document.title = metadata ? `${metadata.name} · OpenEnv` : 'OpenEnv';
  }, [metadata]);
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      if (isTyping(event)) return;
      const afterG = performance.now() - went.current < TOGETHER_MS;
      went.current = event.key === 'g' ? performance.now() : -Infinity;
      const to = PAGE_KEYS[event.key];
      if (event.key === '?') setHelp(true);
      else if (event.key === 't') chooseTheme(nextTheme(theme));
      else if (afterG && to) goTo(to);
      else if (page === 'play' && PLACES[event.key]) {
        event.preventDefault(); // the key would be typed into the field
        focusFirst(PLACES[event.key] as string);
      }
    };
    window.addEventListener('keydown', press);
    return () => window.removeEventListener('keydown', press);
  }, [page, theme]);

  return (
    <>
      <a class="skip" href="#content" onClick={(event) => { event.preventDefault(); focusFirst('main'); }}>To the content</a>
      <TopBar metadata={metadata} page={page} onHelp={() => setHelp(true)} />
      <main id="content" tabIndex={-1}>
        {phase === 'away' && <Away play={play} />}
        {notice && <div class="box good" id="notice" role="status"><span class="grow">{notice}</span><button type="button" class="icon" aria-label="Hide this message" onClick={() => play.set({ notice: null })}>×</button></div>}
        {phase === 'locked' && <KeyPrompt refused={keyRefused} failure={failure} onKey={(key) => play.unlock(key)} />}
        {phase === 'failed' && failure && (
          <>
            <FailureBox failure={failure} />
            <button type="button" onClick={() => void play.load()}>Try again</button>
          </>
        )}
        {phase === 'loading' && <p class="loading">Loading…</p>}
        {metadata && phase !== 'locked' && page === 'play' && (
          <Boundary otherwise={(error) => <FailureBox failure={new OpenEnvError(`this part could not be drawn: ${error.message}`)} />}>
            <PlayPage play={play} />
          </Boundary>
        )}
        {metadata && phase !== 'locked' && page === 'server' && <ServerPage />}
        {metadata && phase !== 'locked' && page === 'about' && <AboutPage metadata={metadata} />}
        {page === 'replay' && phase !== 'loading' && phase !== 'locked' && <ReplayPage metadata={metadata} />}
      </main>
      {help && <Help onClose={() => setHelp(false)} />}
    </>
  );
}
