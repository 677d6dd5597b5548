use fairmesh_te::optimizer::{Node, Plan, Problem, waterfall};

use super::world::{
    assert_average, assert_flow, clients, distances, flow, one_service, paper, solve, solve_within,
};

#[test]
fn optimizer_plan_of_two_pools_matches_closed_form() {
    let trips = vec![vec![0.0, 30.0], vec![30.0, 0.0]];
    let problem = one_service(&trips, &[1200.0, 0.0], 1_000.0, 10.0);
    let plan = solve(&problem);
    // 10 / (1 − a)² = 30 + 10 / (1 − b)², where a + b = 1.2.
    assert_flow(flow(&problem, &plan, 0, (0, 0)), 646.7071);
    assert_flow(flow(&problem, &plan, 0, (0, 1)), 553.2929);
    assert_average(plan.mean_latency, 39.4083);
    assert!((plan.objective - 47_289.945_8).abs() < 0.1, "{}", plan.objective);
}

#[test]
fn latency_correction_of_region_counts_like_longer_round_trip() {
    let far = one_service(&[vec![0.0, 30.0], vec![30.0, 0.0]], &[1_200.0, 0.0], 1_000.0, 10.0);
    let mut near = one_service(&[vec![0.0, 20.0], vec![20.0, 0.0]], &[1_200.0, 0.0], 1_000.0, 10.0);
    near.corrections = vec![0.0, 10.0];
    let [far, near] = [far, near].map(|problem| (solve_within(&problem, 1e-6), problem));
    assert_flow(flow(&near.1, &near.0, 0, (0, 0)), 646.7071);
    assert!((far.0.objective / near.0.objective - 1.0).abs() < 1e-6);
    let mut impossible = near.1;
    impossible.corrections = vec![0.0, -1.0];
    assert!(impossible.validate().is_err(), "a call takes less than no time");
}

#[test]
fn paper_figure_3a_waterfall_overloads_utah_and_optimizer_spreads_load() {
    let problem = paper([1325.0, 200.0, 1325.0, 200.0], 10.0);
    let nearest = waterfall(&problem, 0.95).unwrap();
    assert_average(nearest.mean_latency, 193.85);
    assert_flow(flow(&problem, &nearest, 0, (0, 1)), 375.0);
    assert_flow(flow(&problem, &nearest, 0, (2, 1)), 375.0);
    let plan = solve(&problem);
    assert_average(plan.mean_latency, 53.958);
    for (from, to, rate) in [(0, 1, 548.7), (2, 1, 8.7), (2, 3, 545.9)] {
        assert_flow(flow(&problem, &plan, 0, (from, to)), rate);
    }
    for (load, expected) in plan.loads.iter().zip([0.776, 0.757, 0.770, 0.746]) {
        assert_flow(load * 1_000.0, expected * 1_000.0);
    }
}

#[test]
fn paper_figure_3a_at_mild_load_has_optimizer_faster_than_waterfall() {
    let problem = paper([1200.0, 200.0, 1200.0, 200.0], 10.0);
    assert_average(waterfall(&problem, 0.95).unwrap().mean_latency, 149.40);
    let plan = solve(&problem);
    assert_average(plan.mean_latency, 44.644);
    for (from, to, rate) in [(0, 1, 472.7), (2, 1, 17.8), (2, 3, 465.6)] {
        assert_flow(flow(&problem, &plan, 0, (from, to)), rate);
    }
}

/// Waterfall as the paper runs it: a region divides its calls when its own demand changes, and others keep theirs.
struct Events {
    problem: Problem,
    rates: Vec<Vec<f64>>,
    threshold: f64,
}

impl Events {
    fn new(problem: Problem, threshold: f64) -> Self {
        let rates = vec![vec![0.0; problem.regions]; problem.regions];
        Self { problem, rates, threshold }
    }

    fn activate(&mut self, from: usize, demand: f64) {
        let regions = self.problem.regions;
        self.rates[from] = vec![0.0; regions];
        let mut nearest: Vec<usize> = (0..regions).collect();
        nearest.sort_by(|a, b| self.trip(from, *a).total_cmp(&self.trip(from, *b)));
        let mut left = demand;
        for to in nearest {
            let room = self.threshold - self.rates.iter().map(|row| row[to]).sum::<f64>();
            let taken = room.max(0.0).min(left);
            self.rates[from][to] += taken;
            left -= taken;
        }
        self.rates[from][from] += left;
    }

    fn trip(&self, from: usize, to: usize) -> f64 {
        self.problem.round_trips[from * self.problem.regions + to]
    }

    /// Round trips of all calls of a second.
    fn network(&self) -> f64 {
        let row = |from: usize| {
            self.rates[from].iter().enumerate().map(move |(to, rate)| rate * self.trip(from, to)).sum::<f64>()
        };
        (0..self.problem.regions).map(row).sum()
    }

    /// Mean milliseconds of a call.
    fn average(&self) -> f64 {
        let pools = &self.problem.services[0];
        let load = |to: usize| self.rates.iter().map(|row| row[to]).sum::<f64>();
        let pool = |to: usize| load(to) * pools.sensitivity / (1.0 - load(to) / pools.capacity[to]);
        let total: f64 = self.rates.iter().flatten().sum();
        (self.network() + (0..self.problem.regions).map(pool).sum::<f64>()) / total
    }
}

/// The least of all round trips when pools take calls up to `limit` and then none.
fn network_alone(demand: &[f64], trips: &[Vec<f64>], limit: f64) -> Plan {
    let mut problem = one_service(trips, demand, limit / 0.9, 1e-7);
    problem.preferences.ceiling = 0.9;
    problem.preferences.admission = 0.9;
    solve_within(&problem, 2e-4)
}

