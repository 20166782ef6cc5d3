import { useMemo } from 'preact/hooks';
import { useTheme } from '../shell/theme';
import { cleanText } from './clean';

// Without weight: the styles of the drawing win. A picture alone fills the frame, and all of it is visible.
const STYLE = `<style>
:where(body) { font: 14px/1.5 system-ui, sans-serif; margin: 8px }
:where(img, svg, video) { max-width: 100%; max-height: calc(100vh - 16px); object-fit: contain }
:where(body > img:only-child) { display: block; width: 100%; height: calc(100vh - 16px) }
</style>`;
const KNOWS_DARK = /light-dark\(|color-scheme/;
// The page inverts a drawing for light paper; its pictures are inverted twice.
const PICTURES = '<style>img, video, image { filter: invert(1) hue-rotate(180deg) }</style>';

/** The result of `render_web`, in a frame that has a separate origin and runs no script; scripts are removed first. */
export function Rendered({ html }: { html: string }) {
  const dark = useTheme() === 'dark';
  const still = useMemo(() => cleanText(html, { WHOLE_DOCUMENT: true, FORBID_TAGS: ['form'] }), [html]);
  const inverted = dark && !KNOWS_DARK.test(still);
  return (
    <iframe
      class={inverted ? 'rendered inverted' : 'rendered'}
      title="What the environment draws"
      sandbox=""
      referrerpolicy="no-referrer"
      srcdoc={(dark && !inverted ? '<meta name="color-scheme" content="dark">' : '') + STYLE + (inverted ? PICTURES : '') + still}
    />
  );
}
