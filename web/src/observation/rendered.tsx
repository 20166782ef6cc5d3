import { useMemo } from 'preact/hooks';
import type { Transition } from '../episode/transition';
import { useTheme } from '../shell/theme';
import { cleanNodes, cleanText } from './clean';
import { picturesOf } from './images';

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

const known = new WeakMap<Transition, string | null>();

/** The picture that stands for a transition: its drawing, if that is a picture alone, or the first of its observation. */
export function pictureOfStep(transition: Transition): string | null {
  let url = known.get(transition);
  if (url === undefined) {
    url = pictureAlone(transition.shown?.html ?? '') ?? picturesOf(transition.observation)[0]?.url ?? null;
    known.set(transition, url);
  }
  return url;
}

/** The address of the picture that a drawing consists of; null if there is anything beside it. */
export function pictureAlone(html: string): string | null {
  if (!/<img\b/i.test(html)) return null;
  let place: ParentNode & Node = cleanNodes(html);
  if (place.textContent?.trim()) return null;
  while (place.children.length === 1) place = place.children[0]!;
  return place instanceof HTMLImageElement ? place.getAttribute('src') : null;
}
