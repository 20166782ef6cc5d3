import { useEffect, useRef } from 'preact/hooks';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import type { Curve } from '../episode/curve';
import { useTheme } from '../shell/theme';
import { short } from './number';

interface Props {
  curve: Curve;
  /** Changes whenever the curve has. */
  length: number;
  selected: number | null;
  onSelect?: (step: number) => void;
}

const HEIGHT = 170;
// Steps are counted.
const WHOLE = [1, 2, 5].flatMap((part) => [0, 1, 2, 3, 4, 5, 6].map((power) => part * 10 ** power)).sort((one, other) => one - other);
// Where all are 0, a scale to 1; uPlot's would go to 100.
const fit: uPlot.Scale.Range = (_, low, high) => (low === 0 && high === 0 ? [0, 1] : low == null || high == null ? [low, high] : uPlot.rangeNum(low, high, 0.1, true));

/** Reward of each step, and the return up to it. */
export function RewardCurve({ curve, length, selected, onSelect }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const chosen = useRef(selected);
  const theme = useTheme();
  chosen.current = selected;

  useEffect(() => {
    const element = place.current;
    if (!element) return;
    const styles = getComputedStyle(element);
    const color = (name: string) => styles.getPropertyValue(name).trim();
    const axis = { stroke: color('--quiet'), grid: { stroke: color('--line'), width: 1 }, ticks: { show: false }, font: '11px system-ui' };
    const drawn = new uPlot(
      {
        width: element.clientWidth || 300,
        height: HEIGHT,
        legend: { show: false },
        cursor: { drag: { x: false, y: false }, points: { size: 6 } },
        scales: { x: { time: false, range: (_, low, high) => [Math.min(low ?? 0, 0), Math.max(high ?? 1, 1)] }, y: { range: fit }, total: { range: fit } },
        series: [
          {},
          { label: 'reward', stroke: color('--first'), width: 1.5, points: { show: (_u, _s, from, to) => to - from < 60, size: 5, fill: color('--first') } },
          { label: 'return', stroke: color('--second'), width: 1.5, dash: [5, 4], scale: 'total', points: { show: false } },
        ],
        axes: [
          { ...axis, size: 26, incrs: WHOLE },
          { ...axis, size: 44 },
          { ...axis, scale: 'total', side: 1, size: 44, grid: { show: false } },
        ],
        hooks: {
          draw: [
            (u) => {
              if (chosen.current === null) return;
              const x = u.valToPos(chosen.current, 'x', true);
              u.ctx.save();
              u.ctx.strokeStyle = color('--quiet');
              u.ctx.beginPath();
              u.ctx.moveTo(x, u.bbox.top);
              u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
              u.ctx.stroke();
              u.ctx.restore();
            },
          ],
        },
      },
      dataOf(curve),
      element,
    );
    plot.current = drawn;
    drawn.over.addEventListener('click', () => {
      const index = drawn.cursor.idx;
      const step = index == null ? undefined : drawn.data[0][index];
      if (step !== undefined) onSelect?.(step);
    });
    const sized = new ResizeObserver(() => drawn.setSize({ width: element.clientWidth, height: HEIGHT }));
    sized.observe(element);
    return () => {
      sized.disconnect();
      drawn.destroy();
      plot.current = null;
    };
  }, [theme]);

  useEffect(() => plot.current?.setData(dataOf(curve)), [curve, length]);
  useEffect(() => plot.current?.redraw(false), [selected]);

  const last = curve.rewards.at(-1);
  return (
    <figure class="curve">
      <div ref={place} class="plot" role="img" aria-label={`Reward of ${length} steps; the last ${last ?? 'none'}, the return ${short(curve.total)}`} />
      <figcaption>
        <span class="key first">reward</span> <span class="key second">return</span>
        {curve.stride > 1 && <span class="quiet"> one point for {curve.stride} steps</span>}
      </figcaption>
    </figure>
  );
}

function dataOf(curve: Curve): uPlot.AlignedData {
  return [curve.steps, curve.rewards, curve.returns];
}
