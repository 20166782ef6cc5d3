import { useEffect, useState } from 'preact/hooks';
import type { Play } from '../play/play';
import { useStore } from '../store';

/** Says that the server does not answer, and when it is asked again. */
export function Away({ play }: { play: Play }) {
  const { retryAt } = useStore(play);
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((count) => count + 1), 500);
    return () => clearInterval(timer);
  }, []);
  const left = retryAt === null ? 0 : Math.max(0, Math.ceil((retryAt - performance.now()) / 1000));
  return (
    <div class="box warn" id="away" role="status">
      <span class="grow">
        <strong>The server does not answer.</strong> What you see is kept. {retryAt === null ? 'Asking now…' : <span aria-hidden="true">Asking again in {left} s.</span>}
      </span>
      <button type="button" class="small" onClick={() => void play.retry()}>Ask now</button>
    </div>
  );
}
