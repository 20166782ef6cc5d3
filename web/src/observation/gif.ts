import { encode } from 'modern-gif';
import type { Transition } from '../episode/transition';
import { cleanNodes } from './clean';
import { picturesOf } from './images';
import { pictureAlone } from './rendered';

const MOST_FRAMES = 300;
const LONGEST_SIDE = 480;
const FRAME_MS = 300;
const LAST_FRAME_MS = 1500;
/** Of a drawing that is text or HTML, in CSS pixels. */
const PAPER = { width: 480, height: 360 };
/** Control characters, as terminals write them: HTML may have them, XML must not. */
const NOT_XML = /[\x00-\x08\x0b\x0c\x0e-\x1f]/g;

/** An animated GIF of an episode: one frame for each step with a picture or a drawing; of very many, every nth. */
export async function gifOf(transitions: Transition[]): Promise<Blob> {
  const every = Math.ceil(transitions.length / MOST_FRAMES);
  const chosen = transitions.filter((_, index) => index % every === 0 || index === transitions.length - 1);
  const images = (await Promise.all(chosen.map(imageOf))).filter((image) => image !== null);
  const first = images[0];
  if (!first) throw new Error('no step of this episode has a picture that could be read');
  const scale = LONGEST_SIDE / Math.max(first.width, first.height);
  const [width, height] = [Math.round(first.width * scale), Math.round(first.height * scale)];
  const frames = images.map((image, index) => ({
    data: painted(image, width, height),
    delay: index === images.length - 1 ? LAST_FRAME_MS : FRAME_MS,
  }));
  return new Blob([await encode({ width, height, frames })], { type: 'image/gif' });
}

/** The drawing of a transition as an image, else the picture of its observation; null if it has neither. */
async function imageOf(transition: Transition): Promise<HTMLImageElement | null> {
  const html = transition.shown?.html;
  const urls = html ? [pictureAlone(html), onPaper(html)] : [picturesOf(transition.observation)[0]?.url];
  for (const url of urls) {
    if (!url) continue;
    const image = new Image();
    image.src = url;
    try {
      await image.decode();
      return image;
    } catch {
      continue; // a damaged picture: the whole drawing may still be drawn
    }
  }
  return null;
}

/** HTML as an SVG image: browsers draw it without running anything in it. */
function onPaper(html: string): string {
  const body = document.implementation.createHTMLDocument().body;
  body.style.font = '14px/1.5 system-ui, sans-serif';
  body.append(cleanNodes(html, { FORBID_TAGS: ['form'] }));
  const inside = new XMLSerializer().serializeToString(body).replace(NOT_XML, '');
  const size = `width="${PAPER.width}" height="${PAPER.height}"`;
  const svg = `<svg xmlns="http://www.w3.org/2000/svg" ${size}><foreignObject ${size}>${inside}</foreignObject></svg>`;
  return `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
}

function painted(image: HTMLImageElement, width: number, height: number): Uint8ClampedArray<ArrayBuffer> {
  const canvas = document.createElement('canvas');
  canvas.width = width;
  canvas.height = height;
  const paper = canvas.getContext('2d')!;
  paper.fillStyle = '#fff';
  paper.fillRect(0, 0, width, height);
  // Small frames, as those of games, stay sharp; a picture of another size fits in whole.
  paper.imageSmoothingEnabled = image.width > width;
  const scale = Math.min(width / image.width, height / image.height);
  paper.drawImage(image, (width - image.width * scale) / 2, (height - image.height * scale) / 2, image.width * scale, image.height * scale);
  return paper.getImageData(0, 0, width, height).data as Uint8ClampedArray<ArrayBuffer>;
}
