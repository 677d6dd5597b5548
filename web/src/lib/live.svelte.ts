/** A stream of events, which is opened again when it ends. Its token is sent as a header, which an EventSource cannot. */

import { untrack } from "svelte";
import { authorization, pause, updated, type Update } from "./stream.ts";

const TOKEN = "fairmesh-token";
/** Time without an event after which a stream counts as lost, in ms. */
const SILENCE_MS = 12_000;

export interface Refused {
  status: number;
  error: string;
  hint: string;
}

export function token(): string {
  return sessionStorage.getItem(TOKEN) ?? "";
}

export function setToken(text: string): void {
  if (text) sessionStorage.setItem(TOKEN, text);
  else sessionStorage.removeItem(TOKEN);
}

export async function get(path: string, signal?: AbortSignal): Promise<Response> {
  const headers = authorization(location.protocol, token());
  return fetch(`/ui/api/${path}`, { headers, signal: signal ?? null, cache: "no-store" });
}

export async function refusal(response: Response): Promise<Refused> {
  const body: unknown = await response.json().catch(() => null);
  const text = (name: string) => {
    const value = body && typeof body === "object" ? (body as Record<string, unknown>)[name] : undefined;
    return typeof value === "string" ? value : "";
  };
  return { status: response.status, error: text("error") || `status ${response.status}`, hint: text("hint") };
}

/** Takes what an event shows: its head, and its rows by name. */
export type Take = (name: string, head: unknown, rows: Map<string, unknown>) => void;

/** What all pages show of their connection. */
export class Live {
  /** When the last event arrived, by this machine's clock; 0: none yet. */
  at = $state(0);
  connected = $state(false);
  /** Streams that the page follows now; a page may need none. */
  following = $state(0);
  refused = $state<Refused | null>(null);
  version = $state("");
  /** The page is of another build than its control plane. */
  outdated = $state(false);
  /** Time of history when it was seen last, to notice that it began anew. */
  historyMs = $state(-1);
  restarted = $state(false);

  /** Follows a path until the signal; `take` gets each event. */
  async follow(path: string, signal: AbortSignal, take: Take): Promise<void> {
    untrack(() => (this.following += 1));
    signal.addEventListener("abort", () => (this.following -= 1));
    while (!signal.aborted) {
      const quiet = new AbortController();
      const stop = () => quiet.abort();
      const begun = performance.now();
      signal.addEventListener("abort", stop);
      try {
        await this.#read(path, quiet, take);
      } catch {
        // It was lost, unless the page has ended it; the state says so, and it is opened again.
        if (!signal.aborted) this.connected = false;
      }
      signal.removeEventListener("abort", stop);
      if (signal.aborted) return;
      // A stream ends after a minute, or once its reader may read no longer, which the next request learns.
      await new Promise((resolve) => setTimeout(resolve, pause(this.connected, performance.now() - begun)));
    }
  }

  async #read(path: string, quiet: AbortController, take: Take): Promise<void> {
    let timer = setTimeout(() => quiet.abort(), SILENCE_MS);
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => quiet.abort(), SILENCE_MS);
    };
    try {
      const response = await get(path, quiet.signal);
      if (!response.ok || !response.body) {
        this.connected = false;
        this.refused = await refusal(response);
        return;
      }
      this.refused = null;
      let rest = "";
      const rows = new Map<string, Map<string, unknown>>();
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        heard();
        this.at = Date.now();
        this.connected = true;
        const events = (rest + value).split("\n\n");
        rest = events.pop() ?? "";
        for (const event of events) this.#take(event, rows, take);
      }
    } finally {
      clearTimeout(timer);
    }
  }

  #take(event: string, rows: Map<string, Map<string, unknown>>, take: Take): void {
    const field = (name: string) =>
      event.split("\n").find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2) ?? "";
    const name = field("event");
    // Without a name it only says that the stream goes on.
    if (!name) return;
    const data: unknown = JSON.parse(field("data") || "null");
    if (name === "hello") return this.#greet(data as { version: string; build: string });
    const update = data as Update;
    const { head } = update;
    const all = updated(rows.get(name) ?? new Map(), update);
    rows.set(name, all);
    if (head && typeof head === "object" && "historyMs" in head) this.#noteHistory(Number(head.historyMs));
    take(name, head, all);
  }

  #greet({ version, build }: { version: string; build: string }): void {
    const own = document.querySelector<HTMLMetaElement>("meta[name=build]")?.content ?? "";
    this.version = version;
    this.outdated = own !== build;
  }

  #noteHistory(ms: number): void {
    if (ms + 1_000 < this.historyMs) this.restarted = true;
    this.historyMs = ms;
  }
}

export const live = new Live();

/** What an event shows, or why it shows nothing. */
interface Shown {
  head: unknown;
  rows: Map<string, unknown>;
}

/** The events of a path, which a page follows while it is shown. */
export class Events {
  #shown = $state.raw<Record<string, Shown>>({});

  /** Follows what `source` returns; nothing while that is empty. */
  constructor(source: () => string) {
    $effect(() => {
      const path = source();
      this.#shown = {};
      if (!path) return;
      const ends = new AbortController();
      void live.follow(path, ends.signal, (name, head, rows) => (this.#shown = { ...this.#shown, [name]: { head, rows } }));
      return () => ends.abort();
    });
  }

  /** The head of an event; null before the first one, and if there is a problem. */
  head<T>(name: string): T | null {
    return this.problem(name) ? null : ((this.#shown[name]?.head as T | undefined) ?? null);
  }

  rows<T>(name: string): Map<string, T> {
    return (this.#shown[name]?.rows ?? new Map()) as Map<string, T>;
  }

  /** Why an event shows nothing. */
  problem(name: string): string {
    const head = this.#shown[name]?.head;
    return head && typeof head === "object" && "problem" in head ? String(head.problem) : "";
  }
}
