import { describe, expect, it } from 'vitest';
import type { Json } from '../src/api/json';
import { readRecording } from '../src/episode/recording';
import { picturesOf } from '../src/observation/images';

const PNG = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==';
const URL = `data:image/png;base64,${PNG}`;
const rendered = (url: string): Json => ({ screen: url, views: [url], metadata: { before: url } });
const pictures = [
  { path: 'screen', url: URL },
  { path: 'views[0]', url: URL },
  { path: 'metadata.before', url: URL },
];

describe('the pictures of an observation', () => {
  it('are its rendered images, also in lists and metadata', () => {
    expect(picturesOf(rendered(URL))).toEqual(pictures);
  });

  it('are those of a recorded line, too', () => {
    const line = JSON.stringify({ step: 0, observation: rendered(URL) });
    expect(picturesOf(readRecording(line).transitions[0]!.observation)).toEqual(pictures);
  });

  it('are files in base64, and what the schema says', () => {
    expect(picturesOf({ screen: PNG })).toEqual([{ path: 'screen', url: URL }]);
    const schema = { properties: { screen: { type: 'string', contentMediaType: 'image/bmp' } } } as const;
    expect(picturesOf({ screen: 'Qk0=' }, schema)).toEqual([{ path: 'screen', url: 'data:image/bmp;base64,Qk0=' }]);
  });

  it('are no other texts', () => {
    expect(picturesOf({ text: 'data:text/html;base64,PGI+', path: '/9j/ is a path' })).toEqual([]);
  });
});
