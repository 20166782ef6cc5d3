import { useEffect, useRef } from 'preact/hooks';
import { SHORTCUTS } from './shortcuts';

export function Help({ onClose }: { onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} aria-labelledby="help-title" onClose={onClose}>
      <h2 id="help-title">Keys</h2>
      <dl class="keys-list">
        {SHORTCUTS.map(([keys, does]) => (
          <div>
            <dt>{keys.split(', ').map((group, index) => <>{index > 0 && ', '}{group.split(' ').map((key) => <><kbd>{key}</kbd> </>)}</>)}</dt>
            <dd>{does}</dd>
          </div>
        ))}
      </dl>
      <button type="button" onClick={() => dialog.current?.close()}>Close</button>
    </dialog>
  );
}
