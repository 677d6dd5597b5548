/** What heads of columns mean that need more words than their own, on all pages. */
export const HEADS: Record<string, string> = {
  "above least cost": "How far the cost of the plan is above the least cost at most, as the optimizer proved",
  applied: "The newest revision that the process has applied",
  "carried in part": "Services whose endpoints in the region cannot carry all their calls, since some are unhealthy or lost, and the part that they carry; callers send the rest elsewhere",
  cores: "Cores in use, by the CPU time of the last minutes",
  due: "Share of the calls to its region that belongs to it: its power by that of all serving endpoints there",
  failed: "Part of the calls that ended in a server error or a fault; refused calls are among them",
  index: "1 + wasted / used. Of a part of a service, its share of what the service wastes",
  "offered/s": "Calls per second that callers make before any is moved or dropped",
  "own index": "1 + wasted / used by its own p99: how uneven it is inside",
  power: "Weight of the endpoint times the speed of its host; 1 is an ordinary one",
  predicted: "The load by the tables as they are planned",
  received: "Share of the calls to its region that it received in the last minutes",
  serving: "Endpoints that take calls, of all: neither lost, drained, nor found unhealthy",
  "unmet/s": "Calls per second that tables drop, since no region has room",
  wasted: "Cores that are kept free because the hottest containers are hotter than others",
};

/** Gives a head of a column its explanation once the pointer is over it. */
export function explainHead(event: Event): void {
  const head = event.target instanceof Element ? event.target.closest("th") : null;
  const words = head && !head.title ? HEADS[head.textContent?.trim() ?? ""] : undefined;
  if (head && words) head.title = words;
}
