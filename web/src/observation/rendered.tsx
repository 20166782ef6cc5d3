import { useMemo } from 'preact/hooks';
import { cleanText } from './clean';

// Of no weight: whatever the drawing says itself wins.
const FONT = '<style>:where(body) { font: 14px/1.5 system-ui, sans-serif }</style>';

/** What `render_web` drew: of an origin of its own, where no script runs; those that it has are taken out before. */
export function Rendered({ html }: { html: string }) {
  const still = useMemo(() => cleanText(html, { WHOLE_DOCUMENT: true, FORBID_TAGS: ['form'] }), [html]);
  return <iframe class="rendered" title="What the environment draws" sandbox="" referrerpolicy="no-referrer" srcdoc={FONT + still} />;
}
