import { isRecord, type Json, type JsonObject } from '../api/json';

/** A JSON value as Python writes it. */
export function literal(value: Json, indent = ''): string {
  if (value === null) return 'None';
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  if (typeof value === 'number' || typeof value === 'string') return JSON.stringify(value);
  const deeper = `${indent}    `;
  const parts = Array.isArray(value)
    ? value.map((item) => literal(item, deeper))
    : Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${literal(item, deeper)}`);
  const [open, close] = Array.isArray(value) ? ['[', ']'] : ['{', '}'];
  const line = `${open}${parts.join(', ')}${close}`;
  return line.length + indent.length <= 88 && !line.includes('\n') ? line : `${open}\n${deeper}${parts.join(`,\n${deeper}`)},\n${indent}${close}`;
}

const RESERVED = new Set(
  ('False None True and as assert async await break class continue def del elif else except finally for from global if ' +
    'import in is lambda nonlocal not or pass raise return try while with yield').split(' '),
);

function isPlain(name: string): boolean {
  return /^[A-Za-z_][A-Za-z0-9_]*$/.test(name) && !RESERVED.has(name);
}

/** Keyword arguments; names that Python does not take as such come by a dict. */
function keywords(values: JsonObject, indent: string): string {
  const odd = Object.fromEntries(Object.entries(values).filter(([name]) => !isPlain(name)));
  const parts = Object.entries(values).filter(([name]) => isPlain(name)).map(([name, value]) => `${name}=${literal(value, indent)}`);
  if (Object.keys(odd).length) parts.push(`**${literal(odd, indent)}`);
  return parts.join(', ');
}

/** The calls of an episode as a program. */
export function pythonOf(url: string, keyed: boolean, reset: JsonObject, actions: Json[], tools: boolean): string {
  const calls = actions.map((action) => (tools ? toolCall(action) : step(action)));
  const name = tools ? 'MCPToolClient' : 'SyncEnvClient';
  const where = tools ? 'openenv.client.mcp_client' : 'openenv';
  const key = keyed ? ', api_key=os.environ["OPENENV_API_KEY"]' : '';
  return [
    ...(keyed ? ['import os', ''] : []),
    `from ${where} import ${name}`,
    '',
    `with ${name}(base_url=${JSON.stringify(url)}${key})${tools ? '.sync()' : ''} as env:`,
    `    result = env.reset(${keywords(reset, '    ')})`,
    '    print(result.observation)',
    ...calls,
    '',
  ].join('\n');
}

function step(action: Json): string {
  return `    result = env.step(${literal(action, '    ')})\n    print(result.observation, result.reward, result.done)`;
}

function toolCall(action: Json): string {
  if (!isRecord(action) || typeof action.tool_name !== 'string') return step(action);
  const given = isRecord(action.arguments) ? action.arguments : {};
  const more = keywords(given, '    ');
  return `    print(env.call_tool(${JSON.stringify(action.tool_name)}${more ? `, ${more}` : ''}))`;
}
