import DOMPurify, { type Config } from 'dompurify';

const TAG = /<[a-z][^>]*>/gi;
const HANDLER = /\s+on[a-z]+\s*=\s*("[^"]*"|'[^']*'|[^\s>]+)/gi;
const FROM_ELSEWHERE = /^(https:|data:image\/)/i;
const LOADING = new Set(['src', 'srcset', 'poster', 'background']);

const purify = DOMPurify();
// Files beside a README, or a drawing, are not served: asking for them would only fail.
purify.addHook('uponSanitizeAttribute', (_, attribute) => {
  if (LOADING.has(attribute.attrName) && !FROM_ELSEWHERE.test(attribute.attrValue)) attribute.keepAttr = false;
});

/** HTML of others without anything that acts. */
export function cleanText(html: string, config: Config = {}): string {
  return purify.sanitize(quiet(html), { ...config, RETURN_DOM_FRAGMENT: false, RETURN_DOM: false }) as string;
}

/** The same as nodes. */
export function cleanNodes(html: string, config: Config = {}): DocumentFragment {
  return purify.sanitize(quiet(html), { ...config, RETURN_DOM_FRAGMENT: true });
}

/** Parsing a handler is reported as a violation of the page's policy, though it would never run. */
function quiet(html: string): string {
  return html.replace(TAG, (tag) => tag.replace(HANDLER, ''));
}
