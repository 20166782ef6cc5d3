import { isRecord, type Json } from '../api/json';

interface Answer {
  texts: string[];
  pictures: string[];
  failed: boolean;
}

/** The texts and pictures of a tool's result, without the envelope of MCP. Other observations are one text. */
export function answerOf(observation: Json): Answer {
  if (!isRecord(observation)) return { texts: [asText(observation)], pictures: [], failed: false };
  const { tool_name, result, error, tools } = observation;
  if (error !== null && error !== undefined) {
    return { texts: [isRecord(error) && typeof error.message === 'string' ? error.message : asText(error)], pictures: [], failed: true };
  }
  if (tool_name === undefined) return { texts: [Array.isArray(tools) ? `${tools.length} tools` : textOf(observation)], pictures: [], failed: false };
  if (!isRecord(result)) return { texts: [asText(result ?? null)], pictures: [], failed: false };
  const texts: string[] = [];
  const pictures: string[] = [];
  for (const part of Array.isArray(result.content) ? result.content : []) {
    if (!isRecord(part)) continue;
    if (part.type === 'image' && typeof part.data === 'string') pictures.push(`data:${String(part.mimeType ?? 'image/png')};base64,${part.data}`);
    else if (typeof part.text === 'string') texts.push(indented(part.text));
    else texts.push(asText(part));
  }
  if (texts.length + pictures.length === 0) texts.push(asText(result.data ?? result.structured_content ?? null));
  return { texts, pictures, failed: result.is_error === true };
}

/** The texts of an observation that is no result of a tool, such as that of a reset. */
function textOf(observation: Record<string, Json | undefined>): string {
  const texts = Object.values(observation).filter((value): value is string => typeof value === 'string' && value !== '');
  return texts.length ? texts.join('\n\n') : 'The episode begins.';
}

/** A text that is a JSON object or list, with a line for each value. */
function indented(text: string): string {
  if (!/^\s*[[{]/.test(text)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function asText(value: Json): string {
  if (typeof value === 'string') return value;
  if (value === null || (Array.isArray(value) && value.length === 0)) return 'nothing';
  return JSON.stringify(value, null, 2);
}
