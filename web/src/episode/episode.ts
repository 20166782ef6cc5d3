import { sizeOf } from '../api/json';
import { Curve } from './curve';
import type { Transition } from './transition';

/** One episode, of which the page may have forgotten the beginning. */
export class Episode {
  transitions: Transition[] = [];
  sizes: number[] = [];
  curve = new Curve();
  /** Steps done, those forgotten included. */
  steps = 0;
  forgotten = 0;

  constructor(readonly number: number) {}

  get last(): Transition | undefined {
    return this.transitions.at(-1);
  }

  get done(): boolean {
    return this.last?.done ?? false;
  }

  add(transition: Transition): number {
    const size = sizeOf(transition);
    this.transitions.push(transition);
    this.sizes.push(size);
    if (transition.step > 0 && transition.error === null) {
      this.steps = Math.max(this.steps, transition.step);
      this.curve.add(transition.step, transition.reward);
    }
    return size;
  }

  /** Forgets transitions from the beginning until so many of them, and so many bytes, are free; `most` at most. */
  forget(most: number, count: number, bytes: number): { count: number; bytes: number } {
    let freed = 0;
    let gone = 0;
    while (gone < most && (gone < count || freed < bytes)) freed += this.sizes[gone++] ?? 0;
    this.transitions.splice(0, gone);
    this.sizes.splice(0, gone);
    this.forgotten += gone;
    return { count: gone, bytes: freed };
  }
}
