import { Store, useStore } from '../store';

export type Theme = 'auto' | 'light' | 'dark';

const PLACE = 'openenv.theme';
const dark = matchMedia('(prefers-color-scheme: dark)');
const theme = new Store<{ chosen: Theme; drawn: 'light' | 'dark' }>({ chosen: 'auto', drawn: 'light' });

/** Follows the system, or what was chosen here. */
export function chooseTheme(chosen: Theme): void {
  try {
    localStorage.setItem(PLACE, chosen);
  } catch {
    // frames of other sites may have no storage
  }
  draw(chosen);
}

export function startTheme(): void {
  let kept: string | null = null;
  try {
    kept = localStorage.getItem(PLACE);
  } catch {
    // as above
  }
  draw(kept === 'light' || kept === 'dark' ? kept : 'auto');
  dark.addEventListener('change', () => draw(theme.value.chosen));
}

export function useTheme(): 'light' | 'dark' {
  return useStore(theme).drawn;
}

export function useChosenTheme(): Theme {
  return useStore(theme).chosen;
}

function draw(chosen: Theme): void {
  const drawn = chosen === 'auto' ? (dark.matches ? 'dark' : 'light') : chosen;
  document.documentElement.dataset.theme = drawn;
  theme.set({ chosen, drawn });
}
