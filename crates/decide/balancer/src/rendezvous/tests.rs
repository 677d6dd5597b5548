use std::collections::BTreeSet;

use fairmesh_model::arith::mix64;

use super::*;

/// Returns `n` nodes, repeating the weights.
fn nodes(n: u64, weights: &[u32]) -> Vec<(u64, u32)> {
    (0..n).map(|i| (mix64(i + 1), weights[i as usize % weights.len()])).collect()
}

fn chosen(chooser: u64, nodes: &[(u64, u32)], k: usize) -> BTreeSet<u64> {
    subset(chooser, nodes, k).into_iter().map(|position| nodes[position].0).collect()
}

#[test]
fn adding_one_of_1000_servers_changes_at_most_2_5_percent_of_subsets() {
    let after = nodes(1001, &[1000]);
    let (before, newcomer) = (&after[..1000], after[1000].0);
    let mut disturbed = 0;
    for client in 0..10_000 {
        let (old, new) = (chosen(mix64(client), before, 20), chosen(mix64(client), &after, 20));
        if old != new {
            disturbed += 1;
            assert!(new.contains(&newcomer), "only the newcomer may displace");
            assert_eq!(old.difference(&new).count(), 1, "and only one");
        }
    }
    assert!(disturbed <= 250, "{disturbed} of 10,000 clients changed");
    assert!(disturbed >= 150, "the newcomer has {disturbed} clients where 200 are fair");
}

#[test]
fn removing_server_changes_only_subsets_that_contained_it() {
    let before = nodes(300, &[1000, 2000]);
    let (leaver, after) = (before[7].0, [&before[..7], &before[8..]].concat());
    for client in 0..2_000 {
        let (old, new) = (chosen(client, &before, 20), chosen(client, &after, 20));
        if old.contains(&leaver) {
            assert_eq!(new.difference(&old).count(), 1);
        } else {
            assert_eq!(old, new);
        }
    }
}

#[test]
fn rendezvous_first_choices_are_proportional_to_node_weight() {
    let nodes = nodes(100, &[500, 1000, 1500, 2000]);
    let mut firsts = [0_u32; 4];
    for key in 0..100_000 {
        firsts[subset(key, &nodes, 1)[0] % 4] += 1;
    }
    for (count, fair) in firsts.into_iter().zip([10_000, 20_000, 30_000, 40_000_u32]) {
        assert!(count.abs_diff(fair) < fair / 25, "{count} where {fair} are fair");
    }
}

#[test]
fn node_with_twice_weight_is_in_nearly_twice_as_many_subsets() {
    let nodes = nodes(1000, &[1000, 2000]);
    let mut clients = [0_u32; 2];
    for client in 0..2_000 {
        for position in subset(mix64(client), &nodes, 20) {
            clients[position % 2] += 1;
        }
    }
    let percent = clients[1] * 100 / clients[0];
    assert!((190..=205).contains(&percent), "{percent} % as many clients");
}

#[test]
fn added_rendezvous_node_moves_keys_only_to_itself() {
    let after = nodes(51, &[1000, 3000]);
    for key in 0..5_000 {
        let (old, new) = (subset(key, &after[..50], 1)[0], subset(key, &after, 1)[0]);
        assert!(old == new || new == 50);
    }
}

#[test]
fn rendezvous_top_k_is_prefix_of_full_ranking() {
    let nodes = nodes(50, &[1000, 700]);
    let all = subset(9, &nodes, 0);
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 50);
    assert_eq!(subset(9, &nodes, 7), all[..7]);
    assert!(all.windows(2).all(|pair| {
        let rank = |position: usize| Rank::new(9, nodes[position].0, nodes[position].1);
        rank(pair[0]) < rank(pair[1])
    }));
}

#[test]
fn rendezvous_nodes_of_equal_weight_are_ranked_by_hash_only() {
    let nodes = nodes(200, &[700]);
    for key in 0..2_000 {
        let by_draw = (0..200).min_by_key(|&position| Rank::unweighted(key, nodes[position].0));
        assert_eq!(by_draw, Some(subset(key, &nodes, 1)[0]));
    }
}
