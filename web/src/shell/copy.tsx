import { useState } from 'preact/hooks';

const SHOWN_MS = 1500;

/** Puts a text into the clipboard, also where a page over plain HTTP has none to ask. */
export function Copy({ text, label = 'Copy' }: { text: string; label?: string }) {
  const [said, setSaid] = useState('');
  const copy = async () => {
    setSaid((await copied(text)) ? 'Copied' : 'Select it and press Ctrl+C');
    setTimeout(() => setSaid(''), SHOWN_MS);
  };
  return (
    <button type="button" class="small copy" onClick={() => void copy()}>
      <span aria-live="polite">{said || label}</span>
    </button>
  );
}

async function copied(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement('textarea');
    area.value = text;
    area.className = 'away';
    document.body.append(area);
    area.select();
    const done = document.execCommand('copy');
    area.remove();
    return done;
  }
}
