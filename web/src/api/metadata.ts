import type { RJSFSchema } from '@rjsf/utils';

export interface Tool {
  name: string;
  description?: string | null;
  input_schema: RJSFSchema;
}

/** How the environment speaks with a language model. */
export interface Chat {
  system: string | null;
  observation: string | null;
  answer: 'tools' | { kind: 'json' } | { kind: 'tag'; tag: string } | { kind: 'regex'; pattern: string };
}

/** What `GET /web/metadata` says: all that the page needs at its start. */
export interface Metadata {
  name: string;
  description: string;
  readme_content?: string | null;
  version?: string | null;
  author?: string | null;
  documentation_url?: string | null;
  seedable?: boolean | null;
  chat?: Chat | null;
  schemas: { action: RJSFSchema; observation: RJSFSchema; state: RJSFSchema };
  reset_schema: RJSFSchema;
  tools: Tool[] | null;
  panel: boolean;
  /** False where the author hides the state, as it gives the answer away. */
  show_state?: boolean;
  /** Whether the environment lists its tasks, by splits. */
  tasks?: boolean;
  /** One for all schemas. */
  schema_hash?: string | null;
  /** What could not be found out. */
  notes?: string[];
  /** Whether its author has a page of their own at `web/custom/`. */
  custom?: boolean;
  server: { version: string; environment: string; mode: string; max_sessions: number; idle_timeout_s: number | null };
}
