/** Servers, and networks that break, for tests. */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { connect as dial, createServer, type AddressInfo, type Socket } from 'node:net';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const HERE = fileURLToPath(new URL('../../test', import.meta.url));

export class Served {
  constructor(
    readonly url: string,
    private readonly process: ChildProcess,
  ) {}

  get port(): string {
    return new URL(this.url).port;
  }

  async kill(): Promise<void> {
    const ended = once(this.process, 'exit');
    this.process.kill('SIGKILL');
    await ended;
  }
}

/** Runs `openenv serve` with the environment of the tests. */
export async function serve(options: string[] = [], variables: Record<string, string> = {}): Promise<Served> {
  const python = process.env.OPENENV_PYTHON ?? `${HERE}/../../.venv/bin/python`;
  const port = options.includes('--port') ? [] : ['--port', '0'];
  const child = spawn(python, ['-m', 'openenv', 'serve', 'environment:app', ...port, ...options], {
    cwd: HERE,
    env: { ...process.env, PYTHONDONTWRITEBYTECODE: '1', OPENENV_QUEUE_TIMEOUT_S: '0', ...variables },
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  const said: string[] = [];
  for await (const line of createInterface(child.stderr!)) {
    said.push(line);
    const url = /https?:\/\/[^\s/]+/.exec(line)?.[0];
    if (url !== undefined) {
      child.stderr!.resume(); // or the server would block when it logs more
      return new Served(url, child);
    }
  }
  throw new Error(said.join('\n'));
}

/** A network between client and server: it forwards bytes, until it is told to cut. */
export class Network {
  /** First lines of the handshakes that it has forwarded. */
  readonly requests: string[] = [];
  #cut: 'request' | 'reply' | null = null;
  readonly #forwarding = new Set<object>();
  #server = createServer((client) => this.#forward(client));

  static async to(url: string): Promise<Network> {
    const network = new Network(Number(new URL(url).port));
    network.#server.listen(0, '127.0.0.1');
    await once(network.#server, 'listening');
    return network;
  }

  private constructor(private readonly port: number) {}

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Cuts the connection once: in place of the next request, or of the next reply. */
  cut(when: 'request' | 'reply'): void {
    this.#cut = when;
  }

  /** Passes nothing more on, over the present connections, and does not close them. */
  silence(): void {
    this.#forwarding.clear();
  }

  close(): void {
    this.#server.close();
  }

  #forward(client: Socket): void {
    const server = dial(this.port, '127.0.0.1');
    this.#forwarding.add(client);
    const end = () => (client.destroy(), server.destroy());
    const pass = (when: 'request' | 'reply', to: Socket) => (bytes: Buffer) => {
      if (!this.#forwarding.has(client)) return;
      if (this.#cut === when) {
        this.#cut = null;
        return end();
      }
      const text = bytes.toString('latin1');
      if (text.startsWith('GET')) this.requests.push(text.slice(0, text.indexOf('\r\n')));
      // As a gateway names the server that it has chosen.
      to.write(when === 'reply' ? Buffer.from(text.replace(/^HTTP\/1.1 101.*\r\n/, '$&x-openenv-route: here\r\n'), 'latin1') : bytes);
    };
    client.on('data', pass('request', server));
    server.on('data', pass('reply', client));
    for (const socket of [client, server]) socket.on('close', end).on('error', end);
  }
}
