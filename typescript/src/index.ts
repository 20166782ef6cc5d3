export { Client, connect, type ClientOptions } from './client.ts';
export type { Socket, SocketClass } from './connection.ts';
export * from './errors.ts';
export { Session, type AnyContract, type CallOptions, type ResetArguments, type StepResult, type UntypedContract } from './session.ts';
export { NdArray } from './values.ts';
