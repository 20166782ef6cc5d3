// Taken apart, or Vite would look for the folder as an asset.
const here = import.meta.url;

/** Where the server lies: above `web/assets/`, where this file is; whatever prefix a proxy put before it. */
export const ROOT = new URL('../../', here);

/** The address of a route of the server. */
export function at(path: string): string {
  return new URL(path, ROOT).href;
}
