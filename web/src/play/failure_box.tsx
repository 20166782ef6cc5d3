import { InvalidAction, ResetRequired, ServerFull, TooManyFailures, type OpenEnvError } from 'openenv';
import { isGone } from '../api/failure';

/** An error in the server's words, and what to do next. */
export function FailureBox({ failure, onClose }: { failure: OpenEnvError; onClose?: () => void }) {
  return (
    <div class="box bad" role="alert">
      <div class="grow">
        <strong>{failure.name}</strong> {failure.message}
        {failure.faults.length > 0 && (
          <ul>
            {failure.faults.slice(0, 10).map((fault) => (
              <li>
                {fault.loc.length > 0 && <code>{fault.loc.join('.')}</code>} {fault.msg}
              </li>
            ))}
          </ul>
        )}
        <p class="hint">{adviceOn(failure)}</p>
      </div>
      {onClose && <button type="button" class="icon" aria-label="Hide this message" onClick={onClose}>×</button>}
    </div>
  );
}

function adviceOn(failure: OpenEnvError): string {
  if (isGone(failure) || failure instanceof ResetRequired) return 'The history is kept. Reset to begin a new session.';
  if (failure instanceof ServerFull) {
    return `All sessions of this server are in use. Try again ${failure.retryAfterS ? `in ${failure.retryAfterS} s` : 'in a moment'}, or raise max_sessions.`;
  }
  if (failure instanceof InvalidAction) return 'Correct these values and send them again. The episode has not changed.';
  if (failure instanceof TooManyFailures) return `This address sent too many wrong keys. Try again ${failure.retryAfterS ? `in ${failure.retryAfterS} s` : 'later'}.`;
  if (failure.blame === 'environment') return 'The environment failed. The log of the server has the traceback. Reset to go on.';
  return '';
}
