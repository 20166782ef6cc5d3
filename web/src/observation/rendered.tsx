import { useMemo } from 'preact/hooks';
import { cleanText } from './clean';

/** What `render_web` drew: of an origin of its own, where no script runs; those that it has are taken out before. */
export function Rendered({ html }: { html: string }) {
  const still = useMemo(() => cleanText(html, { WHOLE_DOCUMENT: true, FORBID_TAGS: ['form'] }), [html]);
  return <iframe class="rendered" title="What the environment draws" sandbox="" referrerpolicy="no-referrer" srcdoc={still} />;
}
