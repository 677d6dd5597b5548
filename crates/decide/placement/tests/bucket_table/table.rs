use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddrV4},
};

use fairmesh_placement::{BUCKETS, BucketTable, CHAIN};
use proptest::prelude::*;

pub(crate) fn replica(number: u8) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, number), 7440)
}

pub(crate) fn table(numbers: &BTreeSet<u8>) -> BucketTable {
    BucketTable::new(&numbers.iter().copied().map(replica).collect())
}

/// The chain of a bucket as addresses.
fn chain(table: &BucketTable, bucket: usize) -> Vec<SocketAddrV4> {
    let replicas = table.replicas();
    table.chains()[bucket].iter().filter_map(|one| replicas.get(usize::from(*one)).copied()).collect()
}

/// Whether a number of buckets is a fair share among `replicas`, within six standard deviations.
fn is_fair(buckets: usize, replicas: usize) -> bool {
    let (all, share) = (BUCKETS as f64, 1.0 / replicas as f64);
    let deviation = (all * share * (1.0 - share)).sqrt();
    (buckets as f64 - all * share).abs() <= 6.0 * deviation
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn added_replica_heads_its_fair_share_and_all_others_keep_their_order(
        numbers in prop::collection::btree_set(1_u8..=64, 1..20),
        added in 65_u8..=80,
    ) {
        let before = table(&numbers);
        let numbers: BTreeSet<u8> = numbers.into_iter().chain([added]).collect();
        let (after, added) = (table(&numbers), replica(added));
        for bucket in 0..BUCKETS {
            let (old, new) = (chain(&before, bucket), chain(&after, bucket));
            prop_assert_eq!(new.len(), CHAIN.min(numbers.len()));
            let others: Vec<_> = new.iter().copied().filter(|one| *one != added).collect();
            prop_assert_eq!(&others[..], &old[..others.len()]);
        }
        let heads = after.heads(after.position(added).unwrap());
        prop_assert!(is_fair(heads, numbers.len()), "{} of {}", heads, numbers.len());
    }
}

#[test]
fn all_replicas_head_fair_shares() {
    for count in [1, 2, 3, 10, 64] {
        let table = table(&(1..=count).collect());
        let heads: Vec<usize> = (0..count).map(|position| table.heads(position)).collect();
        assert_eq!(heads.iter().sum::<usize>(), BUCKETS);
        assert!(heads.iter().all(|heads| is_fair(*heads, usize::from(count))), "{count}: {heads:?}");
    }
}

#[test]
fn table_without_replicas_has_empty_chains() {
    let table = table(&BTreeSet::new());
    assert!(table.chains().iter().all(|chain| *chain == [255; CHAIN]));
    assert_eq!((table.chains().len(), table.position(replica(1))), (BUCKETS, None));
}

#[test]
fn replicas_beyond_the_maximum_are_left_out() {
    let table = table(&(1..=70).collect());
    assert_eq!(table.replicas().len(), 64);
    assert!(table.chains().iter().flatten().all(|replica| *replica < 64));
}
