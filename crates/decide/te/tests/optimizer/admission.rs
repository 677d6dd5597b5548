use fairmesh_te::optimizer::{Node, Preferences, Problem, admit, ring_by_criticality};

use super::world::{assert_average, clients, paper, solve_within};

/// Important light calls, less important heavy ones, and unimportant light ones.
fn three_classes(demands: [[f64; 4]; 3]) -> Problem {
    let mut problem = paper(demands[0], 10.0);
    problem.nodes.push(Node { service: 0, work: 4.0, latency: 0.0 });
    problem.nodes.push(Node { service: 0, work: 1.0, latency: 0.0 });
    problem.edges.push(clients(&demands[1], 1, 1));
    problem.edges.push(clients(&demands[2], 2, 2));
    problem.preferences = Preferences { ceiling: 0.9, admission: 0.9, ..problem.preferences };
    problem
}

#[test]
fn shedding_drops_least_important_class_first() {
    let overload = [[700.0, 400.0, 500.0, 400.0], [150.0, 100.0, 100.0, 100.0], [600.0, 400.0, 400.0, 400.0]];
    let admission = admit(&three_classes(overload)).unwrap();
    // 3,600 units of work fit; 2,000 of the first class, then 1,600 of 1,800 of the second.
    assert_eq!(admission.shares[0], 1.0);
    assert_average(admission.shares[1], 1.0 - 0.1111);
    assert!(admission.shares[2] < 1e-9, "{}", admission.shares[2]);
    assert_average(admission.lacking[0], 2_000.0);
}

#[test]
fn shedding_drops_most_important_class_last() {
    let demands =
        [[1500.0, 900.0, 1200.0, 900.0], [150.0, 100.0, 100.0, 100.0], [600.0, 400.0, 400.0, 400.0]];
    let admission = admit(&three_classes(demands)).unwrap();
    assert_average(admission.shares[0], 0.8);
    assert!(admission.shares[1] < 1e-9 && admission.shares[2] < 1e-9, "{:?}", admission.shares);
}

#[test]
fn classes_of_equal_priority_share_remaining_capacity() {
    let mut problem = three_classes([
        [700.0, 400.0, 500.0, 400.0],
        [150.0, 100.0, 100.0, 100.0],
        [600.0, 400.0, 400.0, 400.0],
    ]);
    problem.edges[2] = clients(&[600.0, 400.0, 400.0, 400.0], 2, 1);
    let shares = admit(&problem).unwrap().shares;
    assert_eq!(shares[0], 1.0);
    assert_average(shares[1], 1_600.0 / 3_600.0);
    assert_average(shares[2], shares[1]);
}

#[test]
fn plan_under_overload_stays_below_load_ceiling() {
    let mut problem = three_classes([
        [700.0, 400.0, 500.0, 400.0],
        [150.0, 100.0, 100.0, 100.0],
        [600.0, 400.0, 400.0, 400.0],
    ]);
    problem.preferences.admission = 0.85;
    let plan = solve_within(&problem, 1e-3);
    assert!(plan.is_usable(0.9), "{:?}", plan.loads);
    assert!(plan.admitted[2] < 1e-9 && plan.admitted[1] > 0.5, "{:?}", plan.admitted);
}

#[test]
fn admission_is_limited_by_fullest_pool_of_fixed_shares() {
    let mut problem = paper([1_000.0, 0.0, 0.0, 0.0], 10.0);
    problem.preferences = Preferences { ceiling: 0.9, admission: 0.9, ..problem.preferences };
    problem.edges[0].given = vec![vec![0.0, 1.0, 0.0, 0.0]];
    assert_average(admit(&problem).unwrap().shares[0], 0.9);
}

#[test]
fn ring_by_criticality_keeps_important_calls_in_near_regions() {
    // Both classes fill OR; the important one is served there.
    let mut problem = paper([800.0, 0.0, 0.0, 0.0], 10.0);
    problem.nodes.push(Node { service: 0, work: 1.0, latency: 0.0 });
    problem.edges.push(clients(&[800.0, 0.0, 0.0, 0.0], 1, 1));
    problem.preferences = Preferences { ceiling: 0.9, admission: 0.9, ..problem.preferences };
    let plan = ring_by_criticality(&problem, 0.8).unwrap();
    assert_eq!(plan.shares.row(0, 0), [(0, 1.0)]);
    assert_eq!(plan.shares.row(1, 0), [(1, 1.0)]);
}
