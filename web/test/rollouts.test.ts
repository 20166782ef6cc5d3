import { describe, expect, it, vi } from 'vitest';
import type { JsonObject } from '../src/api/json';
import { readAddress, writeAddress } from '../src/rollouts/address';
import { contentOf, jsonText, pictureUrl } from '../src/rollouts/content';
import { levelOf, rewardOf } from '../src/rollouts/records';
import { linesOf, PagedRows } from '../src/rollouts/source';

const PNG = 'data:image/png;base64,iVBORw0KGgo=';

describe('the address of a list of rollouts', () => {
  it('is read as it was written', () => {
    const view = {
      ...readAddress(''),
      list: 'groups' as const,
      filter: { run: ['a & b'], outcome: ['terminated', 'refused'], min_reward: ['-0.5'] },
      sort: 'reward',
      descending: false,
      text: 'tea #1',
      open: { file: 'a:b/c.jsonl', offset: 12 },
      turn: 3,
      beside: { file: 'x.jsonl', offset: 0 },
    };
    expect(readAddress(writeAddress(view))).toEqual(view);
  });

  it('is short for the first list, and what it does not know is left out', () => {
    expect(writeAddress(readAddress(''))).toBe('#');
    expect(readAddress('#list=shoes&colour=red&task=&open=nowhere&turn=-3')).toEqual(readAddress(''));
  });
});

describe('a message', () => {
  it('has texts, reasoning, pictures and calls', () => {
    const parts: JsonObject[] = [{ type: 'text', text: 'Look:' }, { type: 'image_url', image_url: { url: PNG } }, { type: 'thing', is: 1 }];
    const call = { id: 'c1', type: 'function', function: { name: 'buy', arguments: '{"item":"tea"}' } };
    expect(contentOf({ role: 'assistant', content: parts, reasoning_content: 'Hm.', tool_calls: [call, { function: { name: 'x', arguments: '{' } }] })).toEqual({
      role: 'assistant',
      reasoning: 'Hm.',
      texts: ['Look:', '{ "type": "thing", "is": 1 }'],
      pictures: [PNG],
      calls: [{ id: 'c1', name: 'buy', text: '{ "item": "tea" }' }, { id: null, name: 'x', text: '{' }],
      answers: null,
    });
  });

  it('has its reasoning apart where it stands in the text', () => {
    expect(contentOf({ role: 'assistant', content: '<think>\nIt is cheap.\n</think>\n\nI buy it.' })).toMatchObject({ reasoning: 'It is cheap.', texts: ['I buy it.'] });
    expect(contentOf({ role: 'assistant', content: [{ type: 'thinking', thinking: 'Hm.' }, { type: 'text', text: 'Yes.' }] })).toMatchObject({ reasoning: 'Hm.', texts: ['Yes.'] });
  });

  it('may be anything', () => {
    const messages: JsonObject[] = [{}, { role: 3, content: 7 }, { content: [null, 1, []], tool_calls: 'x' }, { tool_calls: [null, 'x', {}] }];
    for (const message of messages) expect(() => contentOf(message)).not.toThrow();
  });
});

describe('JSON', () => {
  it('is in one line if it is short', () => {
    expect(jsonText({ a: [1, 'x\n  y'], b: {} })).toBe('{ "a": [ 1, "x\\n  y" ], "b": {} }');
    expect(jsonText({ text: 'a long text '.repeat(8) }).split('\n')).toHaveLength(3);
  });
});

describe('a picture', () => {
  it('is shown only if it is in the record, and of a known kind', () => {
    expect(pictureUrl(PNG)).toBe(PNG);
    for (const url of ['https://example.org/a.png?told=secret', 'data:image/svg+xml;base64,PHN2Zz4=', 'data:text/html;base64,PGI+', `${PNG}" onerror="x`, null]) {
      expect(pictureUrl(url)).toBe(null);
    }
  });

  it('is found in the forms of OpenAI, Anthropic and MCP', () => {
    const forms: JsonObject[] = [
      { type: 'input_image', image_url: PNG },
      { type: 'image', source: { type: 'base64', media_type: 'image/png', data: 'iVBORw0KGgo=' } },
      { type: 'image', mimeType: 'image/png', data: 'iVBORw0KGgo=' },
    ];
    for (const form of forms) expect(contentOf({ role: 'user', content: [form] }).pictures).toEqual([PNG]);
    expect(contentOf({ role: 'user', content: [{ type: 'image_url', image_url: { url: 'https://a.example/b' } }] }).texts).toEqual(['[picture that is not shown: https://a.example/b]']);
  });
});

describe('numbers of a turn', () => {
  it('are its reward, if there is one, and how unlikely a token was', () => {
    expect(rewardOf({ prompt: [], completion: {}, steps: [{ reward: 1 }, {}, { reward: -0.5 }] })).toBe(0.5);
    expect(rewardOf({ prompt: [], completion: {}, steps: [{}] })).toBe(null);
    expect([0, Math.log(0.7), Math.log(0.4), Math.log(0.2), -9].map(levelOf)).toEqual([0, 1, 2, 3, 4]);
  });
});

describe('rows of a long list', () => {
  const answered = () => new Promise((go) => setTimeout(go)); // promises that are kept run first

  it('are fetched by pages, each once, and again after a change', async () => {
    const load = vi.fn((start: number, count: number) => Promise.resolve({ total: 10_000, rows: Array.from({ length: count }, (_, index) => start + index) }));
    const rows = new PagedRows<number>(load);
    await vi.waitFor(() => expect(rows.row(99)).toBe(99));
    rows.need(250, 310);
    rows.need(251, 311);
    expect(rows.row(305)).toBe(undefined);
    await vi.waitFor(() => expect(rows.row(305)).toBe(305));
    expect(load.mock.calls.map(([start]) => start)).toEqual([0, 200, 300]);
    rows.refresh();
    expect(rows.row(305)).toBe(305);
    await vi.waitFor(() => expect(load.mock.calls.map(([start]) => start)).toEqual([0, 200, 300, 200, 300]));
    rows.close();
  });

  it('keep no more pages than a bound', async () => {
    const rows = new PagedRows<number>((start, count) => Promise.resolve({ total: 1e6, rows: Array.from({ length: count }, (_, index) => start + index) }));
    for (let page = 0; page < 80; page += 1) {
      rows.need(page * 100, page * 100 + 20);
      await answered();
      expect(rows.row(page * 100)).toBe(page * 100);
    }
    expect(rows.row(0)).toBe(undefined);
  });

  it('come after a failure, if they are asked for again', async () => {
    let fails = true;
    const rows = new PagedRows<number>(() => (fails ? Promise.reject(new Error('away')) : Promise.resolve({ total: 1, rows: [7] })));
    await vi.waitFor(() => expect(rows.value.failure?.message).toContain('away'));
    fails = false;
    rows.refresh();
    await vi.waitFor(() => expect(rows.row(0)).toBe(7));
    expect(rows.value.failure).toBe(null);
  });
});

describe('lines of an answer', () => {
  it('are whole, however they arrive', async () => {
    const bytes = new TextEncoder().encode('{"a":"ä"}\n{"b":2}\n');
    const body = new ReadableStream({ start: (out) => { for (const byte of bytes) out.enqueue(new Uint8Array([byte])); out.close(); } });
    const lines = [];
    for await (const line of linesOf(new Response(body))) lines.push(line);
    expect(lines).toEqual(['{"a":"ä"}', '{"b":2}']);
  });
});
