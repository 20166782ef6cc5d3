import { at } from '../api/root';
import type { Metadata } from '../api/metadata';
import { PAGES, type Page } from './route';
import { chooseTheme, useChosenTheme, type Theme } from './theme';

const NEXT: Record<Theme, Theme> = { auto: 'light', light: 'dark', dark: 'auto' };
const SIGN: Record<Theme, string> = { auto: '◐', light: '○', dark: '●' };
const WORDS: Record<Theme, string> = { auto: 'as the system', light: 'light', dark: 'dark' };

export function TopBar({ metadata, page, onHelp }: { metadata: Metadata | null; page: Page; onHelp: () => void }) {
  return (
    <header class="top">
      <h1>
        {metadata?.name ?? 'OpenEnv'} {metadata?.version && <span class="quiet">{metadata.version}</span>}
      </h1>
      <nav aria-label="Pages">
        {PAGES.map((each) => (
          <a href={`#${each}`} aria-current={each === page ? 'page' : undefined}>
            {each[0]?.toUpperCase() + each.slice(1)}
          </a>
        ))}
        {metadata?.custom && <a href={at('web/custom/')}>Custom</a>}
      </nav>
      {metadata?.description && <p class="quiet" title={metadata.description}>{metadata.description}</p>}
      <div class="tools">
        <ThemeButton />
        <button type="button" class="icon" aria-label="Keys and what they do" title="Keys (?)" onClick={onHelp}>?</button>
      </div>
    </header>
  );
}

export function ThemeButton() {
  const theme = useChosenTheme();
  return (
    <button type="button" class="icon" id="theme" aria-label={`Colours: ${WORDS[theme]}. Change`} title={`Colours: ${WORDS[theme]}`} onClick={() => chooseTheme(NEXT[theme])}>
      {SIGN[theme]}
    </button>
  );
}

export function nextTheme(theme: Theme): Theme {
  return NEXT[theme];
}
