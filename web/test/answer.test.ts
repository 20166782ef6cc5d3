import { describe, expect, it } from 'vitest';
import { answerOf } from '../src/observation/answer';

const result = (more: object) => ({ tool_name: 'buy', error: null, result: { is_error: false, content: [], ...more } });

describe('the answer of a tool', () => {
  it('is its texts and pictures without the envelope', () => {
    const content = [{ type: 'text', text: 'two mugs' }, { type: 'image', data: 'AAAA', mimeType: 'image/png' }];
    expect(answerOf(result({ content }))).toEqual({ texts: ['two mugs'], pictures: ['data:image/png;base64,AAAA'], failed: false });
  });

  it('has JSON with a line for each value', () => {
    expect(answerOf(result({ content: [{ type: 'text', text: '{"id":1}' }] })).texts).toEqual(['{\n  "id": 1\n}']);
    expect(answerOf(result({ content: [{ type: 'text', text: '[not json' }] })).texts).toEqual(['[not json']);
  });

  it('is an error where the tool or the call failed', () => {
    expect(answerOf(result({ is_error: true, content: [{ type: 'text', text: 'sold out' }] }))).toMatchObject({ texts: ['sold out'], failed: true });
    expect(answerOf({ tool_name: 'buy', error: { message: 'no such tool' }, result: null })).toMatchObject({ texts: ['no such tool'], failed: true });
  });

  it('is the text of the reset before the first call', () => {
    expect(answerOf({ task: 'Cancel all orders.', done: false })).toMatchObject({ texts: ['Cancel all orders.'], failed: false });
    expect(answerOf({ done: false }).texts).toEqual(['The episode begins.']);
  });
});
