import { readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import type { Plugin } from 'vite';

const LIMIT = 300 * 1024;
const WORTH_IT = 1024;

/** Writes a .gz beside each file, and fails a build whose first load is over the limit. */
export function weighed(outDir: string): Plugin {
  const first = new Set<string>();
  return {
    name: 'weighed',
    apply: 'build',
    generateBundle(_, bundle) {
      const follow = (name: string) => {
        const part = bundle[name];
        if (!part || part.type !== 'chunk' || first.has(name)) return;
        first.add(name);
        for (const style of part.viteMetadata?.importedCss ?? []) first.add(style);
        part.imports.forEach(follow);
      };
      for (const part of Object.values(bundle)) {
        if (part.type !== 'chunk' || !part.isEntry) continue;
        follow(part.fileName);
        first.add(`${part.name}.html`);
      }
    },
    closeBundle() {
      let load = 0;
      const files = readdirSync(outDir, { recursive: true, encoding: 'utf8' });
      for (const name of files.filter((file) => /\.(html|js|css|svg)$/.test(file))) {
        const bytes = readFileSync(join(outDir, name));
        const packed = gzipSync(bytes, { level: 9 });
        if (bytes.length > WORTH_IT) writeFileSync(join(outDir, `${name}.gz`), packed);
        if (first.has(name)) load += packed.length;
      }
      console.log(`first load: ${(load / 1024).toFixed(1)} KB compressed (limit ${LIMIT / 1024} KB)`);
      if (load > LIMIT) throw new Error('the first load is over its limit: load pages that are rarely seen with import()');
    },
  };
}
