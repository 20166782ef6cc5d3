/** Gives the visitor a file. */
export function save(name: string, content: string): void {
  const url = URL.createObjectURL(new Blob([content], { type: 'application/jsonl' }));
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
