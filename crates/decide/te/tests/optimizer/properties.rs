use fairmesh_te::optimizer::{
    Caller, Effort, Kink, Node, Plan, Problem, ProblemError, Progress, ServicePools, is_worth_publishing,
    optimize, ring_by_criticality, waterfall,
};
use proptest::prelude::*;

use super::world::{calls, clients, latency_alone, paper, solve};

/// Two services in four regions, with two classes, at less than their capacity.
fn problems() -> impl Strategy<Value = Problem> {
    let demand = prop::array::uniform4(0.0..200.0_f64);
    let capacity = prop::array::uniform4(prop_oneof![1 => Just(0.0), 3 => 600.0..1_500.0_f64]);
    let service = (capacity, 0.5..10.0_f64, prop::bool::ANY);
    (prop::array::uniform2(demand), prop::array::uniform2(service), 0.2..1.5_f64).prop_map(
        |(demands, services, further)| {
            let mut problem = paper(demands[0], 1.0);
            problem.services = services
                .into_iter()
                .map(|(capacity, sensitivity, has_kink)| pools(capacity, sensitivity, has_kink))
                .collect();
            problem.nodes = [0, 0, 1].map(|service| Node { service, work: 1.0, latency: 1.0 }).to_vec();
            problem.edges = vec![clients(&demands[0], 0, 0), clients(&demands[1], 1, 1)];
            problem.edges.extend([calls(0, further, 2), calls(1, 0.5, 2)]);
            problem.preferences.ceiling = 0.9;
            problem.preferences.admission = 0.85;
            problem
        },
    )
}

fn pools(capacity: [f64; 4], sensitivity: f64, has_kink: bool) -> ServicePools {
    let mut capacity = capacity.to_vec();
    // A service without servers is refused.
    capacity[0] = capacity[0].max(600.0);
    let kink = Kink { load: 0.6, surcharge: 40.0 };
    let kinks = if has_kink { vec![kink] } else { Vec::new() };
    ServicePools { capacity, sensitivity, kinks, ..ServicePools::default() }
}

fn effort(iterations: usize) -> Effort {
    Effort { gap: 1e-4, iterations }
}

fn plan(problem: &Problem, last: Option<&Plan>, iterations: usize) -> Plan {
    optimize(problem, last, effort(iterations), &mut |_| true).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn optimizer_plans_are_feasible_and_gap_covers_distance_from_optimum(problem in problems()) {
        let best = plan(&problem, None, 400);
        prop_assert!(best.is_usable(0.9), "{:?}", best.loads);
        for iterations in [1, 2, 4, 8] {
            let early = plan(&problem, None, iterations);
            prop_assert!(early.bound <= best.objective * (1.0 + 1e-9), "{} {}", early.bound, best.objective);
        }
        for edge in 0..problem.edges.len() {
            for source in 0..problem.regions {
                let row = best.shares.row(edge, source);
                let sum: f64 = row.iter().map(|(_, share)| share).sum();
                prop_assert!(row.is_empty() || (sum - 1.0).abs() < 1e-9);
                let service = problem.nodes[problem.edges[edge].callee].service;
                prop_assert!(row.iter().all(|(to, _)| problem.services[service].capacity[usize::from(*to)] > 0.0));
            }
        }
    }

    #[test]
    fn optimizer_plan_is_never_worse_than_starting_plan(problem in problems(), times in 0.8..1.2_f64) {
        let last = plan(&problem, None, 20);
        let mut changed = problem;
        for edge in &mut changed.edges {
            if let Caller::Clients { demand, .. } = &mut edge.caller {
                demand[0] *= times;
            }
        }
        for iterations in [1, 3] {
            let next = plan(&changed, Some(&last), iterations);
            let before = Plan::evaluate(&changed, &last.shares, &next.admitted).unwrap();
            prop_assert!(
                !before.is_usable(0.9) || next.objective <= before.objective * (1.0 + 1e-9),
                "{} after {}", next.objective, before.objective
            );
        }
    }
}

#[test]
fn stopped_optimizer_returns_best_plan_so_far_and_its_gap() {
    let problem = paper([1325.0, 200.0, 1325.0, 200.0], 10.0);
    let mut seen: Vec<Progress> = Vec::new();
    let endless = Effort { gap: 0.0, iterations: 100 };
    let stopped = optimize(&problem, None, endless, &mut |progress| {
        seen.push(*progress);
        seen.len() < 4
    })
    .unwrap();
    assert_eq!((stopped.iterations, seen.len()), (4, 4));
    assert!(stopped.is_usable(0.99) && stopped.gap() < 1.0, "{}", stopped.gap());
    assert!(seen.is_sorted_by(|a, b| a.objective >= b.objective && a.bound <= b.bound));
}

#[test]
fn cost_kink_keeps_pool_at_its_threshold_while_another_has_room() {
    let mut problem = paper([900.0, 0.0, 0.0, 0.0], 1.0);
    problem.services[0].kinks = vec![Kink { load: 0.6, surcharge: 40.0 }];
    let plan = solve(&problem);
    assert!((plan.loads[0] - 0.6).abs() < 1e-3, "{:?}", plan.loads);
}