fn network_of(plan: &Plan, demand: &[f64]) -> f64 {
    plan.mean_latency * demand.iter().sum::<f64>()
}

fn figure_3b(base: f64, threshold: f64, sensitivity: f64) -> Events {
    let demand = if base == 300.0 { [300.0, 1300.0, 800.0, 800.0] } else { [400.0, 1500.0, 950.0, 950.0] };
    let mut events = Events::new(paper(demand, sensitivity), threshold);
    (0..4).for_each(|region| events.activate(region, base));
    (1..4).for_each(|region| events.activate(region, demand[region]));
    events
}

#[test]
fn paper_figure_3b_waterfall_has_four_times_minimum_network_latency() {
    let events = figure_3b(300.0, 800.0, 10.0);
    assert_average(events.network(), 60_500.0);
    assert_average(events.average(), 68.906);
    let demand = [300.0, 1300.0, 800.0, 800.0];
    let trips: Vec<Vec<f64>> = super::world::PAPER_TRIPS.iter().map(|row| row.to_vec()).collect();
    let least = network_of(&network_alone(&demand, &trips, 800.0), &demand);
    assert_average(least, 15_000.0);
    assert_average(events.network() / least, 4.033);
    let plan = solve(&events.problem);
    assert_average(plan.mean_latency, 54.659);
    assert_flow(flow(&events.problem, &plan, 0, (1, 0)), 494.0);
    let fast = figure_3b(300.0, 800.0, 2.0);
    assert_average(fast.average(), 28.906);
    let plan = solve(&fast.problem);
    assert_average(plan.mean_latency, 14.550);
    assert_flow(flow(&fast.problem, &plan, 0, (1, 0)), 471.2);
}

#[test]
fn paper_figure_3b_optimizer_gains_little_near_capacity() {
    let events = figure_3b(400.0, 950.0, 10.0);
    assert_average(events.network(), 66_550.0);
    assert_average(events.average(), 217.51);
    assert_average(solve(&events.problem).mean_latency, 204.342);
}

#[test]
fn paper_section_3_4_optimizer_moves_heavy_calls_and_waterfall_all_alike() {
    let trips = vec![vec![0.0, 30.0], vec![30.0, 0.0]];
    let mut problem = one_service(&trips, &[400.0, 100.0], 1_000.0, 11.1123);
    problem.nodes.push(Node { service: 0, work: 10.0, latency: 0.0 });
    problem.edges.push(clients(&[80.0, 0.0], 1, 0));
    // Capacity is that of the heaviest class, 100 calls/s, and the paper's threshold is 369.9 of all classes.
    assert_average(waterfall(&problem, 3.699).unwrap().mean_latency, 252.8);
    // With one share for all classes, the best is to keep 264.7 of 480 calls in W.
    let kept = 264.7 / 480.0;
    let mut alike = problem.clone();
    alike.edges.iter_mut().for_each(|edge| edge.given = vec![vec![kept, 1.0 - kept], vec![0.0, 1.0]]);
    assert_average(solve_within(&alike, 1.0).mean_latency, 82.42);
    let plan = solve(&problem);
    assert_average(plan.mean_latency, 74.0);
    assert_flow(flow(&problem, &plan, 0, (0, 1)), 0.0);
    assert_flow(flow(&problem, &plan, 1, (0, 1)), 0.6839 * 80.0);
}

#[test]
fn paper_appendix_a1_waterfall_network_latency_doubles_with_each_region() {
    for regions in [3, 4, 6] {
        let mut links = vec![(0, 1, 1.01)];
        links.extend((1..regions).map(|at| (at, at + 1, 2.0_f64.powi(at as i32 - 1))));
        let trips = distances(regions + 1, &links);
        let mut demand = vec![1.0; regions + 1];
        (demand[0], demand[1]) = (0.0, 2.0);
        let mut events = Events::new(one_service(&trips, &demand, 1.0, 0.0), 1.0);
        (1..=regions).for_each(|region| events.activate(region, demand[region]));
        assert_average(events.network(), 2.0_f64.powi(regions as i32) - 1.0 + 0.01);
        assert_average(network_of(&network_alone(&demand, &trips, 1.0), &demand), 1.01);
    }
}

#[test]
fn paper_appendix_a2_waterfall_stays_in_metastable_state() {
    for epsilon in [0.1, 0.01] {
        let near = 1.0 + epsilon;
        let links = [(0, 3, epsilon), (3, 1, near), (1, 4, epsilon), (4, 0, near), (0, 2, 2.0), (4, 5, 2.0)];
        let trips = distances(6, &links);
        let mut events = Events::new(one_service(&trips, &[0.0; 6], 1.0, 0.0), 1.0);
        [5, 1, 0].into_iter().for_each(|region| events.activate(region, 2.0));
        events.activate(5, 0.0);
        for _ in 0..3 {
            events.activate(0, 2.0);
            events.activate(1, 2.0);
        }
        assert_average(events.network(), 2.0 * near);
        let demand = [2.0, 2.0, 0.0, 0.0, 0.0, 0.0];
        assert_average(network_of(&network_alone(&demand, &trips, 1.0), &demand), 2.0 * epsilon);
    }
}

#[test]
fn paper_appendix_a3_waterfall_has_twice_minimum_network_latency() {
    let trips = distances(4, &[(0, 1, 1.01), (1, 2, 1.0), (2, 3, 1.01)]);
    for order in [[1, 2], [2, 1]] {
        let mut events = Events::new(one_service(&trips, &[0.0; 4], 1.0, 0.0), 1.0);
        order.into_iter().for_each(|region| events.activate(region, 2.0));
        assert_average(events.network(), 4.02);
    }
    let demand = [0.0, 2.0, 2.0, 0.0];
    assert_average(network_of(&network_alone(&demand, &trips, 1.0), &demand), 2.02);
}
