//! The optimizer against an independent solver, whose objectives `oracle.py` made.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use fairmesh_sim::application::RandomApplication;
use fairmesh_te::optimizer::{Effort, optimize};

/// The optimizer's objective may differ by this part of the solver's.
const TOLERANCE: f64 = 1e-4;
/// The solver's objective is exact to this part.
const SOLVER_TOLERANCE: f64 = 1e-6;

/// The line of one application: seed, shape, objective.
fn parse(line: &str) -> (u64, RandomApplication, f64) {
    let fields: Vec<&str> = line.split(' ').collect();
    let count = |at: usize| fields[at].parse::<usize>().unwrap();
    let part = |at: usize| fields[at].parse::<f64>().unwrap();
    let kinks = fields[9].split(',').filter(|text| *text != "-").map(|text| text.parse().unwrap());
    let application = RandomApplication {
        regions: count(1),
        services: count(2),
        classes: count(3),
        roots: count(4),
        layers: count(5),
        placed: part(6),
        load: part(7),
        given: part(8),
        kinks: kinks.collect(),
    };
    (fields[0].parse().unwrap(), application, part(10))
}

#[test]
fn optimizer_matches_independent_solver_on_200_applications() {
    let lines = include_str!("objectives.txt").lines().filter(|line| !line.starts_with('#'));
    let applications: Vec<_> = lines.map(parse).collect();
    assert_eq!(applications.len(), 200);
    for (seed, application, objective) in applications {
        let problem = application.problem(seed);
        let effort = Effort { gap: TOLERANCE / 10.0, iterations: 400 };
        let plan = optimize(&problem, None, effort, &mut |_| true).unwrap();
        assert!(plan.admitted.iter().all(|share| *share == 1.0), "{seed}: {:?}", plan.admitted);
        assert!(plan.is_usable(problem.preferences.ceiling), "{seed}: {}", plan.greatest_load());
        let differs = (plan.objective - objective).abs() / objective;
        assert!(differs <= TOLERANCE, "{seed}: {} instead of {objective}", plan.objective);
        assert!(plan.bound <= objective * (1.0 + SOLVER_TOLERANCE), "{seed}: bound {}", plan.bound);
    }
}
