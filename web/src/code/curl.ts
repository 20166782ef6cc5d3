import type { Json, JsonObject } from '../api/json';

/** A text in single quotes for a POSIX shell. */
export function quoted(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

/** The calls of an episode for a shell. */
export function curlOf(url: string, keyed: boolean, reset: JsonObject, actions: Json[]): string {
  const key = keyed ? ' -H "Authorization: Bearer $OPENENV_API_KEY"' : '';
  const post = (path: string, body: Json) =>
    `curl -sS -X POST "$URL/${path}"${key} -H "X-Session-ID: $ID" -H "Content-Type: application/json" \\\n  -d ${quoted(JSON.stringify(body))}; echo`;
  return [
    `URL=${quoted(url)}`,
    `ID=$(curl -sS -X POST "$URL/sessions"${key} | sed 's/.*"session_id":"\\([^"]*\\)".*/\\1/')`,
    post('reset', reset),
    ...actions.map((action) => post('step', { action })),
    `curl -sS -X DELETE "$URL/sessions/$ID"${key}; echo`,
    '',
  ].join('\n');
}
