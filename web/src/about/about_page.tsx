import { marked } from 'marked';
import { useEffect, useRef } from 'preact/hooks';
import type { Chat, Metadata } from '../api/metadata';
import { cleanNodes } from '../observation/clean';
import { JsonText } from '../observation/observation';

const FRONT_MATTER = /^---\r?\n[\s\S]*?\r?\n---\r?\n/;

/** The environment's card and its README. */
export function AboutPage({ metadata }: { metadata: Metadata }) {
  return (
    <div class="about">
      <section aria-labelledby="card-title">
        <h2 id="card-title">{metadata.name}</h2>
        <p>{metadata.description}</p>
        <dl class="fields">
          {facts(metadata).map(([name, value]) => <div><dt>{name}</dt><dd>{value}</dd></div>)}
        </dl>
      </section>
      {metadata.tools && (
        <section aria-labelledby="tools-title">
          <h2 id="tools-title">Tools</h2>
          <dl class="fields">
            {metadata.tools.map((tool) => <div><dt>{tool.name}</dt><dd>{tool.description || 'no description'}</dd></div>)}
          </dl>
        </section>
      )}
      {metadata.chat && <Conversation chat={metadata.chat} system={metadata.chat.system ?? metadata.description} />}
      {metadata.readme_content && <Readme text={metadata.readme_content} />}
      <section aria-label="Schemas">
        <details><summary>Schema of actions</summary><JsonText value={metadata.schemas.action as never} /></details>
        <details><summary>Schema of observations</summary><JsonText value={metadata.schemas.observation as never} /></details>
        <details><summary>Schema of the state</summary><JsonText value={metadata.schemas.state as never} /></details>
      </section>
    </div>
  );
}

/** What a language model reads, and how its answer becomes an action. */
function Conversation({ chat, system }: { chat: Chat; system: string }) {
  return (
    <section aria-labelledby="chat-title">
      <h2 id="chat-title">Conversation with a model</h2>
      <dl class="fields">
        <div><dt>system prompt</dt><dd>{system || 'none'}</dd></div>
        {chat.observation !== null && <div><dt>observation</dt><dd><pre>{chat.observation}</pre></dd></div>}
        <div><dt>answer</dt><dd>{formOf(chat.answer)}</dd></div>
      </dl>
    </section>
  );
}

function formOf(answer: Chat['answer']): string {
  if (answer === 'tools') return 'calls of tools';
  return answer.kind === 'tag' ? `<${answer.tag}>...</${answer.tag}>` : answer.kind === 'regex' ? answer.pattern : 'a JSON object';
}

function facts(metadata: Metadata): [string, string][] {
  const { server } = metadata;
  const all: [string, string | null | undefined][] = [
    ['version', metadata.version],
    ['author', metadata.author],
    ['documentation', metadata.documentation_url],
    ['seeds', metadata.seedable === false ? 'are not taken' : null],
    ['server', `openenv ${server.version}, ${server.mode}`],
    ['sessions', `up to ${server.max_sessions} at once`],
    ['lease', server.idle_timeout_s ? `a session ends after ${server.idle_timeout_s} s without a call` : 'a session does not end by itself'],
  ];
  return all.filter((fact): fact is [string, string] => !!fact[1]);
}

function Readme({ text }: { text: string }) {
  const place = useRef<HTMLElement>(null);
  // The nodes themselves, and no text of them that would be parsed again.
  useEffect(() => place.current?.replaceChildren(cleaned(text)), [text]);
  return <section class="readme" aria-label="README" ref={place} />;
}

/** Markdown without anything that acts: a README is of whoever wrote the environment. */
function cleaned(readme: string): DocumentFragment {
  const html = marked.parse(readme.replace(FRONT_MATTER, ''), { async: false, gfm: true });
  const fragment = cleanNodes(html, {
    USE_PROFILES: { html: true },
    FORBID_TAGS: ['style', 'form', 'input', 'button', 'textarea', 'select', 'audio', 'video'],
    FORBID_ATTR: ['style', 'id', 'name', 'class'],
  });
  for (const link of fragment.querySelectorAll('a')) {
    link.target = '_blank';
    link.rel = 'noopener noreferrer';
  }
  for (const block of fragment.querySelectorAll('pre')) block.tabIndex = 0;
  for (const image of fragment.querySelectorAll('img')) {
    if (!image.hasAttribute('src')) image.replaceWith(image.alt);
    else if (!image.alt) image.alt = '';
  }
  // The page has headings of its own above these.
  for (let level = 5; level >= 1; level--) {
    for (const heading of fragment.querySelectorAll(`h${level}`)) {
      const lower = document.createElement(`h${Math.min(level + 1, 6)}`);
      lower.append(...heading.childNodes);
      heading.replaceWith(lower);
    }
  }
  return fragment;
}
