use fairmesh_te::optimizer::{Effort, Node, Problem, ProblemError, admit, optimize};

use super::world::{assert_average, calls, clients, paper};

/// A service that calls itself through another: 1 call down, `gain` calls back.
fn cycle(gain: f64) -> Problem {
    let mut problem = paper([300.0, 100.0, 100.0, 100.0], 1.0);
    problem.services.push(problem.services[0].clone());
    problem.nodes.push(Node { service: 1, work: 1.0, latency: 0.0 });
    problem.edges.push(calls(0, 1.0, 1));
    problem.edges.push(calls(1, gain, 0));
    problem
}

#[test]
fn service_cycle_is_cut_at_smallest_edge_and_its_calls_are_counted() {
    let problem = cycle(0.2);
    let plan = optimize(&problem, None, Effort::default(), &mut |_| true).unwrap();
    assert_eq!(plan.cut, [2]);
    // 600 / (1 − 0.2) calls of both services.
    for service in 0..2 {
        let load: f64 = plan.loads[service * 4..][..4].iter().sum();
        assert_average(load * 1_000.0, 750.0);
    }
}

#[test]
fn service_cycle_with_unbounded_calls_is_refused() {
    let refused = optimize(&cycle(1.0), None, Effort::default(), &mut |_| true);
    assert!(matches!(refused, Err(ProblemError::LoopGain(_))), "{refused:?}");
}

#[test]
fn all_calls_of_strongly_repeating_service_cycle_are_counted() {
    let mut problem = cycle(0.98);
    // 40 / (1 − 0.98) calls of both services.
    problem.edges[0] = clients(&[40.0, 0.0, 0.0, 0.0], 0, 0);
    let admission = admit(&problem).unwrap();
    assert_eq!(admission.shares, [1.0; 3]);
    let plan = optimize(&problem, None, Effort::default(), &mut |_| true).unwrap();
    for service in 0..2 {
        let load: f64 = plan.loads[service * 4..][..4].iter().sum();
        assert_average(load * 1_000.0, 2_000.0);
    }
    // Twice the calls need 4,000 units of work, and 3,960 fit.
    problem.edges[0] = clients(&[80.0, 0.0, 0.0, 0.0], 0, 0);
    let lacking = admit(&problem).unwrap().lacking;
    assert!((lacking[0] - 40.0).abs() < 0.1, "{lacking:?}");
}

/// A service that calls itself.
fn self_loop(gain: f64) -> Problem {
    let mut problem = paper([300.0, 100.0, 100.0, 100.0], 1.0);
    problem.edges.push(calls(0, gain, 0));
    problem
}

#[test]
fn service_cycle_with_overflowing_call_rates_is_refused() {
    let mut six_by_six = cycle(6.0);
    six_by_six.edges[1] = calls(0, 6.0, 1);
    let loops = [1.5, 2.0, 50.0].map(self_loop);
    for problem in loops.into_iter().chain([six_by_six]) {
        let refused = optimize(&problem, None, Effort::default(), &mut |_| true);
        assert!(matches!(refused, Err(ProblemError::LoopGain(_))), "{:?}: {refused:?}", problem.edges);
    }
}
