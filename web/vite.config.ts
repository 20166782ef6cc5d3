import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vitest/config';
import { weighed } from './build/weighed.ts';

const outDir = fileURLToPath(new URL('../src/openenv/server/page/static', import.meta.url));

// Two pages, built apart so that neither loads more for the other: of a server, and of `openenv episodes view`.
export default defineConfig(({ mode }) => ({
  resolve: {
    alias: [
      { find: 'openenv/http', replacement: fileURLToPath(new URL('../typescript/src/http.ts', import.meta.url)) },
      { find: 'openenv', replacement: fileURLToPath(new URL('../typescript/src/index.ts', import.meta.url)) },
      { find: 'react/jsx-runtime', replacement: 'preact/jsx-runtime' },
      { find: 'react-dom', replacement: 'preact/compat' },
      { find: 'react', replacement: 'preact/compat' },
    ],
  },
  oxc: { jsx: { runtime: 'automatic', importSource: 'preact' } },
  // Seen from `/web`, wherever that lies: behind a proxy's prefix, in a Space's frame.
  experimental: {
    renderBuiltUrl: (file, { hostType }) => (hostType === 'html' ? `web/${file}` : { relative: true }),
  },
  build: {
    outDir,
    emptyOutDir: mode !== 'rollouts',
    target: 'es2022',
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    // "use client" of a library says nothing to a page without a server that draws it.
    rolldownOptions: {
      input: fileURLToPath(new URL(mode === 'rollouts' ? 'rollouts.html' : 'index.html', import.meta.url)),
      onwarn: (warning, warn) => warning.code === 'MODULE_LEVEL_DIRECTIVE' || warn(warning),
    },
  },
  plugins: [weighed(outDir)],
  server: {
    proxy: Object.fromEntries(
      ['/web/', '/rollouts/', '/sessions', '/metrics', '/health'].map((path) => [path, process.env.OPENENV_URL ?? 'http://127.0.0.1:8000']),
    ),
  },
  test: { include: ['test/**/*.test.ts'], environment: 'node' },
}));