#[test]
fn dead_band_keeps_shares_in_force_until_they_cost_noticeably_more() {
    let problem = paper([1325.0, 200.0, 1325.0, 200.0], 10.0);
    let in_force = solve(&problem);
    assert!(!is_worth_publishing(&problem, &in_force, &in_force, 0.01).unwrap());
    let changed = |times: f64| paper([1325.0 * times, 200.0, 1325.0, 200.0], 10.0);
    let little = changed(1.01);
    assert!(!is_worth_publishing(&little, &in_force, &solve(&little), 0.01).unwrap());
    let much = changed(0.4);
    assert!(is_worth_publishing(&much, &in_force, &solve(&much), 0.01).unwrap());
    // Utah has lost its servers.
    let mut lost = changed(0.5);
    lost.services[0].capacity[1] = 0.0;
    assert!(is_worth_publishing(&lost, &in_force, &solve(&lost), 0.01).unwrap());
}

#[test]
fn optimizer_plan_after_server_loss_starts_from_previous_plan() {
    let problem = paper([800.0, 200.0, 200.0, 200.0], 10.0);
    let last = solve(&problem);
    let mut lost = problem;
    lost.services[0].capacity[0] = 0.0;
    let next = plan(&lost, Some(&last), 200);
    assert!(next.is_usable(0.99) && next.loads[0] == 0.0, "{:?}", next.loads);
    assert!(next.gap() <= 1e-4, "{}", next.gap());
}

#[test]
fn service_without_callers_and_servers_does_not_prevent_plan() {
    let problem = paper([800.0, 200.0, 200.0, 200.0], 10.0);
    let mut idle = problem.clone();
    idle.services.push(pools([600.0; 4], 10.0, false));
    idle.services[1].capacity = vec![0.0; 4];
    idle.nodes.push(Node { service: 1, work: 1.0, latency: 0.0 });
    // What has no servers makes no calls.
    idle.edges.push(calls(1, 1.0, 0));
    assert_eq!(solve(&idle).objective, solve(&problem).objective);
    let objective = |plan: Result<Plan, ProblemError>| plan.unwrap().objective;
    assert_eq!(objective(waterfall(&idle, 0.8)), objective(waterfall(&problem, 0.8)));
    assert_eq!(objective(ring_by_criticality(&idle, 0.8)), objective(ring_by_criticality(&problem, 0.8)));
}

#[test]
fn plan_states_error_of_cost_fit_without_changing_shares() {
    let mut problem = paper([1325.0, 200.0, 1325.0, 200.0], 10.0);
    let exact = solve(&problem);
    problem.services[0].error = 0.1;
    let plan = solve(&problem);
    assert_eq!(plan.shares, exact.shares);
    let trips: f64 = [548.7 * 30.0, 8.7 * 20.0, 545.9 * 35.0].iter().sum::<f64>() / 3_050.0;
    assert!((plan.latency_error - 0.1 * (plan.mean_latency - trips)).abs() < 0.05, "{}", plan.latency_error);
}

#[test]
fn invalid_optimizer_problem_is_refused_with_field() {
    let problem = paper([1.0; 4], 1.0);
    let refusal = |change: &dyn Fn(&mut Problem)| {
        let mut changed = problem.clone();
        change(&mut changed);
        optimize(&changed, None, Effort::default(), &mut |_| true).unwrap_err()
    };
    let number = |what, at| ProblemError::Number { what, at };
    assert_eq!(refusal(&|p| p.services[0].sensitivity = f64::NAN), number("service", 0));
    assert_eq!(refusal(&|p| p.nodes[0].work = -1.0), number("node", 0));
    for ceiling in [0.0, 0.991, 1.0] {
        assert_eq!(refusal(&|p| p.preferences.ceiling = ceiling), number("the ceiling", 0));
    }
    assert_eq!(
        refusal(&|p| p.preferences.dollars_per_ms = 0.0),
        number("the price of latency or the cap on egress", 0)
    );
    assert_eq!(refusal(&|p| p.services[0].capacity = vec![0.0; 4]), ProblemError::Unplaced(0));
    assert_eq!(refusal(&|p| p.edges[0].given = vec![vec![0.5, 0.4, 0.0, 0.0]]), ProblemError::GivenShares(0));
    let plan = solve(&problem);
    let evaluated = Plan::evaluate(&problem, &plan.shares, &[]);
    assert_eq!(evaluated, Err(ProblemError::Size("the list of admitted shares")));
    assert_eq!(refusal(&|p| p.edges[0].callee = 1), ProblemError::Size("the callee of an edge"));
    let kinks = vec![Kink { load: 0.95, surcharge: 1.0 }];
    assert_eq!(
        refusal(&|p| {
            p.services[0].kinks.clone_from(&kinks);
            p.preferences =
                fairmesh_te::optimizer::Preferences { ceiling: 0.9, admission: 0.9, ..latency_alone() };
        }),
        number("kinks of service", 0)
    );
}
