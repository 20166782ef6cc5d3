import type { ComponentChildren } from 'preact';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { useStore } from '../store';
import type { Rows } from './source';

export interface Column<Row> {
  /** The field by which the server sorts; none if it does not. */
  sort?: string;
  label: string;
  /** A part of the grid's columns in CSS. */
  width: string;
  /** Left out on narrow screens. */
  wide?: boolean;
  end?: boolean;
  cell: (row: Row) => ComponentChildren;
}

interface Props<Row> {
  label: string;
  rows: Rows<Row>;
  columns: Column<Row>[];
  /** What is below the cells of a row. */
  below?: (row: Row) => ComponentChildren;
  rowHeight: number;
  sort: string;
  descending: boolean;
  onSort: (sort: string, descending: boolean) => void;
  onOpen: (row: Row) => void;
}

const MARGIN = 8;
// Browsers have no taller elements.
const TALLEST = 15_000_000;
const NARROW = matchMedia('(max-width: 700px)');

/** A table of any length: only the rows in sight are drawn. Arrow keys go from one to the next, Enter opens one. */
export function Table<Row>({ label, rows, columns: all, below, rowHeight, sort, descending, onSort, onOpen }: Props<Row>) {
  const { total, progress } = useStore(rows);
  const narrow = useNarrow();
  const columns = all.filter((column) => !(narrow && column.wide));
  const place = useRef<HTMLDivElement>(null);
  const [sight, setSight] = useState({ top: 0, height: 0 });
  const [selected, setSelected] = useState(0);
  const count = Math.min(total ?? 0, Math.floor(TALLEST / rowHeight));
  const first = Math.max(0, Math.floor(sight.top / rowHeight) - MARGIN);
  const last = Math.min(count - 1, Math.ceil((sight.top + sight.height) / rowHeight) + MARGIN);
  const template = columns.map((column) => column.width).join(' ');

  useLayoutEffect(() => {
    const element = place.current;
    if (!element) return;
    const look = () => setSight({ top: element.scrollTop, height: element.clientHeight });
    const sized = new ResizeObserver(look);
    sized.observe(element);
    look();
    return () => sized.disconnect();
  }, []);
  useEffect(() => {
    if (place.current) place.current.scrollTop = 0;
    setSelected(0);
  }, [rows]);
  useEffect(() => {
    if (count > 0) rows.need(first, last);
  }, [rows, first, last, count]);

  const select = (index: number) => {
    const to = Math.min(count - 1, Math.max(0, index));
    setSelected(to);
    const element = place.current;
    if (!element) return;
    const head = element.querySelector<HTMLElement>('.head')?.offsetHeight ?? 0;
    if (to * rowHeight < element.scrollTop) element.scrollTop = to * rowHeight;
    else if ((to + 1) * rowHeight + head > element.scrollTop + element.clientHeight) element.scrollTop = (to + 1) * rowHeight + head - element.clientHeight;
  };
  const press = (event: KeyboardEvent) => {
    if (event.target !== place.current) return;
    const page = Math.max(1, Math.floor(sight.height / rowHeight) - 2);
    const to = { ArrowUp: selected - 1, ArrowDown: selected + 1, Home: 0, End: count - 1, PageUp: selected - page, PageDown: selected + page }[event.key];
    const row = rows.row(selected);
    if (to !== undefined) select(to);
    else if (event.key === 'Enter' && row) onOpen(row);
    else return;
    event.preventDefault();
  };
  const shown = Array.from({ length: Math.max(0, last - first + 1) }, (_, offset) => first + offset);
  return (
    <div
      class="table"
      ref={place}
      role="grid"
      aria-label={label}
      aria-rowcount={total === null ? -1 : total + 1}
      aria-busy={total === null}
      aria-activedescendant={count ? `row-${selected}` : undefined}
      tabIndex={0}
      onScroll={(event) => setSight({ top: event.currentTarget.scrollTop, height: event.currentTarget.clientHeight })}
      onKeyDown={press}
    >
      <div role="row" aria-rowindex={1} class="head" style={{ gridTemplateColumns: template }}>
        {columns.map((column) => {
          const sorted = column.sort !== undefined && column.sort === sort;
          return (
            <div role="columnheader" class={column.end ? 'end' : ''} aria-sort={sorted ? (descending ? 'descending' : 'ascending') : undefined}>
              {column.sort === undefined ? column.label : (
                <button type="button" class="link" onClick={() => onSort(column.sort as string, sorted ? !descending : true)}>
                  {column.label}{sorted && <span aria-hidden="true">{descending ? ' ↓' : ' ↑'}</span>}
                </button>
              )}
            </div>
          );
        })}
      </div>
      <div role="rowgroup" class="body" style={{ height: `${count * rowHeight}px` }}>
        {shown.map((index) => {
          const row = rows.row(index);
          return (
            <div
              role="row"
              key={index}
              id={`row-${index}`}
              class="line"
              aria-rowindex={index + 2}
              aria-selected={index === selected}
              style={{ top: `${index * rowHeight}px`, height: `${rowHeight}px` }}
              onClick={() => { setSelected(index); if (row) onOpen(row); }}
            >
              <div role="presentation" class="cells" style={{ gridTemplateColumns: template }}>
                {columns.map((column) => <div role="gridcell" class={column.end ? 'end' : ''}>{row ? column.cell(row) : '…'}</div>)}
              </div>
              {row && below?.(row)}
            </div>
          );
        })}
      </div>
      {total === 0 && progress !== 'searching' && <p class="empty">{progress.startsWith('searched') ? 'Nothing so far.' : 'None match.'}</p>}
    </div>
  );
}

function useNarrow(): boolean {
  const [narrow, setNarrow] = useState(NARROW.matches);
  useEffect(() => {
    const look = () => setNarrow(NARROW.matches);
    NARROW.addEventListener('change', look);
    return () => NARROW.removeEventListener('change', look);
  }, []);
  return narrow;
}
