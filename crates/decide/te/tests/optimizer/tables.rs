use fairmesh_te::{
    WHOLE,
    optimizer::{Node, Preferences},
};

use super::world::{calls, clients, paper, solve, solve_within};

#[test]
fn region_tables_contain_rounded_shares_of_plan() {
    let problem = paper([1325.0, 200.0, 1325.0, 200.0], 10.0);
    let tables = solve(&problem).tables(&problem, &[0]);
    let oregon = tables.of(0, 0);
    assert_eq!(oregon.shares.iter().sum::<u32>(), WHOLE);
    // 548.7 of 1,325 calls go to Utah.
    assert!(oregon.shares[1].abs_diff(4_141) <= 41, "{oregon:?}");
    // 8.7 of 1,325 calls are fewer than a table's least share.
    assert_eq!(tables.of(2, 0).shares[1], 0);
    assert_eq!(tables.of(1, 0).shares, [0, WHOLE, 0, 0]);
}

#[test]
fn region_table_of_two_caller_services_is_weighted_by_their_calls() {
    let mut problem = paper([300.0, 0.0, 0.0, 0.0], 1.0);
    problem.edges[0].given = vec![vec![1.0, 0.0, 0.0, 0.0]];
    problem.services.push(problem.services[0].clone());
    problem.nodes.push(Node { service: 1, work: 1.0, latency: 0.0 });
    problem.edges.push(calls(0, 1.0, 1));
    problem.edges.push(clients(&[100.0, 0.0, 0.0, 0.0], 1, 0));
    problem.edges[1].given = vec![vec![0.0, 1.0, 0.0, 0.0]];
    problem.edges[2].given = vec![vec![0.0, 0.0, 0.0, 1.0]];
    let plan = solve_within(&problem, 1.0);
    assert_eq!(plan.tables(&problem, &[1]).of(0, 0).shares, [0, 7_500, 0, 2_500]);
}

#[test]
fn region_table_drops_calls_that_plan_did_not_admit() {
    let mut problem = paper([1_800.0, 1_800.0, 0.0, 0.0], 10.0);
    problem.preferences = Preferences { ceiling: 0.9, admission: 0.45, ..problem.preferences };
    let tables = solve_within(&problem, 0.01).tables(&problem, &[0]);
    for source in 0..2 {
        let row = tables.of(source, 0);
        assert!(row.dropped.abs_diff(WHOLE / 2) <= 1, "{row:?}");
        assert_eq!(row.shares.iter().sum::<u32>() + row.dropped, WHOLE);
    }
}

#[test]
fn region_table_without_calls_leads_to_nearest_servers() {
    let mut problem = paper([100.0, 0.0, 0.0, 0.0], 10.0);
    problem.services[0].capacity[1] = 0.0;
    let tables = solve(&problem).tables(&problem, &[0]);
    assert_eq!(tables.of(1, 0).shares, [0, 0, WHOLE, 0]);
}
