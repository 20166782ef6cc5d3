import { isRecord, type Json, type JsonObject } from '../api/json';

export interface ToolCall {
  id: string | null;
  name: string;
  /** The arguments, with a line for each value where they are JSON. */
  text: string;
}

/** A message of a model or to it, taken apart. Everything in it is the text of others. */
export interface Content {
  role: string;
  reasoning: string;
  texts: string[];
  pictures: string[];
  calls: ToolCall[];
  /** The call that a tool's result answers. */
  answers: string | null;
}

// Characters of JSON that stand in one line.
const ONE_LINE = 72;
const MOST_PICTURE = 16 * 1024 * 1024;
const PICTURE = /^data:image\/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+={0,2}$/;
const THOUGHT = /^\s*<think>([\s\S]*?)<\/think>\s*/;

/** An address that can be shown: a data: URL of a known kind of image. Others could tell somebody what was read. */
export function pictureUrl(url: unknown): string | null {
  return typeof url === 'string' && url.length <= MOST_PICTURE && PICTURE.test(url) ? url : null;
}

export function contentOf(message: JsonObject): Content {
  const content: Content = {
    role: typeof message.role === 'string' ? message.role : 'message',
    reasoning: [message.reasoning_content, message.reasoning].find((text): text is string => typeof text === 'string') ?? '',
    texts: [],
    pictures: [],
    calls: (Array.isArray(message.tool_calls) ? message.tool_calls : []).map(callOf),
    answers: typeof message.tool_call_id === 'string' ? message.tool_call_id : null,
  };
  for (const part of Array.isArray(message.content) ? message.content : [message.content ?? null]) addPart(content, part);
  const thought = THOUGHT.exec(content.texts[0] ?? '');
  if (thought && content.reasoning === '') {
    content.reasoning = (thought[1] ?? '').trim();
    content.texts[0] = (content.texts[0] ?? '').slice(thought[0].length);
  }
  content.texts = content.texts.filter((text) => text !== '');
  return content;
}

function addPart(content: Content, part: Json): void {
  if (part === null) return;
  if (typeof part === 'string') content.texts.push(part);
  else if (!isRecord(part)) content.texts.push(jsonText(part));
  else if (typeof part.thinking === 'string') content.reasoning += part.thinking;
  else if (typeof part.text === 'string') content.texts.push(part.text);
  else {
    const address = addressOf(part);
    const picture = pictureUrl(address);
    if (picture !== null) content.pictures.push(picture);
    else content.texts.push(address === null ? jsonText(part) : `[picture that is not shown: ${address.slice(0, 200)}]`);
  }
}

/** The address of an image as OpenAI, Anthropic and MCP write it. */
function addressOf(part: JsonObject): string | null {
  const { image_url: image, source } = part;
  if (typeof image === 'string') return image;
  if (isRecord(image) && typeof image.url === 'string') return image.url;
  if (isRecord(source) && typeof source.data === 'string') return `data:${String(source.media_type)};base64,${source.data}`;
  if (part.type === 'image' && typeof part.data === 'string') return `data:${String(part.mimeType)};base64,${part.data}`;
  return null;
}

function callOf(call: Json): ToolCall {
  const outer = isRecord(call) ? call : {};
  const inner = isRecord(outer.function) ? outer.function : outer;
  return {
    id: typeof outer.id === 'string' ? outer.id : null,
    name: typeof inner.name === 'string' ? inner.name : 'a call without a name',
    text: typeof inner.arguments === 'string' ? indented(inner.arguments) : jsonText(inner.arguments ?? null),
  };
}

function indented(text: string): string {
  try {
    return jsonText(JSON.parse(text) as Json);
  } catch {
    return text; // what the model wrote is no JSON
  }
}

/** A value as text: in one line if it is short, else with a line for each of its parts. */
export function jsonText(value: Json): string {
  if (typeof value === 'string') return value;
  const lines = JSON.stringify(value, null, 2);
  const line = lines.replace(/\n\s*/g, ' '); // JSON writes the newlines of texts as escapes
  return line.length <= ONE_LINE ? line : lines;
}
