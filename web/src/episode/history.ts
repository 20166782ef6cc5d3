import { Episode } from './episode';
import type { Transition } from './transition';

/** What a page keeps: of more, the oldest is forgotten. */
export const MOST_TRANSITIONS = 1000;
export const MOST_BYTES = 32 * 1024 * 1024;
const MOST_EPISODES = 50;

/** The episodes of a visit, newest last. */
export class History {
  episodes: Episode[] = [];
  private count = 0;
  private bytes = 0;
  private begun = 0;

  constructor(
    private readonly mostTransitions = MOST_TRANSITIONS,
    private readonly mostBytes = MOST_BYTES,
  ) {}

  get current(): Episode | undefined {
    return this.episodes.at(-1);
  }

  get kept(): number {
    return this.count;
  }

  /** A reset begins an episode; a step belongs to the last one. */
  add(transition: Transition): Episode {
    if (transition.step === 0 || !this.current) this.episodes.push(new Episode(++this.begun));
    const episode = this.current as Episode;
    this.bytes += episode.add(transition);
    this.count += 1;
    this.trim(episode);
    return episode;
  }

  private trim(current: Episode): void {
    for (const episode of [...this.episodes]) {
      const tooMany = this.count - this.mostTransitions;
      const tooLarge = this.bytes - this.mostBytes;
      const crowded = this.episodes.length > MOST_EPISODES && episode !== current;
      if (tooMany <= 0 && tooLarge <= 0 && !crowded) return;
      // The newest transition stays, whatever its size.
      const most = episode === current ? episode.transitions.length - 1 : episode.transitions.length;
      if (most > 0) {
        const freed = episode.forget(most, crowded ? most : tooMany, tooLarge);
        this.count -= freed.count;
        this.bytes -= freed.bytes;
      }
      if (episode !== current && episode.transitions.length === 0) this.episodes.splice(this.episodes.indexOf(episode), 1);
    }
  }
}
