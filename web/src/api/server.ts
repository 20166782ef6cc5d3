import { HttpServer } from 'openenv/http';
import { heldKey } from './key';
import { ROOT } from './root';

/** The server of this page. */
export const SERVER = new HttpServer(ROOT, { key: heldKey });
