use fairmesh_te::optimizer::{
    Effort, Node, Plan, Preferences, Problem, ServicePools, is_worth_publishing, optimize, waterfall,
};

use super::world::{assert_average, assert_flow, calls, clients, flow, latency_alone, solve};

/// Section 3.3 of the paper: FR in W calls MP in either region, which calls DB in E. MP's responses are small and DB's are large.
fn cut_point(dollars_per_ms: f64) -> Problem {
    let pool = |capacity: [f64; 2], sensitivity| ServicePools {
        capacity: capacity.to_vec(),
        sensitivity,
        ..ServicePools::default()
    };
    let node = |service| Node { service, work: 1.0, latency: 0.0 };
    let mut front = clients(&[1_000.0, 0.0], 0, 0);
    front.given = vec![vec![1.0, 0.0]];
    let mut edges = vec![front, calls(0, 1.0, 1), calls(1, 1.0, 2)];
    edges[1].response_bytes = 9.5e6;
    edges[2].response_bytes = 110.5e6;
    Problem {
        regions: 2,
        round_trips: vec![0.0, 30.0, 30.0, 0.0],
        egress_prices: vec![0.0, 0.02, 0.02, 0.0],
        services: vec![
            pool([10_000.0, 10_000.0], 0.1),
            pool([1_200.0, 1_200.0], 5.0),
            pool([0.0, 3_000.0], 5.0),
        ],
        nodes: vec![node(0), node(1), node(2)],
        corrections: Vec::new(),
        edges,
        preferences: Preferences { dollars_per_ms, ..latency_alone() },
    }
}

#[test]
fn paper_section_3_3_optimizer_crosses_regions_where_responses_are_small() {
    let nearest = waterfall(&cut_point(f64::INFINITY), 1.0).unwrap();
    assert_average(nearest.egress, 2.210);
    assert_average(nearest.mean_latency, 67.611);
    for (dollars_per_ms, dollars, latency) in [
        (1e-5, 0.190, 67.611),
        (1e-4, 0.7917, 48.054),
        (1e-3, 1.1515, 46.207),
        (f64::INFINITY, 1.200, 46.183),
    ] {
        let plan = solve(&cut_point(dollars_per_ms));
        assert_average(plan.egress, dollars);
        assert_average(plan.mean_latency, latency);
    }
    let problem = cut_point(1e-4);
    let plan = solve(&problem);
    assert_flow(flow(&problem, &plan, 1, (0, 1)), 702.1);
    assert_flow(flow(&problem, &plan, 1, (0, 0)), 297.9);
}

#[test]
fn egress_price_has_direction_and_responses_pay_return_direction() {
    let mut problem = cut_point(1e-4);
    problem.egress_prices = vec![0.0, 0.0, 0.02, 0.0];
    let responses_pay = solve(&problem);
    problem.egress_prices = vec![0.0, 0.02, 0.0, 0.0];
    let requests_pay = solve(&problem);
    assert!(responses_pay.egress > 0.5, "{}", responses_pay.egress);
    assert!(requests_pay.egress == 0.0, "{}", requests_pay.egress);
}

fn capped(cap: f64, last: Option<&Plan>) -> (Problem, Plan) {
    let mut problem = cut_point(1e-3);
    problem.preferences.egress_cap = Some(cap);
    let plan = optimize(&problem, last, Effort { gap: 1e-5, iterations: 300 }, &mut |_| true).unwrap();
    (problem, plan)
}

#[test]
fn egress_cap_is_used_up_and_not_exceeded() {
    let (_, free) = capped(10.0, None);
    assert_average(free.egress, 1.1515);
    let (problem, plan) = capped(0.6, None);
    assert_average(plan.egress, 0.6);
    assert!(plan.egress <= 0.6 + 1e-9, "{}", plan.egress);
    assert!(plan.objective > free.objective && plan.gap() < 0.01, "{} {}", plan.objective, plan.gap());
    // From its own plan, whose price of egress it knows, the next one takes fewer iterations.
    let (_, again) = capped(0.6, Some(&plan));
    assert_average(again.objective, plan.objective);
    assert!(again.iterations < plan.iterations, "{} after {}", again.iterations, plan.iterations);
    assert!(again.is_usable(problem.preferences.ceiling));
}

#[test]
fn egress_cap_below_any_plan_gives_plan_of_least_egress() {
    let (_, plan) = capped(0.1, None);
    assert_average(plan.egress, 0.190);
}

#[test]
fn plan_within_egress_cap_replaces_plan_that_exceeds_it() {
    let (_, free) = capped(10.0, None);
    let (problem, plan) = capped(0.6, Some(&free));
    assert!(plan.objective > free.objective, "{} {}", plan.objective, free.objective);
    assert!(is_worth_publishing(&problem, &free, &plan, 0.01).unwrap());
    assert!(!is_worth_publishing(&problem, &plan, &plan, 0.01).unwrap());
    // No plan keeps to this cap. Once the least egress is in force, nothing is left to save.
    let (problem, least) = capped(0.1, Some(&plan));
    assert!(is_worth_publishing(&problem, &plan, &least, 0.01).unwrap());
    assert!(!is_worth_publishing(&problem, &least, &least, 0.01).unwrap());
}
