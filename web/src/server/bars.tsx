import { lasting } from '../charts/number';
import { quantile, type Histogram } from './metrics';

const HEIGHT = 72;
const FEWEST = 12;

/** A histogram of durations, drawn from its first bucket that has something to its last. */
export function Bars({ name, histogram }: { name: string; histogram: Histogram }) {
  const { counts, bounds, count } = histogram;
  const used = counts.map((each, index) => (each > 0 ? index : -1)).filter((index) => index >= 0);
  const p50 = quantile(histogram, 0.5);
  const p99 = quantile(histogram, 0.99);
  const words = count === 0 ? 'nothing yet' : `${count === 1 ? 'once' : `${count} times`}, half within ${lasting(p50 ?? 0)}, 99 % within ${lasting(p99 ?? 0)}`;
  const spare = Math.max(1, Math.ceil((FEWEST - used.length) / 2));
  const first = Math.max(0, (used[0] ?? 0) - spare);
  const last = Math.min(counts.length - 1, (used.at(-1) ?? 0) + spare);
  const most = Math.max(...counts, 1);
  const bars = counts.slice(first, last + 1);
  const width = 100 / Math.max(bars.length, 1);
  const bound = (index: number) => (Number.isFinite(bounds[index] ?? 0) ? lasting(bounds[index] ?? 0) : 'more');
  return (
    <figure class="bars" data-phase={name} data-count={count}>
      <figcaption>
        <b>{name}</b> <span class="quiet">{words}</span>
      </figcaption>
      {count > 0 && (
        <>
          <svg viewBox={`0 0 100 ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={`${name}: ${words}`}>
            {bars.map((each, index) => (
              <rect
                x={index * width + width * 0.08}
                width={width * 0.84}
                y={HEIGHT - heightOf(each, most)}
                height={heightOf(each, most)}
              >
                <title>{`${each} within ${bound(first + index)}`}</title>
              </rect>
            ))}
          </svg>
          <div class="ends" aria-hidden="true">
            <span>{first === 0 ? '0' : bound(first - 1)}</span>
            <span>{bound(last)}</span>
          </div>
        </>
      )}
    </figure>
  );
}

/** Something is always seen of a bucket that is not empty. */
function heightOf(count: number, most: number): number {
  return count === 0 ? 0 : Math.max(2, (count / most) * HEIGHT);
}
