import { useEffect, useRef } from 'preact/hooks';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { useTheme } from '../shell/theme';
import { short } from '../charts/number';

const HEIGHT = 110;

/** How a number went in the last minutes. */
export function Trend({ name, times, values }: { name: string; times: number[]; values: (number | null)[] }) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const theme = useTheme();
  const last = values.at(-1);
  const data = (): uPlot.AlignedData => [times.map((time) => time - (times.at(-1) ?? 0)), values];
  useEffect(() => {
    const element = place.current;
    if (!element) return;
    const styles = getComputedStyle(element);
    const color = (of: string) => styles.getPropertyValue(of).trim();
    const axis = { stroke: color('--quiet'), grid: { stroke: color('--line'), width: 1 }, ticks: { show: false }, font: '11px system-ui' };
    plot.current = new uPlot(
      {
        width: element.clientWidth || 240,
        height: HEIGHT,
        legend: { show: false },
        cursor: { show: false },
        scales: { x: { time: false, range: (_, low) => [Math.min(low ?? -60, -60), 0] }, y: { range: (_, _low, high) => [0, Math.max(high ?? 1, 1)] } },
        series: [{}, { stroke: color('--first'), fill: color('--wash'), width: 1.5, points: { show: false } }],
        axes: [{ ...axis, size: 22, values: (_, ticks) => ticks.map((tick) => (tick === 0 ? 'now' : `${tick} s`)) }, { ...axis, size: 38 }],
      },
      data(),
      element,
    );
    const sized = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: HEIGHT }));
    sized.observe(element);
    return () => {
      sized.disconnect();
      plot.current?.destroy();
    };
  }, [theme]);
  useEffect(() => plot.current?.setData(data()), [times.length, times.at(-1)]);
  return (
    <figure class="trend">
      <figcaption>
        <span>{name}</span> <b>{last == null ? '–' : short(last)}</b>
      </figcaption>
      <div ref={place} class="plot" role="img" aria-label={`${name}, now ${last ?? 'unknown'}`} />
    </figure>
  );
}
