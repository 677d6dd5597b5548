use fairmesh_te::optimizer::{Effort, Node, Problem, ProblemError, optimize};

use super::world::{assert_average, calls, paper};

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
fn cycle_is_cut_at_its_smallest_edge_and_its_calls_count() {
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
fn calls_that_multiply_without_end_are_refused() {
    let refused = optimize(&cycle(1.0), None, Effort::default(), &mut |_| true);
    assert!(matches!(refused, Err(ProblemError::LoopGain(_))), "{refused:?}");
}
