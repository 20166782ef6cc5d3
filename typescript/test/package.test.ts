import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { ERRORS, errorOf, UsageError } from '../src/index.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const MODULES = ['client', 'connection', 'errors', 'http', 'index', 'session', 'values'];

test('a program installs the package, and compiles against its types', () => {
  const place = mkdtempSync(join(tmpdir(), 'openenv-'));
  try {
    const [packed] = JSON.parse(execFileSync('npm', ['pack', '--json', '--pack-destination', place], { cwd: ROOT, encoding: 'utf8' }));
    const files: string[] = packed.files.map((file: { path: string }) => file.path);
    const built = MODULES.flatMap((name) => [`dist/${name}.d.ts`, `dist/${name}.js`]);
    assert.deepEqual(files.sort(), ['LICENSE', 'README.md', ...built, 'package.json'].sort());
    const installed = join(place, 'node_modules', 'openenv');
    mkdirSync(installed, { recursive: true });
    execFileSync('tar', ['-xzf', join(place, packed.filename), '--strip-components=1', '-C', installed]);
    writeFileSync(join(place, 'package.json'), '{"type": "module"}');
    writeFileSync(
      join(place, 'program.ts'),
      `import { connect, OpenEnvError, ServerFull, StepTimeout, UsageError, type StepResult } from 'openenv';
import { HttpServer } from 'openenv/http';
interface Contract { action: { move: 'up' | 'down' }; observation: { board: number[] }; state: { step_count: number } }
export async function play(url: string): Promise<StepResult<{ board: number[] }>> {
  const env = await connect<Contract>(url);
  await env.reset({ seed: 1 });
  // @ts-expect-error: not a move
  await env.step({ move: 'left' });
  return env.step({ move: 'up' });
}
export function blameOf(error: unknown): string {
  if (!(error instanceof OpenEnvError)) throw error;
  if (error instanceof ServerFull || error instanceof UsageError) return 'mine';
  return error instanceof StepTimeout ? error.message : error.blame;
}
if (typeof play !== 'function' || typeof ServerFull !== 'function' || typeof HttpServer !== 'function') throw new Error();
`,
    );
    for (const types of ['NodeNext', 'bundler'])
      execFileSync(join(ROOT, 'node_modules/.bin/tsc'), ['--strict', '--target', 'ES2022', '--module', types === 'bundler' ? 'ESNext' : types, '--moduleResolution', types, 'program.ts'], { cwd: place });
    execFileSync(process.execPath, ['program.js'], { cwd: place });
  } finally {
    rmSync(place, { recursive: true });
  }
});

test('errors have the codes of the protocol', () => {
  const document = readFileSync(join(ROOT, '../docs/protocol.md'), 'utf8');
  const rows = [...document.matchAll(/^\| `(\w+)` \| `([A-Z_]+)` \| (client|environment|infrastructure) \| (yes)? *\|/gm)];
  const declared = new Map(rows.map(([, name, code, blame, retryable]) => [name!, { code, blame, retryable: retryable === 'yes' }]));
  for (const [name, { code, blame, retryable }] of Object.entries(ERRORS)) {
    assert.deepEqual({ code, blame, retryable }, declared.get(name), name);
    assert.equal(errorOf({ error: name }).name, name);
  }
  const later = errorOf({ error: 'ErrorOfALaterServer', blame: 'client', message: 'no', retryable: true });
  assert(later instanceof UsageError);
  assert.deepEqual([later.name, later.message, later.retryable], ['ErrorOfALaterServer', 'no', true]);
  for (const foreign of ['constructor', '__proto__']) assert.equal(errorOf({ error: foreign }).message, 'the server reported an error');
});
