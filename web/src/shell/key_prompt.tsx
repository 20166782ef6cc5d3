import { useEffect, useRef, useState } from 'preact/hooks';
import type { OpenEnvError } from 'openenv';

/** Asks for the server's key, which is kept for as long as this tab lives. */
export function KeyPrompt({ refused, failure, onKey }: { refused: boolean; failure: OpenEnvError | null; onKey: (key: string) => Promise<void> }) {
  const [key, setKey] = useState('');
  const [busy, setBusy] = useState(false);
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => input.current?.focus(), []);
  const send = async (event: Event) => {
    event.preventDefault();
    if (busy || !key.trim()) return;
    setBusy(true);
    await onKey(key.trim());
    setBusy(false);
    input.current?.select();
  };
  const limited = failure !== null && failure.status === 429;
  return (
    <form class="prompt" onSubmit={(event) => void send(event)} aria-labelledby="key-title">
      <h2 id="key-title">This server asks for a key</h2>
      <p class="hint" id="key-hint">The server printed it at its start, or it is one of its OPENENV_API_KEYS. This tab keeps it until you close the tab.</p>
      <div class="field">
        <label for="key">Key</label>
        <input ref={input} id="key" type="password" autocomplete="off" value={key} aria-invalid={refused} aria-describedby="key-hint key-fault" onInput={(event) => setKey(event.currentTarget.value)} />
        <p class="fault" id="key-fault" role="alert">
          {limited ? failure.message : refused && !busy ? 'The server rejects this key.' : ''}
        </p>
      </div>
      <button type="submit" class="main" disabled={busy || !key.trim()}>{busy ? 'Asking…' : 'Go on'}</button>
    </form>
  );
}
