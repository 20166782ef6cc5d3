/** Keys and what they do, as the help lists them. */
export const SHORTCUTS: [string, string][] = [
  ['r', 'to the reset form'],
  ['a', 'to the action form'],
  ['o', 'to the observation'],
  ['h', 'to the history'],
  ['Ctrl Enter', 'send the form that is being filled in'],
  ['← →', 'one transition back, one on'],
  ['Home End', 'first transition, last transition'],
  ['g p, g s, g r, g a', 'pages: play, server, replay, about'],
  ['t', 'light, dark, as the system'],
  ['?', 'this list'],
];

/** Whether a key belongs to a field, or to what has keys of its own. */
export function isTyping(event: KeyboardEvent): boolean {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return true;
  const target = event.target as HTMLElement | null;
  return !!target?.closest?.('input, textarea, select, [contenteditable], dialog[open]');
}

export function focusFirst(selector: string): void {
  document.querySelector<HTMLElement>(selector)?.focus();
}
