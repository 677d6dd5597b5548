//! The optimizer against an independent solver, whose objectives were computed by `oracle.py`.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use fairmesh_sim::application::RandomApplication;
use fairmesh_te::optimizer::{Caller, Effort, Problem, optimize};

/// Maximum relative difference between the objectives of optimizer and solver.
const TOLERANCE: f64 = 1e-4;
/// Relative precision of the solver's objective.
const SOLVER_TOLERANCE: f64 = 1e-6;

/// Parses the line of one application: seed, shape, objective.
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

/// Number of the extreme without sensitivities.
const LINEAR: u64 = 4;

/// Makes a problem extreme.
fn exaggerate(problem: &mut Problem, extreme: u64) {
    let mut multiply_demand = |times: f64| {
        for edge in &mut problem.edges {
            if let Caller::Clients { demand, .. } = &mut edge.caller {
                demand.iter_mut().for_each(|rate| *rate *= times);
            }
        }
    };
    match extreme {
        0 => multiply_demand(0.0),
        1 => multiply_demand(1e-6),
        2 => multiply_demand(5.0),
        3 => problem.preferences.dollars_per_ms = 1e-9,
        LINEAR => problem.services.iter_mut().for_each(|service| service.sensitivity = 0.0),
        5 => problem.services[0].sensitivity = 1e4,
        _ => problem.round_trips.iter_mut().for_each(|trip| *trip *= 100.0),
    }
}

#[test]
fn plans_of_extreme_applications_stay_below_ceiling() {
    for seed in 1..=210 {
        let application = RandomApplication {
            regions: 1 + seed as usize % 6,
            services: 3 + seed as usize % 11,
            classes: 1 + seed as usize % 3,
            roots: 1,
            layers: 4,
            placed: 0.6,
            load: 0.7,
            given: 0.0,
            kinks: if seed % 2 == 0 { vec![0.5, 0.7] } else { Vec::new() },
        };
        let mut problem = application.problem(seed);
        problem.preferences.admission = 0.85;
        exaggerate(&mut problem, seed % 7);
        let plan = optimize(&problem, None, Effort::default(), &mut |_| true).unwrap();
        assert!(plan.is_usable(0.9), "{seed}: load {}", plan.greatest_load());
        assert!(plan.mean_latency.is_finite(), "{seed}: {}", plan.mean_latency);
        // Without any sensitivity the problem is linear, which Newton's method is not designed for.
        assert!(seed % 7 == LINEAR || plan.gap() < 0.1, "{seed}: gap {}", plan.gap());
    }
}
