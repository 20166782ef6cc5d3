import type { ComponentChildren } from 'preact';
import { useRef } from 'preact/hooks';

export interface Tab {
  id: string;
  label: string;
  content: () => ComponentChildren;
}

/** Tabs as WAI-ARIA has them: arrows go from one to the next, and only the open one is drawn. */
export function Tabs({ name, tabs, open, onOpen }: { name: string; tabs: Tab[]; open: string; onOpen: (id: string) => void }) {
  const list = useRef<HTMLDivElement>(null);
  const current = tabs.find((tab) => tab.id === open) ?? tabs[0];
  if (!current) return null;
  const move = (event: KeyboardEvent) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const next = tabs[(tabs.indexOf(current) + step + tabs.length) % tabs.length];
    if (!next) return;
    onOpen(next.id);
    list.current?.querySelector<HTMLElement>(`#${name}-tab-${next.id}`)?.focus();
  };
  return (
    <div class="tabs">
      <div role="tablist" aria-label={name} ref={list} onKeyDown={move}>
        {tabs.map((tab) => (
          <button
            type="button"
            role="tab"
            id={`${name}-tab-${tab.id}`}
            aria-selected={tab === current}
            aria-controls={`${name}-panel`}
            tabIndex={tab === current ? 0 : -1}
            onClick={() => onOpen(tab.id)}
          >
            {tab.label}
          </button>
        ))}
      </div>
      <div role="tabpanel" id={`${name}-panel`} aria-labelledby={`${name}-tab-${current.id}`} tabIndex={0}>
        {current.content()}
      </div>
    </div>
  );
}
