"""Objectives of random applications by an independent solver: Clarabel, an interior-point method for conic programs.

    pip install numpy scipy clarabel && python3 sim/tests/optimizer/oracle.py > sim/tests/optimizer/objectives.txt

The applications are those of `sim/src/application/random.rs`, by the same arithmetic. The pools are second-order cones, and kinks and the ceiling
are exact: nothing here is shared with the optimizer but the problem.
"""

import math
import sys

import clarabel
import numpy as np
import scipy.sparse as sp

INSTANCES = 200
CEILING = 0.9
MS_PER_DOLLAR = 1e5
MASK = (1 << 64) - 1


class Random:
    """SplitMix64."""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        bits = self.state
        bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
        return bits ^ (bits >> 31)

    def between(self, low, high):
        return low + (high - low) * ((self.next() >> 11) / float(1 << 53))

    def below(self, bound):
        return self.next() % bound

    def choose(self, values):
        return values[self.below(len(values))]


class Application:
    """A random application; `shape` has the fields of `RandomApplication`."""

    def __init__(self, shape, seed):
        self.__dict__.update(shape)
        r = self.random = Random(seed)
        self.distances()
        works = [r.between(0.5, 6.0) for _ in range(self.classes)]
        self.nodes = []
        for service in range(self.services):
            for work in works:
                work = work * r.between(0.5, 1.5)
                self.nodes.append((service, work, r.between(0.5, 5.0)))
        self.placement()
        self.edges = []
        busy = max(self.regions // 5, 1)
        for service in range(self.roots):
            for k in range(self.classes):
                demand = [r.between(50.0, 150.0) * (3.0 if at < busy else 1.0) for at in range(self.regions)]
                self.add_edge(service * self.classes + k, demand=demand)
        for service in range(self.roots, self.services):
            self.add_calls(service)
        self.pools()

    def distances(self):
        r = self.random
        places = [(r.between(0.0, 1.0), r.between(0.0, 1.0)) for _ in range(self.regions)]
        factors = [r.between(0.8, 1.2) for _ in range(self.regions)]
        self.trips = np.zeros((self.regions, self.regions))
        self.prices = np.zeros((self.regions, self.regions))
        for i, (x, y) in enumerate(places):
            for j, (u, v) in enumerate(places):
                if i != j:
                    distance = math.sqrt((x - u) * (x - u) + (y - v) * (y - v))
                    self.trips[i, j] = 5.0 + 70.0 * distance
                    self.prices[i, j] = (0.04 if distance > 0.5 else 0.02) * factors[i]

    def placement(self):
        self.is_placed = []
        for service in range(self.services):
            row = [self.random.between(0.0, 1.0) < self.placed for _ in range(self.regions)]
            for more in range(self.regions):
                if sum(row) < min(self.regions, 2):
                    row[(service + more) % self.regions] = True
            self.is_placed.append(row)

    def add_edge(self, callee, demand=None, caller=None, calls=0.0):
        request = self.random.choose([1e3, 1e4])
        response = self.random.choose([2e3, 2e4, 2e5])
        edge = dict(callee=callee, demand=demand, caller=caller, calls=calls, given=None)
        edge.update(request=request, response=response)
        self.edges.append(edge)
        return edge

    def layer(self, service):
        return 0 if service < self.roots else 1 + (service * 7919) % (self.layers - 1)

    def add_calls(self, service):
        r = self.random
        layer = self.layer(service)
        above = [other for other in range(self.services) if self.layer(other) + 1 == layer]
        above = above or list(range(self.roots))
        first, second = r.choose(above), r.choose(above)
        callers = [first, second] if r.between(0.0, 1.0) < 0.33 and second != first else [first]
        for caller in callers:
            for k in range(self.classes):
                other = r.below(self.classes)
                is_other = r.between(0.0, 1.0) < 0.3
                calls = r.choose([0.25, 0.5, 1.0, 2.0]) / len(callers)
                callee = service * self.classes + (other if is_other else k)
                edge = self.add_edge(callee, caller=caller * self.classes + k, calls=calls)
                if r.between(0.0, 1.0) < self.given:
                    edge["given"] = self.parts(self.is_placed[service], 0.2, 1.0)

    def parts(self, placed, low, high):
        """Random parts of one over the placed regions."""
        row, total = [], 0.0
        for is_placed in placed:
            part = self.random.between(low, high)
            row.append(part if is_placed else 0.0)
            total += part if is_placed else 0.0
        return [part / total for part in row]

    def pools(self):
        rates = np.zeros(len(self.nodes))
        for _ in range(max(self.layers, self.services)):
            now = np.zeros(len(self.nodes))
            for edge in self.edges:
                now[edge["callee"]] += sum(edge["demand"]) if edge["demand"] else edge["calls"] * rates[edge["caller"]]
            rates = now
        works = np.zeros(self.services)
        for (service, work, _), rate in zip(self.nodes, rates):
            works[service] += work * rate
        self.capacity = np.zeros((self.services, self.regions))
        self.sensitivity = np.zeros(self.services)
        for service in range(self.services):
            parts = self.parts(self.is_placed[service], 0.8, 1.2)
            self.capacity[service] = np.array(parts) * max(works[service], 1.0) / self.load
            self.sensitivity[service] = self.random.between(1.0, 4.0)


class Rows:
    """A sparse matrix with its right-hand side, row by row."""

    def __init__(self):
        self.entries, self.right = [], []

    def add(self, entries, right):
        self.entries += [(len(self.right), column, value) for column, value in entries]
        self.right.append(right)

    def matrix(self, columns):
        if not self.entries:
            return sp.csc_matrix((len(self.right), columns))
        rows, at, values = zip(*self.entries)
        return sp.csc_matrix((values, (rows, at)), shape=(len(self.right), columns))


def objective(app):
    """The least objective, or None where no routing keeps to the ceiling."""
    pools = [(s, j) for s in range(app.services) for j in range(app.regions) if app.is_placed[s][j]]
    pool_of = {pool: at for at, pool in enumerate(pools)}
    placed = [[j for j in range(app.regions) if app.is_placed[s][j]] for s in range(app.services)]
    first, costs, arriving = [], [], {}
    work = [[] for _ in pools]
    for edge in app.edges:
        service, weight, latency = app.nodes[edge["callee"]]
        edge["sources"] = list(range(app.regions)) if edge["demand"] else placed[app.nodes[edge["caller"]][0]]
        first.append(len(costs))
        for i in edge["sources"]:
            for j in placed[service]:
                dollars = (edge["request"] * app.prices[i, j] + edge["response"] * app.prices[j, i]) / 1e9
                arriving.setdefault((edge["callee"], j), []).append(len(costs))
                work[pool_of[service, j]].append((len(costs), weight / app.capacity[service, j]))
                costs.append(app.trips[i, j] + MS_PER_DOLLAR * dollars + latency)
    calls, count = len(costs), len(pools)
    idle, inverse, surplus = calls, calls + count, calls + 2 * count
    kinks = [(at, load) for at in range(count) for load in app.kinks]
    columns = surplus + len(kinks)

    equal = Rows()
    for number, edge in enumerate(app.edges):
        service = app.nodes[edge["callee"]][0]
        for at, i in enumerate(edge["sources"]):
            begin = first[number] + at * len(placed[service])
            arcs = list(range(begin, begin + len(placed[service])))
            came = [] if edge["demand"] else arriving.get((edge["caller"], i), [])
            demand = edge["demand"][i] if edge["demand"] else 0.0
            if edge["given"]:
                for arc, j in zip(arcs, placed[service]):
                    share = edge["given"][j]
                    equal.add([(arc, 1.0)] + [(c, -edge["calls"] * share) for c in came], demand * share)
            else:
                equal.add([(arc, 1.0) for arc in arcs] + [(c, -edge["calls"]) for c in came], demand)
    for at in range(count):
        equal.add(work[at] + [(idle + at, 1.0)], 1.0)

    bound = Rows()
    for column in range(calls):
        bound.add([(column, -1.0)], 0.0)
    for at in range(count):
        bound.add([(idle + at, -1.0)], -(1.0 - CEILING))
    for kink, (at, load) in enumerate(kinks):
        bound.add(work[at] + [(surplus + kink, -1.0)], load)
        bound.add([(surplus + kink, -1.0)], 0.0)

    # inverse × idle ≥ 1 is ‖(inverse − idle, 2)‖ ≤ inverse + idle.
    cones = Rows()
    for at in range(count):
        cones.add([(inverse + at, -1.0), (idle + at, -1.0)], 0.0)
        cones.add([(inverse + at, -1.0), (idle + at, 1.0)], 0.0)
        cones.add([], 2.0)

    price = np.zeros(columns)
    price[:calls] = costs
    scale = [app.sensitivity[s] * app.capacity[s, j] for s, j in pools]
    price[inverse:surplus] = scale
    for kink, (at, _) in enumerate(kinks):
        s, j = pools[at]
        price[surplus + kink] = 20.0 * app.sensitivity[s] * app.capacity[s, j]
    return solve(price, (equal, bound, cones), sum(scale))


def solve(price, parts, constant):
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-9
    settings.max_iter = 200
    equal, bound, cones = parts
    kinds = [clarabel.ZeroConeT(len(equal.right)), clarabel.NonnegativeConeT(len(bound.right))]
    kinds += [clarabel.SecondOrderConeT(3)] * (len(cones.right) // 3)
    matrix = sp.vstack([part.matrix(len(price)) for part in parts]).tocsc()
    right = np.concatenate([np.array(part.right, float) for part in parts])
    scale = max(1.0, np.abs(price).max() / 1e3)
    none = sp.csc_matrix((len(price), len(price)))
    solution = clarabel.DefaultSolver(none, price / scale, matrix, right, kinds, settings).solve()
    if str(solution.status) != "Solved":
        return None
    return float(price @ np.array(solution.x)) - constant


def main():
    print("# seed regions services classes roots layers placed load given kinks objective")
    found, seed = 0, 0
    while found < INSTANCES:
        seed += 1
        shape = dict(regions=2 + seed % 5, services=3 + seed % 9, classes=1 + seed % 3, roots=1 + seed % 2, layers=3 + seed % 2)
        shape["placed"] = [0.5, 0.7, 0.9][seed // 2 % 3]
        shape["load"] = [0.4, 0.55, 0.65][seed // 3 % 3]
        shape["given"] = [0.0, 0.2][seed // 4 % 2]
        shape["kinks"] = [[], [0.5, 0.7]][seed // 5 % 2]
        value = objective(Application(shape, seed))
        if value is None:
            print(f"seed {seed} cannot be routed below the ceiling", file=sys.stderr)
            continue
        found += 1
        numbers = [shape[key] for key in ("regions", "services", "classes", "roots", "layers", "placed", "load", "given")]
        kinks = ",".join(map(str, shape["kinks"])) or "-"
        print(seed, *numbers, kinks, f"{value:.6f}")


main()
