import { useEffect, useState } from 'preact/hooks';
import type { Play } from './play';

const WARN_S = 60;
const PART = 0.25;
const LOOK_MS = 1000;

/** Says that the session is about to end for want of use, and keeps it if asked to. */
export function Lease({ play }: { play: Play }) {
  const [left, setLeft] = useState<number | null>(null);
  useEffect(() => {
    const look = () => setLeft(play.value.live ? play.visit.leaseS : null);
    const timer = setInterval(look, LOOK_MS);
    return () => clearInterval(timer);
  }, [play]);
  const limit = play.visit.limitS;
  if (left === null || limit === null || left > Math.min(WARN_S, limit * PART)) return null;
  const over = left <= 0;
  return (
    <div class="box warn" role="status">
      <span class="grow">
        {over ? 'The session was idle for too long. It has ended, or ends now.' : `The session ends in ${Math.ceil(left)} s unless it gets a call.`}
      </span>
      <button type="button" class="small" disabled={play.value.busy !== null} onClick={() => void play.keep()}>
        {over ? 'Look' : 'Keep it'}
      </button>
    </div>
  );
}
